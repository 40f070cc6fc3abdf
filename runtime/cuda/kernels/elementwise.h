// One kernel for every elementwise op: a function of wide values over operands that broadcast.
#pragma once

#include <array>
#include <utility>

#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// A tuple that device code may read.
template <size_t I, typename T>
struct Leaf {
  T value;
};
template <typename Sequence, typename... T>
struct Leaves;
template <size_t... I, typename... T>
struct Leaves<std::index_sequence<I...>, T...> : Leaf<I, T>... {};
template <typename... T>
using Tuple = Leaves<std::index_sequence_for<T...>, T...>;
template <size_t I, typename T>
__device__ __forceinline__ const T& Get(const Leaf<I, T>& leaf) {
  return leaf.value;
}

// walk.strides[0] are the result's, [i + 1] those of operand i.
template <typename Fn, typename To, typename... From>
struct Elementwise {
  static constexpr int kInputs = sizeof...(From);
  static constexpr size_t kWidest = std::max({sizeof(To), sizeof(From)...});
  static constexpr int kN = static_cast<int>(16 / kWidest);
  Walk walk;
  int64_t n;
  bool packed;  // kN at a time; the innermost dim is then a multiple of kN, or the only one
  To* out;
  Tuple<const From*...> in;

  template <typename T>
  static __device__ __forceinline__ Pack<T, kN> Read(const T* p, int64_t stride) {
    if (stride != 0) return LoadPack<T, kN>(p);
    Pack<T, kN> splat;
    for (int j = 0; j < kN; ++j) splat.v[j] = *p;
    return splat;
  }
  template <size_t... I>
  __device__ __forceinline__ void Many(const int64_t (&at)[kInputs + 1],
                                       std::index_sequence<I...>) const {
    const int last = walk.rank - 1;
    const Tuple<Pack<From, kN>...> x{{Read(Get<I>(in) + at[I + 1], walk.strides[I + 1][last])}...};
    Pack<To, kN> y;
    for (int j = 0; j < kN; ++j) y.v[j] = Narrow<To>(Fn()(Widen(Get<I>(x).v[j])...));
    StorePack<To, kN>(out + at[0], y);
  }
  template <size_t... I>
  __device__ __forceinline__ void One(int64_t i, std::index_sequence<I...>) const {
    int64_t at[kInputs + 1];
    Locate(walk, i, at);
    out[at[0]] = Narrow<To>(Fn()(Widen(Get<I>(in)[at[I + 1]])...));
  }
  __device__ void operator()(int64_t item) const {
    constexpr auto kSequence = std::make_index_sequence<kInputs>();
    if (!packed) return One(item, kSequence);
    int64_t begin = item * kN;
    if (begin + kN > n) {
      for (int64_t i = begin; i < n; ++i) One(i, kSequence);
      return;
    }
    int64_t at[kInputs + 1];
    Locate(walk, begin, at);
    Many(at, kSequence);
  }
};

// Whether all operands can be read in packs of N elements.
template <int N, size_t K>
bool CanPack(const Walk& walk, const std::array<size_t, K>& sizes,
             const std::array<const void*, K>& pointers) {
  if (N == 1 || walk.rank == 0) return false;
  const int last = walk.rank - 1;
  if (walk.rank > 1 && walk.dims[last] % N != 0) return false;
  for (size_t k = 0; k < K; ++k) {
    int64_t inner = walk.strides[k][last];
    if (inner != 1 && (k == 0 || inner != 0)) return false;
    if (inner == 0) continue;
    if (!Aligned(pointers[k], sizes[k] * N)) return false;
    for (int d = 0; d < last; ++d) {
      if (walk.strides[k][d] % N != 0) return false;
    }
  }
  return true;
}

template <typename Fn, typename To, typename... From>
KernelPtr MakeElementwise(const KernelRequest& r) {
  using F = Elementwise<Fn, To, From...>;
  const TensorView& out = r.call.out[0];
  if (r.call.in.size() != sizeof...(From)) return nullptr;
  std::vector<Ints> strides = {DenseStrides(out.shape)};
  for (const TensorView& x : r.call.in) strides.push_back(StretchedStrides(x.shape, out.shape));
  auto walk = MakeWalk(out.shape, strides);
  if (!walk) return nullptr;
  return [&]<size_t... I>(std::index_sequence<I...>) {
    F f{*walk, out.num_elements(), false, Out<To>(r, 0), {{In<From>(r, I)}...}};
    f.packed = CanPack<F::kN, sizeof...(I) + 1>(*walk, {sizeof(To), sizeof(From)...},
                                                {out.data, r.call.in[I].data...});
    Grid grid = ElementGrid(f.packed ? CeilDiv(f.n, F::kN) : f.n);
    int64_t items = f.packed ? CeilDiv(f.n, F::kN) : f.n;
    return MakeKernel([f, grid, items](const Launch& launch) {
      LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, items);
    });
  }
  (std::make_index_sequence<sizeof...(From)>());
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
