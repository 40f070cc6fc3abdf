#include "frontend/dropout.h"

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

std::vector<Op*> DrawingOps(const Graph& graph) {
  std::vector<Op*> ops;
  for (const auto& op : graph.ops()) {
    if (IsRandom(*op)) ops.push_back(op.get());
  }
  return ops;
}

Op* CreateDrawing(Builder& b, std::string_view op, std::vector<Value*> operands, int64_t seed,
                  Attributes attrs) {
  operands.push_back(StepOf(b));
  attrs.Set("seed", seed);
  attrs.Set("stream", static_cast<int64_t>(DrawingOps(b.graph()).size()));
  return b.Create(op, std::move(operands), std::move(attrs));
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

Op* CreateDropping(Builder& b, std::string_view op, std::vector<Value*> operands, double ratio,
                   int64_t seed, Attributes attrs) {
  attrs.Set("ratio", ratio);
  return CreateDrawing(b, op, std::move(operands), seed, std::move(attrs));
}

Value* AddDropout(Builder& b, Value* x, double ratio, int64_t seed) {
  return CreateDropping(b, "dropout", {x}, ratio, seed)->result();
}

Value* AddUniform(Builder& b, const Shape& shape, int64_t seed) {
  Value* like = b.BroadcastTo(b.Scalar(DType::kF32, 0), shape);
  return CreateDrawing(b, "random_uniform", {like}, seed, {})->result();
}

void SetDropout(Graph& graph, const DropoutOptions& options) {
  const std::vector<Op*> drawing = DrawingOps(graph);
  if (options.seed && drawing.empty()) {
    graph.notes.push_back("--dropout-seed makes no difference: the model draws nothing");
  }
  for (Op* op : drawing) {
    if (options.seed) op->attrs.Set("seed", *options.seed);
    if (options.keep || !Drops(*op)) continue;
    Op* step = op->operands.back()->producer;
    Builder b(graph, op, *op);
    const std::vector<Value*> results = op->def->undropped(b, *op);
    for (size_t i = 0; i < results.size(); ++i) graph.ReplaceAllUses(op->results[i], results[i]);
    graph.Erase(op);
    if (step && step->def->is_state) EraseIfUnread(graph, step);
  }
}

}  // namespace shardc
