// Products of tiles in shared memory, in f32. A block of four warps has 64 rows of each product, a
// warp 16 of them. Eight lanes share four rows, of which each has four neighbouring columns of
// every 32: what a thread multiplies it reads 16 bytes at a time, 12 of them for 128
// multiplications where a tile has 64 rows.
#pragma once

#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

inline constexpr int kThreads = 128, kRows = 64, kLanes = 8;
using Four = Pack<float, 4>;

// Which of the eight lanes this is, and the first of its four rows. A load of 16 bytes takes two
// turns of shared memory instead of four where lanes i and i ^ 1, or i and i ^ 2, want the same: so
// of the former pairs both have the same rows, of the latter the same columns. The other bits are
// placed so that ShareRows meets no bank twice.
__device__ __forceinline__ int LaneX() {
  const int lane = static_cast<int>(threadIdx.x);
  return (lane & 1) | (lane >> 2 & 2) | (lane & 4);
}
__device__ __forceinline__ int FirstRow() {
  const int lane = static_cast<int>(threadIdx.x);
  return (lane / 32 * 4 + ((lane >> 4 & 1) | (lane & 2))) * 4;
}
// fold(v) of the eight lanes.
template <typename F>
__device__ __forceinline__ float FoldLanes(float v, F fold) {
  SHARDC_UNROLL
  for (int mask : {1, 4, 8}) v = fold(v, ShuffleXor(v, mask));
  return v;
}

// Where four neighbouring elements lie in a tile with rows of kWidth: lanes that read the same ones
// of rows 4 apart find them in different banks.
template <int kWidth>
__device__ __forceinline__ int At(int row, int four) {
  return row * kWidth + (four ^ row / 4 % 8) * 4;
}

// Columns that products over `width` of them read: zeros beyond those that are there.
__device__ __forceinline__ int Depth(int width) { return (width + 7) / 8 * 8; }

// To shared memory.
__device__ __forceinline__ void Put(float* to, const Four& v) {
  CheckAligned(to, sizeof(Four));
  *reinterpret_cast<Four*>(to) = v;
}

// Rows of a tensor.
struct Matrix {
  const float* data;
  int stride, rows, width;
  bool packed;
};

// kCount of them on their way to a tile in shared memory; zeros beyond `rows` and `width`. Between
// Fetch and Store a thread does something else, so that it does not wait for memory.
template <int kD, int kCount>
struct Transit {
  static constexpr int kPer = kD / 4, kGroups = kThreads / kPer, kEach = kCount / kGroups;
  static_assert(kThreads % kPer == 0 && kEach % 4 == 0);
  Four v[kEach];  // the same columns of four neighbouring rows, and of others

  static __device__ int Column() { return static_cast<int>(threadIdx.x) % kPer; }
  static __device__ int Row(int u) {
    return static_cast<int>(threadIdx.x) / kPer * 4 + u / 4 * kGroups * 4 + u % 4;
  }

  __device__ __forceinline__ void Fetch(const Matrix& m, int first) {
    const int column = Column() * 4;
    const auto at = [&](int row) { return m.data + int64_t{row} * m.stride + column; };
    for (Four& each : v) each = {};
    if (m.packed) {
      if (column >= m.width) return;
      SHARDC_UNROLL
      for (int u = 0; u < kEach; ++u) {
        const int row = first + Row(u);
        if (row < m.rows) v[u] = LoadPack<float, 4>(at(row));
      }
    } else {
      SHARDC_UNROLL
      for (int u = 0; u < kEach; ++u) {
        const int row = first + Row(u);
        SHARDC_UNROLL
        for (int j = 0; j < 4; ++j) {
          if (row < m.rows && column + j < m.width) v[u].v[j] = at(row)[j];
        }
      }
    }
  }
  __device__ __forceinline__ void Store(float* tile) const {
    SHARDC_UNROLL
    for (int u = 0; u < kEach; ++u) Put(tile + At<kD>(Row(u), Column()), v[u]);
  }
};
template <int kD, int kCount>
__device__ __forceinline__ void LoadTile(const Matrix& m, int first, float* tile) {
  Transit<kD, kCount> rows;
  rows.Fetch(m, first);
  rows.Store(tile);
}

// c[r][4 n + e] += row r of this thread, of x, times row 32 n + 4 lane + e of y, over `depth`
// columns.
template <int kD, int kColumns>
__device__ __forceinline__ void MultiplyRows(float (&c)[4][kColumns], const float* x,
                                             const float* y, int depth) {
  const int row = FirstRow(), lane = LaneX();
  SHARDC_UNROLL_BY(1)
  for (int begin = 0; begin < depth / 4; begin += 2) {
    SHARDC_UNROLL
    for (int k = begin; k < begin + 2; ++k) {
      const float *x_at = x + At<kD>(row, k), *y_at = y + At<kD>(lane * 4, k);
      Four xs[4];
      SHARDC_UNROLL
      for (int r = 0; r < 4; ++r) xs[r] = LoadPack<float, 4>(x_at + r * kD);
      SHARDC_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        const Four ys = LoadPack<float, 4>(y_at + (n / 4 * 32 + n % 4) * kD);
        SHARDC_UNROLL
        for (int u = 0; u < 4; ++u) {
          SHARDC_UNROLL
          for (int r = 0; r < 4; ++r) c[r][n] += xs[r].v[u] * ys.v[u];
        }
      }
    }
  }
}

// What the other lanes of a warp multiply by a tile, after __syncwarp.
template <int kColumns>
__device__ __forceinline__ void ShareRows(float* to, const float (&c)[4][kColumns]) {
  constexpr int kTile = kColumns * kLanes;
  SHARDC_UNROLL
  for (int r = 0; r < 4; ++r) {
    SHARDC_UNROLL
    for (int n = 0; n < kColumns; n += 4) {
      Put(to + At<kTile>(FirstRow(), LaneX()) + r * kTile + n * kLanes,
          {{c[r][n], c[r][n + 1], c[r][n + 2], c[r][n + 3]}});
    }
  }
}
// c += (rows of p) * (tile of kTile rows): columns as above.
template <int kD, int kTile>
__device__ __forceinline__ void MultiplyTile(float (&c)[4][kD / kLanes], const float* p,
                                             const float* tile) {
  const int row = FirstRow(), lane = LaneX();
  SHARDC_UNROLL_BY(2)
  for (int k = 0; k < kTile; k += 4) {
    Four ps[4];
    SHARDC_UNROLL
    for (int r = 0; r < 4; ++r) ps[r] = LoadPack<float, 4>(p + At<kTile>(row, k / 4) + r * kTile);
    SHARDC_UNROLL
    for (int u = 0; u < 4; ++u) {
      SHARDC_UNROLL
      for (int n = 0; n < kD / kLanes; n += 4) {
        const Four each = LoadPack<float, 4>(tile + At<kD>(k, lane) + u * kD + n * kLanes);
        SHARDC_UNROLL
        for (int e = 0; e < 4; ++e) {
          SHARDC_UNROLL
          for (int r = 0; r < 4; ++r) c[r][n + e] += ps[r].v[u] * each.v[e];
        }
      }
    }
  }
}

// This thread's rows, row r to to + r * stride, of which there are `rows` from its first on.
template <int kD>
__device__ __forceinline__ void StoreRows(float* to, int64_t stride, int64_t rows, int width,
                                          bool packed, const float (&c)[4][kD / kLanes],
                                          const float (&factors)[4]) {
  SHARDC_UNROLL
  for (int r = 0; r < 4; ++r) {
    SHARDC_UNROLL
    for (int n = 0; n < kD / kLanes; n += 4) {
      const int column = n * kLanes + LaneX() * 4;
      float* at = to + r * stride + column;
      Four v;
      SHARDC_UNROLL
      for (int e = 0; e < 4; ++e) v.v[e] = c[r][n + e] * factors[r];
      if (r >= rows) continue;
      if (packed) {
        if (column < width) StorePack<float, 4>(at, v);
      } else {
        SHARDC_UNROLL
        for (int e = 0; e < 4; ++e) {
          if (column + e < width) at[e] = v.v[e];
        }
      }
    }
  }
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
