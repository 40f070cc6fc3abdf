// What the kernels of ops that drop elements are told.
#pragma once

#include <algorithm>

#include "ir/dropout.h"
#include "runtime/cpu/kernels/dropout.h"

namespace shardc::cpu {

// All but the step. A ratio of 1 has a scale of zero, so that what it keeps does not count.
inline DropoutDraw DrawOf(const DropoutMask& mask) {
  DropoutDraw draw;
  draw.seed = mask.seed;
  draw.stream = mask.stream;
  draw.threshold = static_cast<uint32_t>(std::min<uint64_t>(mask.threshold, UINT32_MAX));
  return draw;
}

inline uint32_t StepIn(const TensorView& step) {
  return static_cast<uint32_t>(step.dtype == DType::kI64 ? *step.as<const int64_t>()
                                                         : *step.as<const int32_t>());
}

}  // namespace shardc::cpu
