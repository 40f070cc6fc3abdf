// layer_norm, rms_norm, add_layer_norm.
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

// U: of y, which the attribute "out" may choose; R: of the residual, which may be narrow.
template <typename T, typename U, typename R>
struct Norm {
  const T *x, *w, *b;    // w and b may be null
  const R* residual;     // may be null
  T *sum, *mean, *rstd;  // sum: x + residual; mean: null for rms_norm
  U* y;
  int64_t cols;
  Wide<T> eps;

  __device__ __forceinline__ Wide<T> Deviation(Wide<T> squares) const {
    return Wide<T>(1) / ::sqrt(BlockSum(squares) / static_cast<Wide<T>>(cols) + eps);
  }
  template <int kN>
  __device__ __forceinline__ void Write(int64_t row, int64_t c, const Pack<T, kN>& v, Wide<T> m,
                                        Wide<T> r) const {
    const Pack<T, kN> scale = w ? LoadPack<T, kN>(w + c) : v,
                      shift = b ? LoadPack<T, kN>(b + c) : v;
    Pack<U, kN> result;
    for (int j = 0; j < kN; ++j) {
      result.v[j] = Narrow<U>(NormValue((Widen(v.v[j]) - m) * r, w ? Widen(scale.v[j]) : Wide<T>(1),
                                        b ? Widen(shift.v[j]) : Wide<T>(0)));
    }
    StorePack<U, kN>(y + row * cols + c, result);
  }
  __device__ __forceinline__ void WriteStatistics(int64_t row, Wide<T> m, Wide<T> r) const {
    if (threadIdx.x != 0) return;
    if (mean) mean[row] = Narrow<T>(m);
    rstd[row] = Narrow<T>(r);
  }
};

template <typename W, int kN, typename T>
__device__ __forceinline__ void AddSquares(const Pack<T, kN>& v, W m, W& squares) {
  for (int j = 0; j < kN; ++j) squares += (Widen(v.v[j]) - m) * (Widen(v.v[j]) - m);
}
template <typename T, typename R, int kN>
__device__ __forceinline__ void Add(Pack<T, kN>& v, const Pack<R, kN>& u) {
  for (int j = 0; j < kN; ++j) v.v[j] = Narrow<T>(Widen(v.v[j]) + Widen(u.v[j]));
}

// Rows of at most kMostPacks packs a thread, which stay in registers. One warp has a row of GPT-2:
// what is done once a row, and by each warp of it, takes longer than what is done for the elements.
template <typename T>
constexpr int kMostPacks = std::min(8, 32 / kPack<T>);
template <typename T, typename U, typename R, bool kCentered>
struct ShortRows {
  using W = Wide<T>;
  static constexpr int kN = kPack<T>;
  Norm<T, U, R> f;

  __device__ void operator()(int64_t row) const {
    const int cols = static_cast<int>(f.cols), first = static_cast<int>(threadIdx.x) * kN,
              step = static_cast<int>(blockDim.x) * kN;
    Pack<T, kN> v[kMostPacks<T>] = {};
    LoadedPack<R, kN> u[kMostPacks<T>];
    SHARDC_UNROLL
    for (int k = 0; k < kMostPacks<T>; ++k) {
      const int c = first + k * step;
      if (c >= cols) continue;
      v[k] = LoadPack<T, kN>(f.x + row * cols + c);
      if (f.residual) u[k].Load(f.residual + row * cols + c);
    }
    W m = 0, squares = 0;
    SHARDC_UNROLL
    for (int k = 0; k < kMostPacks<T>; ++k) {
      const int c = first + k * step;
      if (c >= cols) continue;
      if (f.residual) {
        Add(v[k], u[k].Get());
        StorePack<T, kN>(f.sum + row * cols + c, v[k]);
      }
      if (!kCentered) AddSquares(v[k], W(0), squares);
      for (int j = 0; j < kN; ++j) m += kCentered ? Widen(v[k].v[j]) : W(0);
    }
    if (kCentered) {
      m = BlockSum(m) / static_cast<W>(cols);
      SHARDC_UNROLL
      for (int k = 0; k < kMostPacks<T>; ++k) {
        if (first + k * step < cols) AddSquares(v[k], m, squares);
      }
    }
    const W r = f.Deviation(squares);
    SHARDC_UNROLL
    for (int k = 0; k < kMostPacks<T>; ++k) {
      const int c = first + k * step;
      if (c < cols) f.Write(row, c, v[k], m, r);
    }
    f.WriteStatistics(row, m, r);
  }
};

// Rows of any width, which come from memory again.
template <typename T, typename U, typename R, bool kCentered>
struct LongRows {
  using W = Wide<T>;
  Norm<T, U, R> f;
  bool packed;

  __device__ void operator()(int64_t row) const {
    const T* in = f.x + row * f.cols;
    W m = 0, squares = 0;
    ForColumns<T>(f.cols, packed, [&](auto n, int64_t c) {
      auto v = LoadPack<T, n.value>(in + c);
      if (f.residual) {
        Add(v, LoadPack<R, n.value>(f.residual + row * f.cols + c));
        StorePack<T, n.value>(f.sum + row * f.cols + c, v);
      }
      if (!kCentered) AddSquares(v, W(0), squares);
      for (int j = 0; j < n.value; ++j) m += kCentered ? Widen(v.v[j]) : W(0);
    });
    const T* again = f.residual ? f.sum + row * f.cols : in;
    if (kCentered) {
      m = BlockSum(m) / static_cast<W>(f.cols);
      ForColumns<T>(f.cols, packed, [&](auto n, int64_t c) {
        AddSquares(LoadPack<T, n.value>(again + c), m, squares);
      });
    }
    const W r = f.Deviation(squares);
    ForColumns<T>(f.cols, packed, [&](auto n, int64_t c) {
      f.Write(row, c, LoadPack<T, n.value>(again + c), m, r);
    });
    f.WriteStatistics(row, m, r);
  }
};

template <typename Rows>
KernelPtr PerRow(const Rows& each, int64_t rows, const Grid& grid) {
  return MakeKernel([=](const Launch& launch) {
    LaunchKernel(launch, RowsKernel<Rows>, grid.blocks, grid.threads, 0, each, rows);
  });
}
template <bool kCentered, typename T, typename U, typename R>
KernelPtr Forward(const KernelRequest& r, Norm<T, U, R> f) {
  const TensorView& x = r.call.in[0];
  f.cols = x.shape.back();
  f.eps = static_cast<Wide<T>>(r.call.attrs->Float("eps"));
  const bool packed = Packs<T>(f.cols, f.x, f.w, f.b, f.sum) &&
                      Aligned(f.y, sizeof(U) * kPack<T>) &&
                      Aligned(f.residual, sizeof(R) * kPack<T>);
  const int64_t rows = f.cols == 0 ? 0 : x.num_elements() / f.cols;
  Grid grid = RowGrid(rows, f.cols);
  const int threads = RowThreads(f.cols, kMostPacks<T> * kPack<T>);
  // A warp that has one pack a thread of its row would hold empty registers for the others.
  const bool narrow = f.cols < 2 * 32 * kPack<T>;
  if (!packed || narrow || threads > kRowThreads) {
    return PerRow(LongRows<T, U, R, kCentered>{f, packed}, rows, grid);
  }
  grid.threads = threads;
  return PerRow(ShortRows<T, U, R, kCentered>{f}, rows, grid);
}
template <typename T>
const T* MaybeIn(const KernelRequest& r, size_t i) {
  return r.call.in.size() > i ? In<T>(r, i) : nullptr;
}

template <bool kCentered>
KernelPtr MakeNorm(const KernelRequest& r) {
  return DispatchFloats(r.call.in[0].dtype, r.call.out[0].dtype, [&](auto t, auto u) {
    using T = decltype(t);
    using U = decltype(u);
    Norm<T, U, T> f{};
    f.x = In<T>(r, 0);
    f.w = MaybeIn<T>(r, 1);
    f.b = MaybeIn<T>(r, 2);
    f.y = Out<U>(r, 0);
    if (kCentered) f.mean = Out<T>(r, 1);
    f.rstd = Out<T>(r, kCentered ? 2 : 1);
    return Forward<kCentered>(r, f);
  });
}
KernelPtr MakeAddLayerNorm(const KernelRequest& r) {
  auto make = [&](auto t, auto narrow, auto u) {
    using T = decltype(t);
    using R = decltype(narrow);
    using U = decltype(u);
    Norm<T, U, R> f{};
    f.x = In<T>(r, 0);
    f.residual = In<R>(r, 1);
    f.w = MaybeIn<T>(r, 2);
    f.b = MaybeIn<T>(r, 3);
    f.sum = Out<T>(r, 0);
    f.y = Out<U>(r, 1);
    f.mean = Out<T>(r, 2);
    f.rstd = Out<T>(r, 3);
    return Forward<true>(r, f);
  };
  return DispatchMixed(r.call.in[0].dtype, r.call.in[1].dtype, r.call.out[1].dtype, make);
}

constexpr Binding kBindings[] = {
    {"layer_norm", MakeNorm<true>},
    {"rms_norm", MakeNorm<false>},
    {"add_layer_norm", MakeAddLayerNorm},
};

}  // namespace

std::span<const Binding> NormBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
