// Transposing small blocks of 16-bit elements. No standard header with inline functions: *_isa.cc
// files use it.
#ifndef RUNTIME_CPU_KERNELS_TRANSPOSE_H_
#define RUNTIME_CPU_KERNELS_TRANSPOSE_H_

#include <cstdint>

namespace shardc::cpu {

// dst[o * dst_stride + i] = src[i * src_stride + o] for 8 x 8 elements.
[[gnu::always_inline]] inline void Transpose8x8(const uint16_t* src, int64_t src_stride,
                                                uint16_t* dst, int64_t dst_stride) {
  typedef uint16_t Row __attribute__((vector_size(16)));
  Row r[8], a[8], b[8];
  for (int i = 0; i < 8; ++i) __builtin_memcpy(&r[i], src + i * src_stride, sizeof(Row));
  const auto interleave = [](Row x, Row y, Row& lower, Row& upper) {
    lower = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
    upper = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
  };
  // Three perfect shuffles of the 64 elements swap the halves of their index: row and lane.
  for (int i = 0; i < 4; ++i) interleave(r[i], r[i + 4], a[2 * i], a[2 * i + 1]);
  for (int i = 0; i < 4; ++i) interleave(a[i], a[i + 4], b[2 * i], b[2 * i + 1]);
  for (int i = 0; i < 4; ++i) interleave(b[i], b[i + 4], r[2 * i], r[2 * i + 1]);
  for (int i = 0; i < 8; ++i) __builtin_memcpy(dst + i * dst_stride, &r[i], sizeof(Row));
}

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_TRANSPOSE_H_
