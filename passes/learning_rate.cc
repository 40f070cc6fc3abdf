#include "passes/learning_rate.h"

#include <limits>
#include <numbers>

#include "ir/diagnostic.h"

namespace shardc {
namespace {

void Require(bool holds, const std::string& flag, const std::string& what, const std::string& fix) {
  if (!holds) throw Diagnostic("E6102", ExitCode::kUsage, flag, what, fix);
}

}  // namespace

void CheckLearningRate(const LearningRateOptions& o) {
  Require(o.lr >= 0 && o.lr <= std::numeric_limits<float>::max(), "--lr",
          StrCat("learning rate ", o.lr, " is not a number from 0 on that f32 can hold"),
          "give one, for example 1e-3");
  const bool constant = o.decay == "constant";
  Require(constant || o.decay == "linear" || o.decay == "cosine", "--lr-decay",
          StrCat("unknown decay '", o.decay, "'"), "use constant, linear or cosine");
  Require(o.warmup_steps >= 0, "--lr-warmup-steps",
          StrCat("the number of steps, ", o.warmup_steps, ", is negative"),
          "give 0 or more; 0: no warm-up");
  for (const auto& [flag, given] :
       {std::pair("--lr-decay-steps", o.decay_steps != 0), {"--min-lr", o.min_lr != 0}}) {
    Require(!constant || !given, flag, "belongs to a decay, and the rate is constant",
            "add --lr-decay linear or cosine");
  }
  Require(constant || o.decay_steps != 0, "--lr-decay-steps",
          StrCat("is missing or 0: --lr-decay ", o.decay, " must know with which step it ends"),
          "add it: for example as many as there are steps");
  Require(constant || o.decay_steps > o.warmup_steps, "--lr-decay-steps",
          StrCat("the decay ends with step ", o.decay_steps, ", and warm-up with step ",
                 o.warmup_steps),
          "give a later one; it counts the steps of the warm-up too");
  Require(o.min_lr >= 0 && o.min_lr <= o.lr, "--min-lr",
          StrCat(o.min_lr, " is not between 0 and the learning rate, ", o.lr),
          "give a smaller one, or a larger --lr");
}

bool IsConstant(const LearningRateOptions& o) {
  return o.decay == "constant" && o.warmup_steps == 0;
}

Value* LearningRate(Builder& b, const LearningRateOptions& o, Value* steps, DType dtype) {
  auto scalar = [&](double value) { return b.Scalar(dtype, value); };
  auto at_most_1 = [&](Value* v) { return b.Make("min", {v, scalar(1)}); };
  Value* rate = nullptr;
  if (o.decay == "constant") {
    rate = scalar(o.lr);
  } else {
    // Counts become floats when they are differences, which are smaller.
    Value* after = b.Sub(steps, b.Constant(HostTensor::Scalar<int64_t>(o.warmup_steps)));
    Value* since = b.Make("max", {b.Cast(after, dtype), scalar(0)});
    const auto length = static_cast<double>(o.decay_steps - o.warmup_steps);
    Value* part = at_most_1(b.Div(since, scalar(length)));
    Value* left = nullptr;
    if (o.decay == "linear") {
      left = b.Sub(scalar(1), part);
    } else {
      Value* wave = b.Make("cos", {b.Mul(part, scalar(std::numbers::pi))});
      left = b.Mul(b.Add(wave, scalar(1)), scalar(0.5));
    }
    rate = b.Add(b.Mul(left, scalar(o.lr - o.min_lr)), scalar(o.min_lr));
  }
  if (o.warmup_steps > 0) {
    Value* done = b.Cast(steps, dtype);
    Value* part = b.Div(done, scalar(static_cast<double>(o.warmup_steps)));
    rate = b.Mul(rate, at_most_1(part));
  }
  return rate;
}

}  // namespace shardc
