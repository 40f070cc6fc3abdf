// What a norm makes of its operand, in one place, so that a gradient that makes it again has the
// same bits.
#ifndef RUNTIME_CPU_KERNELS_NORM_VALUE_H_
#define RUNTIME_CPU_KERNELS_NORM_VALUE_H_

#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {

// (x - mean) * rstd * w + b of elements [i, i + n); null: ones, zeros. What is missing is a number
// and no branch, or compilers might contract other products in each.
SHARDC_INLINE Vec NormValue(const Vec& x, float mean, float rstd, const float* w, const float* b,
                            int64_t i, int64_t n) {
  const Vec scale = w != nullptr ? LoadN(w + i, n) : Splat(1);
  const Vec shift = b != nullptr ? LoadN(b + i, n) : Vec{};
  return MulAdd((x - mean) * rstd, scale, shift);
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_NORM_VALUE_H_
