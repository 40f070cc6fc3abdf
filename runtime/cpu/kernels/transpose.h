// Transposing small blocks. No standard header with inline functions: *_isa.cc
// files use it.
#ifndef RUNTIME_CPU_KERNELS_TRANSPOSE_H_
#define RUNTIME_CPU_KERNELS_TRANSPOSE_H_

#include <cstdint>

namespace shardc::cpu {

// The elements of a and b in turn: a0 b0 a1 b1 ...
template <typename Row>
[[gnu::always_inline]] inline void InTurn(Row a, Row b, Row& lower, Row& upper) {
  if constexpr (sizeof(a[0]) == 1) {
    lower = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    upper =
        __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  } else if constexpr (sizeof(a[0]) == 2) {
    lower = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    upper = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  } else if constexpr (sizeof(a[0]) == 4) {
    lower = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    upper = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  } else {
    lower = __builtin_shufflevector(a, b, 0, 2);
    upper = __builtin_shufflevector(a, b, 1, 3);
  }
}

// Rows and columns of the blocks that TransposeBlock takes: 16 bytes.
template <typename T>
inline constexpr int kTransposed = 16 / sizeof(T);

// dst[o * dst_stride + i] = src[i * src_stride + o] for i and o below kTransposed, of unsigned
// integers.
template <typename T>
[[gnu::always_inline]] inline void TransposeBlock(const T* src, int64_t src_stride, T* dst,
                                                  int64_t dst_stride) {
  constexpr int kSize = kTransposed<T>;
  typedef T Row __attribute__((vector_size(16)));
  Row rows[kSize], mixed[kSize];
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) __builtin_memcpy(&rows[i], src + i * src_stride, sizeof(Row));
    // A perfect shuffle of all elements moves the bits of their index round by one: once for each
    // bit of the column, and row and column have changed places.
#pragma GCC unroll 4
  for (int bit = 1; bit < kSize; bit *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kSize / 2; ++i) {
      InTurn(rows[i], rows[i + kSize / 2], mixed[2 * i], mixed[2 * i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSize; ++i) rows[i] = mixed[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) __builtin_memcpy(dst + i * dst_stride, &rows[i], sizeof(Row));
}

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_TRANSPOSE_H_
