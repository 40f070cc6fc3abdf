// layer_norm, rms_norm, add_layer_norm: a block per row.
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

// U: of y, which the attribute "out" may choose; R: of the residual, which may be narrow. kKeeps:
// the row is read once and kept in shared memory, where every thread reads back what it wrote; else
// it comes from memory again.
template <typename T, typename U, typename R, bool kCentered, bool kKeeps>
struct NormForward {
  using W = Wide<T>;
  const T *x, *w, *b;    // w and b may be null
  const R* residual;     // may be null
  T *sum, *mean, *rstd;  // sum: x + residual
  U* y;
  int64_t cols;
  W eps;
  bool packed;

  __device__ void operator()(int64_t row) const {
    const T* in = x + row * cols;
    T* kept = kKeeps ? reinterpret_cast<T*>(SharedMemory()) : nullptr;
    W m = 0, squares = 0;
    ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
      auto v = LoadPack<T, n.value>(in + c);
      if (residual) {
        const auto u = LoadPack<R, n.value>(residual + row * cols + c);
        for (int j = 0; j < n.value; ++j) v.v[j] = Narrow<T>(Widen(v.v[j]) + Widen(u.v[j]));
        StorePack<T, n.value>(sum + row * cols + c, v);
      }
      if (kKeeps) StorePack<T, n.value>(kept + c, v);
      for (int j = 0; j < n.value; ++j) {
        if (kCentered) {
          m += Widen(v.v[j]);
        } else {
          squares += Widen(v.v[j]) * Widen(v.v[j]);
        }
      }
    });
    const T* again = kKeeps ? kept : residual ? sum + row * cols : in;
    if (kCentered) {
      m = BlockSum(m) / static_cast<W>(cols);
      ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
        auto v = LoadPack<T, n.value>(again + c);
        for (int j = 0; j < n.value; ++j) squares += (Widen(v.v[j]) - m) * (Widen(v.v[j]) - m);
      });
    }
    W r = W(1) / ::sqrt(BlockSum(squares) / static_cast<W>(cols) + eps);
    ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
      auto v = LoadPack<T, n.value>(again + c);
      Pack<T, n.value> scale = w ? LoadPack<T, n.value>(w + c) : v,
                       shift = b ? LoadPack<T, n.value>(b + c) : v;
      Pack<U, n.value> result;
      for (int j = 0; j < n.value; ++j) {
        W out = (Widen(v.v[j]) - m) * r;
        if (w) out *= Widen(scale.v[j]);
        if (b) out += Widen(shift.v[j]);
        result.v[j] = Narrow<U>(out);
      }
      StorePack<U, n.value>(y + row * cols + c, result);
    });
    if (threadIdx.x == 0) {
      if (mean) mean[row] = Narrow<T>(m);
      rstd[row] = Narrow<T>(r);
    }
  }
};

template <typename T, typename U, typename R, bool kCentered>
KernelPtr Forward(const KernelRequest& r, NormForward<T, U, R, kCentered, true> f) {
  using Keeping = NormForward<T, U, R, kCentered, true>;
  using Again = NormForward<T, U, R, kCentered, false>;
  const TensorView& x = r.call.in[0];
  f.cols = x.shape.back();
  f.eps = static_cast<Wide<T>>(r.call.attrs->Float("eps"));
  f.packed = Packs<T>(f.cols, f.x, f.w, f.b, f.sum) && Aligned(f.y, sizeof(U) * kPack<T>) &&
             Aligned(f.residual, sizeof(R) * kPack<T>);
  const int64_t rows = f.cols == 0 ? 0 : x.num_elements() / f.cols;
  const Grid grid = RowGrid(rows, f.cols);
  const int64_t shared = f.cols * static_cast<int64_t>(sizeof(T));
  auto make = [=](auto rows_kernel, auto each, int64_t bytes) {
    return MakeKernel([=](const Launch& launch) {
      LaunchKernel(launch, rows_kernel, grid.blocks, grid.threads, static_cast<size_t>(bytes), each,
                   rows);
    });
  };
  if (shared > MostShared(RowsKernel<Keeping>)) {
    return make(
        RowsKernel<Again>,
        Again{f.x, f.w, f.b, f.residual, f.sum, f.mean, f.rstd, f.y, f.cols, f.eps, f.packed}, 0);
  }
  AllowShared(RowsKernel<Keeping>, static_cast<size_t>(shared));
  return make(RowsKernel<Keeping>, f, shared);
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
    NormForward<T, U, T, kCentered, true> f{};
    f.x = In<T>(r, 0);
    f.w = MaybeIn<T>(r, 1);
    f.b = MaybeIn<T>(r, 2);
    f.y = Out<U>(r, 0);
    if (kCentered) f.mean = Out<T>(r, 1);
    f.rstd = Out<T>(r, kCentered ? 2 : 1);
    return Forward(r, f);
  });
}
KernelPtr MakeAddLayerNorm(const KernelRequest& r) {
  auto make = [&](auto t, auto narrow, auto u) {
    using T = decltype(t);
    using R = decltype(narrow);
    using U = decltype(u);
    NormForward<T, U, R, true, true> f{};
    f.x = In<T>(r, 0);
    f.residual = In<R>(r, 1);
    f.w = MaybeIn<T>(r, 2);
    f.b = MaybeIn<T>(r, 3);
    f.sum = Out<T>(r, 0);
    f.y = Out<U>(r, 1);
    f.mean = Out<T>(r, 2);
    f.rstd = Out<T>(r, 3);
    return Forward(r, f);
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
