// rotary: each element is read once and written once, the angles' cos and sin by every row that has
// them (neighbouring heads, mostly: from the cache).
#include "runtime/cuda/kernels/rotary.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

// An item is N pairs (i, i + pairs), or those of N neighbours, or N elements behind what is turned.
// T, U and C: of x, of y and of the tables.
template <typename T, typename U, typename C, int N>
struct Rotary {
  using W = Wide<T>;
  static constexpr int kPairs = N > 1 ? N / 2 : 1;  // of neighbours
  Walk walk;  // rows, then items; strides of x's rows, of the tables' rows, and of items
  const T* x;
  U* y;
  const C *cos, *sin;
  int64_t pairs, turned;  // items of a row that are turned
  bool interleaved;
  W sign;

  template <int M>
  __device__ __forceinline__ void Table(const C* table, Pack<W, M>* out) const {
    const Pack<Wide<C>, M> wide = WidenPack(LoadPack<C, M>(table));
    for (int j = 0; j < M; ++j) out->v[j] = static_cast<W>(wide.v[j]);
  }
  __device__ __forceinline__ void Halves(int64_t at, const C* c, const C* s) const {
    Pack<W, N> first = WidenPack(LoadPack<T, N>(x + at)),
               second = WidenPack(LoadPack<T, N>(x + at + pairs)), cosines, sines;
    Table(c, &cosines);
    Table(s, &sines);
    for (int j = 0; j < N; ++j) {
      const auto z = Turn(first.v[j], second.v[j], cosines.v[j], sign * sines.v[j]);
      first.v[j] = z.first;
      second.v[j] = z.second;
    }
    StorePack(y + at, NarrowPack<U>(first));
    StorePack(y + at + pairs, NarrowPack<U>(second));
  }
  __device__ __forceinline__ void Neighbours(int64_t at, const C* c, const C* s) const {
    Pack<W, kPairs> cosines, sines;
    Table(c, &cosines);
    Table(s, &sines);
    if constexpr (N == 1) {  // a row may begin anywhere
      const auto z = Turn(Widen(x[at]), Widen(x[at + 1]), cosines.v[0], sign * sines.v[0]);
      y[at] = Narrow<U>(z.first);
      y[at + 1] = Narrow<U>(z.second);
    } else {
      Pack<W, N> both = WidenPack(LoadPack<T, N>(x + at));
      for (int j = 0; j < kPairs; ++j) {
        const auto z = Turn(both.v[2 * j], both.v[2 * j + 1], cosines.v[j], sign * sines.v[j]);
        both.v[2 * j] = z.first;
        both.v[2 * j + 1] = z.second;
      }
      StorePack(y + at, NarrowPack<U>(both));
    }
  }
  __device__ void operator()(int64_t i) const {
    int64_t at[4];
    Locate(walk, i, at);
    const int64_t item = at[3];
    if (item >= turned) {
      const int64_t rest = at[0] + 2 * pairs + (item - turned) * N;
      StorePack(y + rest, NarrowPack<U>(WidenPack(LoadPack<T, N>(x + rest))));
    } else if (interleaved) {
      const int64_t first = item * kPairs;
      Neighbours(at[0] + 2 * first, cos + at[1] + first, sin + at[2] + first);
    } else {
      const int64_t first = item * N;
      Halves(at[0] + first, cos + at[1] + first, sin + at[2] + first);
    }
  }
};

// Strides of the rows of a tensor, as they broadcast to those of x.
std::vector<int64_t> RowStrides(const TensorView& v, const TensorView& x) {
  auto rows = [](const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); };
  std::vector<int64_t> strides = BroadcastStrides(rows(v.shape), rows(x.shape));
  for (int64_t& stride : strides) stride *= v.shape.back();
  return strides;
}

// Whether all that is read and written together lies so that it can be.
bool Fits(const KernelRequest& r, int64_t n) {
  const bool interleaved = r.call.attrs->Bool("interleaved");
  const int64_t cols = r.call.in[0].shape.back(), pairs = r.call.in[1].shape.back();
  const int64_t angles = interleaved ? std::max<int64_t>(n / 2, 1) : n;
  auto aligned = [](const TensorView& v, int64_t elements) {
    return Aligned(v.data, static_cast<size_t>(elements * DTypeSize(v.dtype)));
  };
  return cols % n == 0 && pairs % angles == 0 && aligned(r.call.in[0], n) &&
         aligned(r.call.out[0], n) && aligned(r.call.in[1], angles) &&
         aligned(r.call.in[2], angles);
}

template <typename T, typename U, typename C, int N>
KernelPtr MakeOf(const KernelRequest& r) {
  if constexpr (N > 1) {
    if (!Fits(r, N)) return MakeOf<T, U, C, N / 2>(r);
  }
  using F = Rotary<T, U, C, N>;
  const TensorView &x = r.call.in[0], &cos = r.call.in[1], &sin = r.call.in[2];
  F f{};
  f.x = In<T>(r, 0);
  f.y = Out<U>(r, 0);
  f.cos = In<C>(r, 1);
  f.sin = In<C>(r, 2);
  f.pairs = cos.shape.back();
  f.interleaved = r.call.attrs->Bool("interleaved");
  f.sign = static_cast<typename F::W>(r.call.attrs->Bool("inverse") ? -1 : 1);
  f.turned = f.pairs / (f.interleaved ? F::kPairs : N);
  // What is not turned lies where it should already, in place.
  const int64_t rest =
      static_cast<const void*>(f.x) == f.y ? 0 : (x.shape.back() - 2 * f.pairs) / N;
  Shape dims = x.shape;
  dims.back() = f.turned + rest;
  std::vector<std::vector<int64_t>> strides = {RowStrides(x, x), RowStrides(cos, x),
                                               RowStrides(sin, x), Shape(dims.size() - 1, 0)};
  for (size_t k = 0; k < strides.size(); ++k) strides[k].push_back(k == 3 ? 1 : 0);
  const auto walk = MakeWalk(dims, strides);
  if (!walk) return nullptr;
  f.walk = *walk;
  const int64_t items = NumElements(dims);
  if (items == 0) return NoWork();
  return MakeKernel([f, items, grid = ElementGrid(items)](const Launch& launch) {
    LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, items);
  });
}

// x, cos, sin -> y
KernelPtr MakeRotary(const KernelRequest& r) {
  const DType x = r.call.in[0].dtype, table = r.call.in[1].dtype;
  return DispatchFloats(x, r.call.out[0].dtype, [&](auto t, auto u) -> KernelPtr {
    using T = decltype(t);
    using U = decltype(u);
    constexpr int kN = std::min(kPack<T>, kPack<U>);
    if constexpr (std::is_same_v<T, U>) {
      if (table == x) return MakeOf<T, U, T, kN>(r);
    }
    if constexpr (sizeof(T) == 2 || sizeof(U) == 2) {
      if (table == DType::kF32) return MakeOf<T, U, float, kN>(r);
    }
    return nullptr;
  });
}

constexpr Binding kBindings[] = {{"rotary", MakeRotary}};

}  // namespace

std::span<const Binding> RotaryBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
