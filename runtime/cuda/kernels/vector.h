// Several elements at a time, and walks over strided boxes.
#pragma once

#include "runtime/cuda/kernels/bind.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// N elements that are read and written together.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

// What only moves, in one instruction: without its alignment it would be moved in halves, each of
// which reaches all of a warp's sectors.
struct alignas(16) Bytes16 {
  uint64_t low, high;
};

// As many words as the GPU moves in one instruction.
template <size_t kBytes>
inline constexpr size_t kWords = (kBytes < 16 ? kBytes : 16) / sizeof(uint32_t);
template <size_t kBytes>
struct Words {
  uint32_t v[kBytes / 4 / kWords<kBytes>][kWords<kBytes>];
};

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> LoadPack(const T* p) {
  constexpr size_t kBytes = sizeof(Pack<T, N>);
  CheckAligned(p, kBytes);
  if constexpr (kBytes % 8 == 0) {
    Words<kBytes> words;
    for (size_t i = 0; i < kBytes / 4 / kWords<kBytes>; ++i) {
      LoadWords(reinterpret_cast<const std::byte*>(p) + 16 * i, words.v[i]);
    }
    return BitCast<Pack<T, N>>(words);
  } else {
    return *reinterpret_cast<const Pack<T, N>*>(p);
  }
}
template <typename T, int N>
__device__ __forceinline__ void StorePack(T* p, const Pack<T, N>& pack) {
  constexpr size_t kBytes = sizeof(Pack<T, N>);
  CheckAligned(p, kBytes);
  if constexpr (kBytes % 8 == 0) {
    const auto words = BitCast<Words<kBytes>>(pack);
    for (size_t i = 0; i < kBytes / 4 / kWords<kBytes>; ++i) {
      StoreWords(reinterpret_cast<std::byte*>(p) + 16 * i, words.v[i]);
    }
  } else {
    *reinterpret_cast<Pack<T, N>*>(p) = pack;
  }
}

template <typename T, int N>
inline constexpr bool kPairs = std::is_same_v<T, BF16>&& N % 2 == 0;
template <typename T, int N>
__device__ __forceinline__ Pack<Wide<T>, N> WidenPack(const Pack<T, N>& pack) {
  Pack<Wide<T>, N> wide;
  if constexpr (kPairs<T, N>) {
    const auto words = BitCast<Pack<uint32_t, N / 2>>(pack);
    for (int j = 0; j < N; j += 2) WidenPair(words.v[j / 2], &wide.v[j], &wide.v[j + 1]);
  } else {
    for (int j = 0; j < N; ++j) wide.v[j] = Widen(pack.v[j]);
  }
  return wide;
}
template <typename T, typename W, int N>
__device__ __forceinline__ Pack<T, N> NarrowPack(const Pack<W, N>& wide) {
  if constexpr (kPairs<T, N>) {
    Pack<uint32_t, N / 2> out;
    for (int j = 0; j < N; j += 2) out.v[j / 2] = NarrowPair(wide.v[j], wide.v[j + 1]);
    return BitCast<Pack<T, N>>(out);
  } else {
    Pack<T, N> pack;
    for (int j = 0; j < N; ++j) pack.v[j] = Narrow<T>(wide.v[j]);
    return pack;
  }
}

// A pack as it is loaded: halves in words, since each load is waited for whose halves are taken
// apart at once.
template <typename T, int N>
struct LoadedPack {
  using Word = std::conditional_t<sizeof(T) == 2 && N % 2 == 0, uint32_t, T>;
  static constexpr int kWords = static_cast<int>(N * sizeof(T) / sizeof(Word));
  Pack<Word, kWords> words = {};
  __device__ __forceinline__ void Load(const T* p) {
    words = LoadPack<Word, kWords>(reinterpret_cast<const Word*>(p));
  }
  __device__ __forceinline__ Pack<T, N> Get() const { return BitCast<Pack<T, N>>(words); }
};

// Elements of 16 bytes.
template <typename T>
inline constexpr int kPack = static_cast<int>(16 / sizeof(T));

// f(0) ... f(count - 1), of at most kMost, with numbers that the compiler knows: arrays stay in
// registers.
template <int kMost, typename F>
__device__ __forceinline__ void ForEach(int count, const F& f) {
  SHARDC_UNROLL
  for (int j = 0; j < kMost; ++j) {
    if (j < count) f(j);
  }
}

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

// For elements [first, first + count) of an array that begins at a pack, wherever they begin, over
// the threads of the block: use(n, c, load(n, c)) with packs of elements from first + c on, and
// with single ones before the first whole pack and after the last. Several loads are under way at
// once.
template <typename T, typename Load, typename Use>
__device__ __forceinline__ void ForStretch(int64_t first, int64_t count, bool packed, Load load,
                                           Use use) {
  constexpr int64_t kN = kPack<T>;
  constexpr uint32_t kAhead = 4;
  constexpr std::integral_constant<int, kN> kMany;
  constexpr std::integral_constant<int, 1> kOne;
  int64_t head = packed ? (kN - first % kN) % kN : count;
  if (head > count) head = count;
  const int64_t packs = (count - head) / kN, singles = count - packs * kN;
  const uint32_t step = blockDim.x, whole = static_cast<uint32_t>(packs);
  auto batch = [&](uint32_t p, auto all) {
    Pack<T, kN> ahead[kAhead];
    SHARDC_UNROLL
    for (uint32_t u = 0; u < kAhead; ++u) {
      const uint32_t q = p + u * step;
      ahead[u] = load(kMany, head + int64_t{all.value || q < whole ? q : whole - 1} * kN);
    }
    SHARDC_UNROLL
    for (uint32_t u = 0; u < kAhead; ++u) {
      const uint32_t q = p + u * step;
      if (all.value || q < whole) use(kMany, head + int64_t{q} * kN, ahead[u]);
    }
  };
  uint32_t p = threadIdx.x;
  for (; p + (kAhead - 1) * step < whole; p += kAhead * step) batch(p, std::true_type());
  if (p < whole) batch(p, std::false_type());
  for (int64_t i = threadIdx.x; i < singles; i += step) {
    const int64_t c = i < head ? i : i + packs * kN;
    use(kOne, c, load(kOne, c));
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
  if (walk.rank == 1) {  // most are, and the loop takes longer than what is done for an element
    for (int k = 0; k < K; ++k) at[k] = i * walk.strides[k][0];
  } else if (walk.small) {
    LocateAs(walk, static_cast<uint32_t>(i), at);
  } else {
    LocateAs(walk, i, at);
  }
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
