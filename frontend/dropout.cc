#include "frontend/dropout.h"

#include <algorithm>

#include "ir/op_def.h"

namespace shardc {
namespace {

constexpr const char* kStep = "dropout.step";

Value* StepOf(Builder& b) {
  Graph& graph = b.graph();
  for (const auto& op : graph.ops()) {
    if (op->def->is_state && op->attrs.String("name") == kStep) return op->result();
  }
  const std::string site = std::exchange(b.site, "dropout");
  Op* state = graph.AddOp(GetOpDef("state"), {}, {TensorType(DType::kI64, {})},
                          {{"name", std::string(kStep)},
                           {"dtype", std::string("i64")},
                           {"shape", Shape{}},
                           {"init", 0.0}});
  state->site = b.site;
  b.Update(kStep, b.Add(state->result(), b.Scalar(DType::kI64, 1)));
  b.site = site;
  return state->result();
}

}  // namespace

Value* AddDropout(Builder& b, Value* x, double ratio, int64_t seed) {
  Value* step = StepOf(b);
  const auto stream = std::count_if(b.graph().ops().begin(), b.graph().ops().end(),
                                    [](const auto& op) { return op->def->random; });
  return b.Make("dropout", {x, step},
                {{"ratio", ratio}, {"seed", seed}, {"stream", static_cast<int64_t>(stream)}});
}

}  // namespace shardc
