// The learning rate of a step, as a scalar of the graph.
#pragma once

#include <cstdint>
#include <string>

#include "ir/builder.h"

namespace shardc {

// Megatron-LM's schedules. With n, the updates done before this step:
//   warm-up   n <= warmup_steps: lr * n / warmup_steps, so that the first update changes nothing
//   decay     r = (n - warmup_steps) / (decay_steps - warmup_steps), no more than 1:
//             min_lr + c * (lr - min_lr), c = 1 - r ("linear") or (1 + cos(pi * r)) / 2 ("cosine")
//   constant  lr
struct LearningRateOptions {
  double lr = 1e-3;
  std::string decay = "constant";  // "linear", "cosine"
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // the step, warm-up included, from which the rate is min_lr
  double min_lr = 0;
};

// Throws Diagnostic E6102 for an unknown decay and for values that make no schedule.
void CheckLearningRate(const LearningRateOptions& options);

// Whether the rate is the same in every step.
bool IsConstant(const LearningRateOptions& options);

// A scalar of the type `dtype`. `steps`: the updates done, i64[].
Value* LearningRate(Builder& b, const LearningRateOptions& options, Value* steps, DType dtype);

}  // namespace shardc
