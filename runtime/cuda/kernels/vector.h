// Several elements at a time, and walks over strided boxes.
#pragma once

#include "runtime/cuda/kernels/bind.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// N elements that are read and written together.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> LoadPack(const T* p) {
  CheckAligned(p, sizeof(Pack<T, N>));
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
template <typename T, int N>
__device__ __forceinline__ void StorePack(T* p, const Pack<T, N>& pack) {
  CheckAligned(p, sizeof(Pack<T, N>));
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

// Elements of 16 bytes.
template <typename T>
inline constexpr int kPack = static_cast<int>(16 / sizeof(T));

// Calls f(std::integral_constant<int, N>(), c) for all columns of a row, over the threads of the
// block: packs when `packed`, else single elements.
template <typename T, typename F>
__device__ __forceinline__ void ForColumns(int64_t cols, bool packed, F f) {
  if (packed) {
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * kPack<T>; c < cols;
         c += static_cast<int64_t>(blockDim.x) * kPack<T>) {
      f(std::integral_constant<int, kPack<T>>(), c);
    }
  } else {
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) f(std::integral_constant<int, 1>(), c);
  }
}
// Whether rows of `cols` elements of T from all these pointers may be read in packs; null pointers
// may.
template <typename T, typename... P>
bool Packs(int64_t cols, const P*... pointers) {
  return cols % kPack<T> == 0 && (Aligned(pointers, 16) && ...);
}

// The same for elements [first, first + count) of an array that begins at a pack, wherever they
// begin: single elements before the first whole pack and after the last.
template <typename T, typename F>
__device__ __forceinline__ void ForStretch(int64_t first, int64_t count, bool packed, F f) {
  constexpr int64_t kN = kPack<T>;
  int64_t head = packed ? (kN - first % kN) % kN : count;
  if (head > count) head = count;
  const int64_t packs = (count - head) / kN, singles = count - packs * kN;
  for (int64_t p = threadIdx.x; p < packs; p += blockDim.x) {
    f(std::integral_constant<int, kN>(), head + p * kN);
  }
  for (int64_t i = threadIdx.x; i < singles; i += blockDim.x) {
    f(std::integral_constant<int, 1>(), i < head ? i : i + packs * kN);
  }
}

// Offsets of element i of the walk for its first K operands.
template <int K, typename Index>
__device__ __forceinline__ void LocateAs(const Walk& walk, Index i, int64_t (&at)[K]) {
  for (int k = 0; k < K; ++k) at[k] = 0;
  for (int d = walk.rank - 1; d >= 0; --d) {
    Index n = static_cast<Index>(walk.dims[d]), q = d == 0 ? 0 : i / n;
    int64_t index = static_cast<int64_t>(i - q * n);
    for (int k = 0; k < K; ++k) at[k] += index * walk.strides[k][d];
    i = q;
  }
}
template <int K>
__device__ __forceinline__ void Locate(const Walk& walk, int64_t i, int64_t (&at)[K]) {
  if (walk.small) {
    LocateAs(walk, static_cast<uint32_t>(i), at);
  } else {
    LocateAs(walk, i, at);
  }
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
