#include "passes/loss_scale.h"

#include "passes/added_output.h"

namespace shardc {
namespace {

constexpr double kLeast = 1, kMost = 1 << 15;
constexpr const char *kFactor = "optimizer.loss_scale", *kFiniteSteps = "optimizer.finite_steps";

bool IsMean(const std::string& kind) { return kind == "lm" || kind == "ce" || kind == "masked_lm"; }

// The loss is AttachLoss's mean, or what CutMicrobatches made of it; or, of AccumulateBatches, the
// mean of such means, of which the last one stands for all.
Value* WeightOf(Builder& b, const Value* loss) {
  const Op* mean = loss->producer;
  SHARDC_CHECK(mean && mean->name() == "div");
  Value* weight = mean->operands[1];
  if (const Op* sum = mean->operands[0]->producer; sum && sum->name() == "add") {
    const Op* last = sum->operands[1]->producer;
    if (last && last->name() == "div") {
      weight = b.Mul(weight, b.Cast(last->operands[1], weight->type.dtype));
    }
  }
  auto bound = [&](double v) { return b.Scalar(weight->type.dtype, v); };
  return b.Make("min", {b.Make("max", {weight, bound(kLeast)}), bound(kMost)});
}

}  // namespace

Value* LossScale(Graph& graph, const std::string& kind, const Value* loss, bool trains) {
  Builder b(graph);
  b.site = "loss";
  b.phase = Phase::kBackward;
  Value* scale = IsMean(kind) ? WeightOf(b, loss) : nullptr;
  if (!trains) return scale;
  const DType dtype = loss->type.dtype;
  if (!scale) scale = b.Scalar(dtype, kMost);
  Value* factor = b.State(kFactor, TensorType(DType::kF32, {}), 1);
  scale = b.Mul(scale, b.Cast(factor, dtype));
  AddOutput(graph, "loss_scale", scale);
  return scale;
}

void FollowOverflows(Builder& b, Value* finite, int64_t window) {
  const Op* state = b.graph().FindState(kFactor);
  if (!state || state->name() != "state") return;  // a model's parameter may have this name
  Value* factor = state->result();
  auto scalar = [&](double v) { return b.Scalar(DType::kF32, v); };
  auto count = [&](int64_t v) { return b.Constant(HostTensor::Scalar<int64_t>(v)); };
  Value* before = b.State(kFiniteSteps, TensorType(DType::kI64, {}));
  before->producer->phase = state->phase;  // a file without them has all that the optimizer keeps
  Value* steps = b.Add(before, count(1));
  Value* ends = b.Make("greater_equal", {steps, count(window)});
  Value* grown = b.Make("min", {b.Mul(factor, scalar(2)), scalar(1)});
  Value* kept = b.Make("where", {ends, grown, factor});
  b.Update(kFactor, b.Make("where", {finite, kept, b.Mul(factor, scalar(0.5))}));
  Value* none = count(0);
  Value* counted = b.Make("where", {ends, none, steps});
  b.Update(kFiniteSteps, b.Make("where", {finite, counted, none}));
}

}  // namespace shardc
