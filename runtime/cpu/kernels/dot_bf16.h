// What amx.h has, with AVX512_BF16 alone. Only for files compiled for it.
#ifndef RUNTIME_CPU_KERNELS_DOT_BF16_H_
#define RUNTIME_CPU_KERNELS_DOT_BF16_H_

#include <immintrin.h>

#include <cstdint>

#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {

// There is nothing to set up.
class Tiles {
 public:
  Tiles() {}
};

// C[m, n] = A[m, k] B[k, n], or C += that with kAdd; m, n and k are multiples of 32, sums in f32.
// Strides in elements. B is stored in pairs of rows: element (i, j) at b[(i / 2) * ldb + 2 * j + i
// % 2].
template <bool kAdd>
SHARDC_INLINE void TileProduct(int64_t m, int64_t n, int64_t k, const uint16_t* a, int64_t lda,
                               const uint16_t* b, int64_t ldb, float* c, int64_t ldc) {
  typedef int32_t UnalignedPair __attribute__((aligned(2), may_alias));
  constexpr int kRows = 8, kVecs = 2;  // accumulators enough to hide what a product waits for
  for (int64_t j = 0; j < n; j += kVecs * kLanes) {
    for (int64_t i = 0; i < m; i += kRows) {
      __m512 sum[kRows][kVecs];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          sum[r][v] = kAdd ? _mm512_loadu_ps(c + (i + r) * ldc + j + v * kLanes) : (__m512)Vec{};
        }
      }
      for (int64_t p = 0; p < k; p += 2) {
        __m512bh right[kVecs];
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          right[v] = (__m512bh)_mm512_loadu_si512(b + p / 2 * ldb + 2 * (j + v * kLanes));
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const int32_t pair = *reinterpret_cast<const UnalignedPair*>(a + (i + r) * lda + p);
          const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) {
            sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          _mm512_storeu_ps(c + (i + r) * ldc + j + v * kLanes, sum[r][v]);
        }
      }
    }
  }
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_DOT_BF16_H_
