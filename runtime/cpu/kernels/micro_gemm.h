// Register-blocked f32 matrix product on packed panels, the inner loop of attention. Only for
// *_isa.cc files.
#ifndef RUNTIME_CPU_KERNELS_MICRO_GEMM_H_
#define RUNTIME_CPU_KERNELS_MICRO_GEMM_H_

#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {

// A tile is kTileRows x kTileVecs vectors of accumulators: 24 of 32 registers with AVX-512, 12 of
// 16 below.
inline constexpr int kTileRows = 6;
#if defined(__AVX512F__)
inline constexpr int kTileVecs = 4;
#else
inline constexpr int kTileVecs = 2;
#endif

// Element (i, p) of the left operand is a[i * row + p * col]: both A and A^T can be read in place.
struct LeftView {
  const float* a;
  int64_t row;
  int64_t col;
};

// What becomes of C: A B, C + A B, or row i of C times factor[i], + A B.
enum class Into { kNew, kSum, kScaledSum };

template <int kRows, int kVecs, Into kInto>
SHARDC_INLINE void MicroTile(int64_t k, LeftView left, const float* b, int64_t ldb, float* c,
                             int64_t ldc, const float* factor) {
  Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      acc[i][v] = kInto == Into::kNew ? Vec{} : Load(c + i * ldc + v * kLanes);
      if constexpr (kInto == Into::kScaledSum) acc[i][v] *= factor[i];
    }
  }
  const float* a = left.a;
  for (int64_t p = 0; p < k; ++p, a += left.col, b += ldb) {
    Vec right[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) right[v] = Load(b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vec s = Splat(a[i * left.row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[i][v] += s * right[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(c + i * ldc + v * kLanes, acc[i][v]);
  }
}

template <int kVecs, Into kInto>
[[gnu::noinline]] static void MicroRows(int rows, int64_t k, LeftView left, const float* b,
                                        int64_t ldb, float* c, int64_t ldc, const float* factor) {
  switch (rows) {
    case 6:
      return MicroTile<6, kVecs, kInto>(k, left, b, ldb, c, ldc, factor);
    case 5:
      return MicroTile<5, kVecs, kInto>(k, left, b, ldb, c, ldc, factor);
    case 4:
      return MicroTile<4, kVecs, kInto>(k, left, b, ldb, c, ldc, factor);
    case 3:
      return MicroTile<3, kVecs, kInto>(k, left, b, ldb, c, ldc, factor);
    case 2:
      return MicroTile<2, kVecs, kInto>(k, left, b, ldb, c, ldc, factor);
    default:
      return MicroTile<1, kVecs, kInto>(k, left, b, ldb, c, ldc, factor);
  }
}

// C[rows, n] = or += A[rows, k] B[k, n] for rows <= kTileRows and n a multiple of kLanes. `factor`
// is read for kScaledSum only.
template <Into kInto>
SHARDC_INLINE void MicroGemm(int rows, int64_t n, int64_t k, LeftView left, const float* b,
                             int64_t ldb, float* c, int64_t ldc, const float* factor = nullptr) {
  int64_t j = 0;
  for (; j + kTileVecs * kLanes <= n; j += kTileVecs * kLanes) {
    MicroRows<kTileVecs, kInto>(rows, k, left, b + j, ldb, c + j, ldc, factor);
  }
  if constexpr (kTileVecs == 4) {
    if (j + 2 * kLanes <= n) {
      MicroRows<2, kInto>(rows, k, left, b + j, ldb, c + j, ldc, factor);
      j += 2 * kLanes;
    }
  }
  if (j < n) MicroRows<1, kInto>(rows, k, left, b + j, ldb, c + j, ldc, factor);
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_MICRO_GEMM_H_
