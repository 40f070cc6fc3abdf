// Matrix pieces of a warp on tensor cores: fragments of mma.m16n8k16 (PTX ISA, "Matrix fragments
// for mma.m16n8k16") and tiles of shared memory. In lane l, with g = l / 4 and t = l % 4, a 16 x 8
// accumulator holds
// {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}.
#pragma once

#include "runtime/cuda/kernels/attention.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

#if defined(__CUDACC__)

template <typename T>
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], const T* row) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
template <typename T>
__device__ __forceinline__ void LoadTransposed(uint32_t (&r)[4], const T* row) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
template <typename T>
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  if constexpr (std::is_same_v<T, BF16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

#else

// Lanes 8 i ... 8 i + 7 give the rows of matrix i.
template <typename T>
void LoadMatrices(uint32_t (&r)[4], const T* row) {
  CheckAligned(row, 16);
  const auto rows = emulation::Exchange(row);
  size_t lane = threadIdx.x % 32;
  for (size_t i = 0; i < 4; ++i) std::memcpy(&r[i], rows[i * 8 + lane / 4] + lane % 4 * 2, 4);
}
template <typename T>
void LoadTransposed(uint32_t (&r)[4], const T* row) {
  CheckAligned(row, 16);
  const auto rows = emulation::Exchange(row);
  size_t lane = threadIdx.x % 32;
  for (size_t i = 0; i < 4; ++i) {
    const T* at = rows[i * 8 + lane % 4 * 2];
    const T* next = rows[i * 8 + lane % 4 * 2 + 1];
    r[i] = at[lane / 4].bits | static_cast<uint32_t>(next[lane / 4].bits) << 16;
  }
}
template <typename T>
void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragments {
    uint32_t a[4], b[2];
  };
  const auto all = emulation::Exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  auto half = [](uint32_t word, size_t k) {
    return Widen(T{static_cast<uint16_t>(word >> (k % 2 * 16))});
  };
  size_t lane = threadIdx.x % 32;
  for (size_t e = 0; e < 4; ++e) {
    size_t row = lane / 4 + e / 2 * 8, col = lane % 4 * 2 + e % 2;
    for (size_t k = 0; k < 16; ++k) {
      c[e] += half(all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k) *
              half(all[col * 4 + k % 8 / 2].b[k / 8], k);
    }
  }
}

#endif

template <typename T>
__device__ __forceinline__ uint32_t PackTwo(float low, float high) {
  return Narrow<T>(low).bits | static_cast<uint32_t>(Narrow<T>(high).bits) << 16;
}

// Rows of a tile in shared memory: kD columns, and 8 more so that the 8 rows of a matrix lie in
// different banks.
template <int kD>
inline constexpr int kPitch = kD + 8;

// f(true_type) where all `most` columns are there, f(false_type) where some are not: without a
// branch at each step, the steps overlap.
template <typename F>
__device__ __forceinline__ void WholeOrNot(int columns, int most, const F& f) {
  if (columns >= most) {
    f(std::true_type());
  } else {
    f(std::false_type());
  }
}

// c[n] += (16 rows of `a`) * (rows of `b`)^T over `depth` columns.
template <typename T, int kD, int kN>
__device__ __forceinline__ void MultiplyRows(float (&c)[kN][4], const T* a, const T* b, int depth) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const T* a_row = a + lane % 16 * kPitch<kD> + lane / 16 * 8;
  const T* b_row = b + (lane / 16 * 8 + lane % 8) * kPitch<kD> + lane / 8 % 2 * 8;
  WholeOrNot(depth, kD - 15, [&](auto whole) {
    SHARDC_UNROLL
    for (int k = 0; k < kD; k += 16) {
      if (!decltype(whole)::value && k >= depth) continue;  // not break: the loop is unrolled
      uint32_t af[4];
      LoadMatrices(af, a_row + k);
      SHARDC_UNROLL
      for (int n = 0; n < kN; n += 2) {
        uint32_t bf[4];
        LoadMatrices(bf, b_row + n * 8 * kPitch<kD> + k);
        Mma<T>(c[n], af, bf[0], bf[1]);
        Mma<T>(c[n + 1], af, bf[2], bf[3]);
      }
    }
  });
}

// c += p * b: p is an accumulator of 16 rows and kN * 8 columns, rounded to T; b has kN * 8 rows
// and `width` columns.
template <typename T, int kD, int kN>
__device__ __forceinline__ void MultiplyAccumulator(float (&c)[kD / 8][4], const float (&p)[kN][4],
                                                    const T* b, int width) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const T* b_row = b + (lane / 8 % 2 * 8 + lane % 8) * kPitch<kD> + lane / 16 * 8;
  WholeOrNot(width, kD - 15, [&](auto whole) {
    SHARDC_UNROLL
    for (int k = 0; k < kN; k += 2) {
      const uint32_t af[4] = {PackTwo<T>(p[k][0], p[k][1]), PackTwo<T>(p[k][2], p[k][3]),
                              PackTwo<T>(p[k + 1][0], p[k + 1][1]),
                              PackTwo<T>(p[k + 1][2], p[k + 1][3])};
      SHARDC_UNROLL
      for (int n = 0; n < kD / 8; n += 2) {
        if (!decltype(whole)::value && n * 8 >= width) continue;
        uint32_t bf[4];
        LoadTransposed(bf, b_row + k * 8 * kPitch<kD> + n * 8);
        Mma<T>(c[n], af, bf[0], bf[1]);
        Mma<T>(c[n + 1], af, bf[2], bf[3]);
      }
    }
  });
}

// The threads of a block.
inline constexpr int kMmaThreads = 128;

// Rows [first, first + kCount) of a tensor on their way to a tile: all that a thread loads of them
// is under way at once. Zero beyond `rows` and `width`.
template <typename T, int kD, int kCount>
class TileLoad {
 public:
  __device__ __forceinline__ void Fetch(const T* from, int64_t stride, int64_t first, int64_t rows,
                                        int width, bool packed) {
    const int row = Row(), c = Column();
    const int there = static_cast<int>(rows - first < kCount ? rows - first : kCount);
    const T* at = from + (first + row) * stride + c;
    stride *= kStep;
    if (packed) {
      SHARDC_UNROLL
      for (int i = 0; i < kPacks; ++i, at += stride) {
        v_[i] = Pack<T, kEach>{};
        if (row + i * kStep < there && c < width) v_[i] = LoadPack<T, kEach>(at);
      }
    } else {
      SHARDC_UNROLL
      for (int i = 0; i < kPacks; ++i, at += stride) {
        v_[i] = Pack<T, kEach>{};
        if (row + i * kStep >= there) continue;
        SHARDC_UNROLL
        for (int j = 0; j < kEach; ++j) {
          if (c + j < width) v_[i].v[j] = at[j];
        }
      }
    }
  }
  __device__ __forceinline__ void Put(T* tile) const {
    T* at = tile + Row() * kPitch<kD> + Column();
    SHARDC_UNROLL
    for (int i = 0; i < kPacks; ++i) StorePack<T, kEach>(at + i * kStep * kPitch<kD>, v_[i]);
  }

 private:
  static constexpr int kEach = 8, kPer = kD / kEach, kStep = kMmaThreads / kPer;
  static constexpr int kPacks = kCount / kStep;
  static __device__ int Row() { return static_cast<int>(threadIdx.x) / kPer; }
  static __device__ int Column() { return static_cast<int>(threadIdx.x) % kPer * kEach; }

  Pack<T, kEach> v_[kPacks];
};

// Writes 16 rows of an accumulator, row r to to + r * stride for r < rows, times factors of the two
// rows of the lane.
template <typename T, int kD>
__device__ __forceinline__ void StoreRows(T* to, int64_t stride, int64_t rows, int width,
                                          const float (&c)[kD / 8][4], float low, float high) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, col = lane % 4 * 2;
  SHARDC_UNROLL
  for (int n = 0; n < kD / 8; ++n) {
    SHARDC_UNROLL
    for (int e = 0; e < 4; ++e) {
      int row = g + e / 2 * 8, x = n * 8 + col + e % 2;
      if (row < rows && x < width) to[row * stride + x] = Narrow<T>(c[n][e] * (e < 2 ? low : high));
    }
  }
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
