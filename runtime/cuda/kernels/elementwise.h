// One kernel for every elementwise op: a function of wide values over operands that broadcast.
#pragma once

#include <type_traits>
#include <utility>

#include "runtime/cuda/kernels/elementwise_walk.h"
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

// One of several functions, chosen at launch: what a kernel has around its function is most of what
// nvcc compiles, and is so compiled once for all of them.
template <typename... Fns>
struct OneOf {
  int which = 0;

  template <typename Fn>
  static constexpr OneOf Of() {
    int i = 0, which = -1;
    ((std::is_same_v<Fn, Fns> ? which = i++ : i++), ...);
    return {which};
  }
  // use(Fn()) for the chosen one.
  template <typename Use>
  __device__ __forceinline__ void Apply(const Use& use) const {
    int i = 0;
    (void)((which == i++ && (use(Fns()), true)) || ...);
  }
};

// walk.strides[0] are the result's, [i + 1] those of operand i. Fns: a OneOf.
template <typename Fns, typename To, typename... From>
struct Elementwise {
  static constexpr int kInputs = sizeof...(From);
  static constexpr size_t kWidest = std::max({sizeof(To), sizeof(From)...});
  static constexpr int kN = static_cast<int>(16 / kWidest);
  // More elements, operands or digits need more registers.
  static constexpr int kBlocks = kN <= 8 && kInputs <= 2 && kWidest < 8 ? 5 : 2;
  using Math = MathOf<To, From...>;
  Walk walk;
  int64_t n;
  bool packed;  // kN at a time; the innermost dim is then a multiple of kN, or the only one
  To* out;
  Tuple<const From*...> in;
  Fns fns;

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
    const Tuple<Pack<Wide<From>, kN>...> x{
        {WidenPack(Read(Get<I>(in) + at[I + 1], walk.strides[I + 1][last]))}...};
    Pack<Wide<To>, kN> y;
    fns.Apply([&](auto fn) {
      for (int j = 0; j < kN; ++j) y.v[j] = Compute<Math>(fn, Get<I>(x).v[j]...);
    });
    StorePack(out + at[0], NarrowPack<To>(y));
  }
  template <size_t... I>
  __device__ __forceinline__ void One(const int64_t (&at)[kInputs + 1], int64_t j,
                                      std::index_sequence<I...>) const {
    const int last = walk.rank > 0 ? walk.rank - 1 : 0;
    fns.Apply([&](auto fn) {
      out[at[0] + j] = Narrow<To>(
          Compute<Math>(fn, Widen(Get<I>(in)[at[I + 1] + j * walk.strides[I + 1][last]])...));
    });
  }
  // Locate and the functions are here as few times as can be, for the sake of nvcc.
  __device__ void operator()(int64_t item) const {
    constexpr auto kSequence = std::make_index_sequence<kInputs>();
    const int64_t begin = packed ? item * kN : item;
    int64_t at[kInputs + 1];
    Locate(walk, begin, at);
    if (packed && begin + kN <= n) return Many(at, kSequence);
    // The end of a packed array has one dim (CanPack).
    const int64_t count = packed ? n - begin : 1;
    for (int64_t j = 0; j < count; ++j) One(at, j, kSequence);
  }
};

// As ElementsKernel, with registers for so many blocks on a multiprocessor that others make up for
// what one waits for.
template <typename F>
__global__ void __launch_bounds__(kElementThreads, F::kBlocks)
    ElementwiseKernel(const __grid_constant__ F f, int64_t items) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < items; i += step) f(i);
}

template <typename To, typename... From, typename Fns>
KernelPtr MakeElementwise(const KernelRequest& r, Fns fns) {
  using F = Elementwise<Fns, To, From...>;
  static constexpr size_t kSizes[] = {sizeof(To), sizeof(From)...};
  auto walk = ElementwiseWalk(r.call, sizeof...(From));
  if (!walk) return nullptr;
  return [&]<size_t... I>(std::index_sequence<I...>) {
    const bool packed = CanPack(r.call, *walk, F::kN, kSizes);
    F f{*walk, r.call.out[0].num_elements(), packed, Out<To>(r, 0), {{In<From>(r, I)}...}, fns};
    return MakeKernel([f](const Launch& launch) {
      int64_t items = f.packed ? CeilDiv(f.n, F::kN) : f.n;
      Grid grid = ElementGrid(items);
      LaunchKernel(launch, ElementwiseKernel<F>, grid.blocks, grid.threads, 0, f, items);
    });
  }
  (std::make_index_sequence<sizeof...(From)>());
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
