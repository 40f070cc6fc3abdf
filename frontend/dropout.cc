#include "frontend/dropout.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ir/op_def.h"

namespace shardc {
namespace {

constexpr const char* kStep = "dropout.step";

Value* StepOf(Builder& b) {
  for (const auto& op : b.graph().ops()) {
    if (op->def->is_state && op->attrs.String("name") == kStep) return op->result();
  }
  const std::string site = std::exchange(b.site, "dropout");
  Value* steps = b.State(kStep, TensorType(DType::kI64, {}));
  b.Update(kStep, b.Add(steps, b.Scalar(DType::kI64, 1)));
  b.site = site;
  return steps;
}

std::vector<Op*> RandomOps(const Graph& graph) {
  std::vector<Op*> ops;
  for (const auto& op : graph.ops()) {
    if (op->def->random) ops.push_back(op.get());
  }
  return ops;
}

Op* UpdateOf(const Graph& graph, const std::string& state) {
  for (const auto& op : graph.ops()) {
    if (op->name() == "update" && op->attrs.String("name") == state) return op.get();
  }
  return nullptr;
}

// A state that nothing but its own update reads: state, the next value, update.
void EraseIfUnread(Graph& graph, Op* state) {
  Op* update = UpdateOf(graph, state->attrs.String("name"));
  if (!update || state->result()->users.size() != 1) return;
  Op* next = state->result()->users[0];
  if (update->operands[0]->producer != next || next->result()->users.size() != 1) return;
  graph.Erase(update);
  graph.Erase(next);
  graph.Erase(state);
}

}  // namespace

Value* AddDropout(Builder& b, Value* x, double ratio, int64_t seed) {
  Value* step = StepOf(b);
  const auto stream = std::count_if(b.graph().ops().begin(), b.graph().ops().end(),
                                    [](const auto& op) { return op->def->random; });
  return b.Make("dropout", {x, step},
                {{"ratio", ratio}, {"seed", seed}, {"stream", static_cast<int64_t>(stream)}});
}

void SetDropout(Graph& graph, const DropoutOptions& options) {
  for (Op* op : RandomOps(graph)) {
    if (options.seed) op->attrs.Set("seed", *options.seed);
    if (options.keep) continue;
    Op* step = op->operands[1]->producer;
    graph.ReplaceAllUses(op->result(), op->operands[0]);
    graph.Erase(op);
    if (step && step->def->is_state) EraseIfUnread(graph, step);
  }
}

}  // namespace shardc
