// Transposing blocks of f32 in vectors. Only for *_isa.cc files.
#ifndef RUNTIME_CPU_KERNELS_VEC_TRANSPOSE_H_
#define RUNTIME_CPU_KERNELS_VEC_TRANSPOSE_H_

#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {

// The lanes of two vectors in turn: a0 b0 a1 b1 ...
SHARDC_INLINE void Interleave(Vec a, Vec b, Vec* lower, Vec* upper) {
#if defined(__AVX512F__)
  *lower = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *upper =
      __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
  *lower = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  *upper = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  *lower = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  *upper = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// Lane c of rows[r] and lane r of rows[c] change places, for r and c below kLanes.
SHARDC_INLINE void TransposeInPlace(Vec* rows) {
  Vec mixed[kLanes];
  // A perfect shuffle of all elements moves the bits of their index round by one: once for each
  // bit of the lane, and row and lane have changed places.
#pragma GCC unroll 4
  for (int bit = 1; bit < kLanes; bit *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      Interleave(rows[i], rows[i + kLanes / 2], &mixed[2 * i], &mixed[2 * i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = mixed[i];
  }
}

// dst[c * dst_stride + r] = src[r * src_stride + c] for r and c below kLanes.
template <typename T>
SHARDC_INLINE void TransposeLanes(const T* src, int64_t src_stride, float* dst,
                                  int64_t dst_stride) {
  Vec rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = Load(src + i * src_stride);
  TransposeInPlace(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) Store(dst + i * dst_stride, rows[i]);
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_VEC_TRANSPOSE_H_
