// layer_norm, rms_norm, their gradients, add_layer_norm. A block per row; the weights' gradients
// are summed over chunks of rows, then over the chunks, so that the order of additions never
// changes.
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

// U: of y, which the attribute "out" may choose.
template <typename T, typename U, bool kCentered>
struct NormForward {
  using W = Wide<T>;
  const T *x, *residual, *w, *b;  // residual, w and b may be null
  T *sum, *mean, *rstd;           // sum: x + residual
  U* y;
  int64_t cols;
  W eps;
  bool packed;

  __device__ void operator()(int64_t row) const {
    const T* in = x + row * cols;
    if (residual) {
      ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
        auto v = LoadPack<T, n.value>(in + c), u = LoadPack<T, n.value>(residual + row * cols + c);
        for (int j = 0; j < n.value; ++j) v.v[j] = Narrow<T>(Widen(v.v[j]) + Widen(u.v[j]));
        StorePack<T, n.value>(sum + row * cols + c, v);
      });
      in = sum + row * cols;  // every thread reads back what it wrote
    }
    W m = 0, squares = 0;
    if (kCentered) {
      ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
        auto v = LoadPack<T, n.value>(in + c);
        for (int j = 0; j < n.value; ++j) m += Widen(v.v[j]);
      });
      m = BlockSum(m) / static_cast<W>(cols);
    }
    ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
      auto v = LoadPack<T, n.value>(in + c);
      for (int j = 0; j < n.value; ++j) squares += (Widen(v.v[j]) - m) * (Widen(v.v[j]) - m);
    });
    W r = W(1) / ::sqrt(BlockSum(squares) / static_cast<W>(cols) + eps);
    ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
      auto v = LoadPack<T, n.value>(in + c);
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

template <typename T, typename U, bool kCentered>
KernelPtr Forward(const KernelRequest& r, NormForward<T, U, kCentered> f) {
  const TensorView& x = r.call.in[0];
  f.cols = x.shape.back();
  f.eps = static_cast<Wide<T>>(r.call.attrs->Float("eps"));
  f.packed =
      Packs<T>(f.cols, f.x, f.residual, f.w, f.b, f.sum) && Aligned(f.y, sizeof(U) * kPack<T>);
  int64_t rows = f.cols == 0 ? 0 : x.num_elements() / f.cols;
  return MakeKernel([f, rows, grid = RowGrid(rows, f.cols)](const Launch& launch) {
    LaunchKernel(launch, RowsKernel<NormForward<T, U, kCentered>>, grid.blocks, grid.threads, 0, f,
                 rows);
  });
}
template <typename T>
const T* MaybeIn(const KernelRequest& r, size_t i) {
  return r.call.in.size() > i ? In<T>(r, i) : nullptr;
}
template <typename T>
T* MaybeOut(const KernelRequest& r, size_t i) {
  return r.call.out.size() > i ? Out<T>(r, i) : nullptr;
}

template <bool kCentered>
KernelPtr MakeNorm(const KernelRequest& r) {
  return DispatchFloats(r.call.in[0].dtype, r.call.out[0].dtype, [&](auto t, auto u) {
    using T = decltype(t);
    using U = decltype(u);
    NormForward<T, U, kCentered> f{};
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
  return DispatchFloats(r.call.in[0].dtype, r.call.out[1].dtype, [&](auto t, auto u) {
    using T = decltype(t);
    using U = decltype(u);
    NormForward<T, U, true> f{};
    f.x = In<T>(r, 0);
    f.residual = In<T>(r, 1);
    f.w = MaybeIn<T>(r, 2);
    f.b = MaybeIn<T>(r, 3);
    f.sum = Out<T>(r, 0);
    f.y = Out<U>(r, 1);
    f.mean = Out<T>(r, 2);
    f.rstd = Out<T>(r, 3);
    return Forward(r, f);
  });
}

template <typename T>
struct NormBackward {
  using W = Wide<T>;
  const T *dy, *x, *mean, *rstd, *w;  // mean: null for rms_norm
  T *dx, *dw, *db;
  int64_t rows, cols;
  bool packed;
  __device__ void operator()(int64_t row) const {
    const T *d = dy + row * cols, *in = x + row * cols;
    const W m = mean ? Widen(mean[row]) : W(0), r = Widen(rstd[row]);
    W sum = 0, product = 0;
    ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
      auto g = LoadPack<T, n.value>(d + c), v = LoadPack<T, n.value>(in + c);
      Pack<T, n.value> scale = w ? LoadPack<T, n.value>(w + c) : g;
      for (int j = 0; j < n.value; ++j) {
        W each = w ? Widen(g.v[j]) * Widen(scale.v[j]) : Widen(g.v[j]);
        sum += each;
        product += each * ((Widen(v.v[j]) - m) * r);
      }
    });
    sum = mean ? BlockSum(sum) / static_cast<W>(cols) : W(0);
    product = BlockSum(product) / static_cast<W>(cols);
    ForColumns<T>(cols, packed, [&](auto n, int64_t c) {
      auto g = LoadPack<T, n.value>(d + c), v = LoadPack<T, n.value>(in + c);
      Pack<T, n.value> scale = w ? LoadPack<T, n.value>(w + c) : g;
      for (int j = 0; j < n.value; ++j) {
        W each = w ? Widen(g.v[j]) * Widen(scale.v[j]) : Widen(g.v[j]);
        v.v[j] = Narrow<T>(r * (each - sum - (Widen(v.v[j]) - m) * r * product));
      }
      StorePack<T, n.value>(dx + row * cols + c, v);
    });
  }
};

// A thread per (chunk of rows, column): sums of dy * xhat, and of dy.
template <typename T>
struct WeightGradChunks {
  using W = Wide<T>;
  NormBackward<T> n;
  int64_t rows_per_chunk;
  W *dw, *db;  // [chunks, cols]; db may be null
  __device__ void operator()(int64_t item) const {
    int64_t c = item % n.cols, begin = item / n.cols * rows_per_chunk, end = begin + rows_per_chunk;
    if (end > n.rows) end = n.rows;
    W product = 0, sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      W d = Widen(n.dy[row * n.cols + c]), m = n.mean ? Widen(n.mean[row]) : W(0);
      product += d * ((Widen(n.x[row * n.cols + c]) - m) * Widen(n.rstd[row]));
      sum += d;
    }
    dw[item] = product;
    if (db) db[item] = sum;
  }
};
// The same by tiles of columns, see TilePlan.
template <typename T>
struct WeightGradTiles {
  using W = Wide<T>;
  static constexpr int kN = kPack<T>;
  NormBackward<T> n;
  TilePlan plan;
  W *dw, *db;  // [chunks, cols]; db may be null
  __device__ void operator()(int64_t item) const {
    __shared__ W products[kTileWarps][32 * kN], sums[kTileWarps][32 * kN];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t c = item / plan.tiles, first = item % plan.tiles * 32 * kN,
                  column = first + lane * kN;
    int64_t end = (c + 1) * plan.chunk;
    if (end > n.rows) end = n.rows;
    W product[kN] = {}, sum[kN] = {};
    if (column < n.cols) {
      SHARDC_UNROLL_BY(4)
      for (int64_t row = c * plan.chunk + warp; row < end; row += kTileWarps) {
        const auto g = LoadPack<T, kN>(n.dy + row * n.cols + column),
                   v = LoadPack<T, kN>(n.x + row * n.cols + column);
        const W m = n.mean ? Widen(n.mean[row]) : W(0), r = Widen(n.rstd[row]);
        for (int j = 0; j < kN; ++j) {
          product[j] += Widen(g.v[j]) * ((Widen(v.v[j]) - m) * r);
          sum[j] += Widen(g.v[j]);
        }
      }
    }
    for (int j = 0; j < kN; ++j) {
      products[warp][lane * kN + j] = product[j];
      sums[warp][lane * kN + j] = sum[j];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 32 * kN && first + i < n.cols;
         i += static_cast<int>(blockDim.x)) {
      W w = 0, b = 0;
      for (int k = 0; k < kTileWarps; ++k) {
        w += products[k][i];
        b += sums[k][i];
      }
      dw[c * n.cols + first + i] = w;
      if (db) db[c * n.cols + first + i] = b;
    }
    __syncthreads();
  }
};
template <typename T>
struct WeightGradSum {
  const Wide<T>*dw, *db;
  T *dw_out, *db_out;
  int64_t chunks, cols;
  __device__ void operator()(int64_t c) const {
    Wide<T> product = 0, sum = 0;
    for (int64_t k = 0; k < chunks; ++k) {
      product += dw[k * cols + c];
      if (db) sum += db[k * cols + c];
    }
    dw_out[c] = Narrow<T>(product);
    if (db) db_out[c] = Narrow<T>(sum);
  }
};

// dx may take the place of dy or x, so that the weights' gradients come first.
template <typename T>
KernelPtr Backward(const NormBackward<T>& f) {
  const ColumnPlan plan = PlanColumns(f.rows, f.cols);
  const std::optional<TilePlan> tiles =
      f.packed ? PlanTiles(f.rows, f.cols, kPack<T>) : std::nullopt;
  const int64_t chunks = tiles ? tiles->chunks : plan.chunks, items = chunks * f.cols;
  int64_t bytes = f.dw ? items * static_cast<int64_t>(sizeof(Wide<T>)) * (f.db ? 2 : 1) : 0;
  auto run = [=](const Launch& launch) {
    if (f.dw) {
      auto* dw = reinterpret_cast<Wide<T>*>(launch.workspace);
      auto* db = f.db ? dw + items : nullptr;
      if (tiles) {
        const int64_t blocks = tiles->tiles * tiles->chunks;
        LaunchKernel(launch, RowsKernel<WeightGradTiles<T>>, blocks, 32 * kTileWarps, 0,
                     WeightGradTiles<T>{f, *tiles, dw, db}, blocks);
      } else {
        Grid grid = ElementGrid(items);
        LaunchKernel(launch, ElementsKernel<WeightGradChunks<T>>, grid.blocks, grid.threads, 0,
                     WeightGradChunks<T>{f, plan.rows_per_chunk, dw, db}, items);
      }
      Grid columns = ElementGrid(f.cols);
      LaunchKernel(launch, ElementsKernel<WeightGradSum<T>>, columns.blocks, columns.threads, 0,
                   WeightGradSum<T>{dw, db, f.dw, f.db, chunks, f.cols}, f.cols);
    }
    Grid grid = RowGrid(f.rows, f.cols);
    LaunchKernel(launch, RowsKernel<NormBackward<T>>, grid.blocks, grid.threads, 0, f, f.rows);
  };
  return MakeKernel(run, bytes);
}

template <bool kCentered>
KernelPtr MakeNormGrad(const KernelRequest& r) {
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    NormBackward<T> f{};
    f.dy = In<T>(r, 0);
    f.x = In<T>(r, 1);
    f.mean = kCentered ? In<T>(r, 2) : nullptr;
    f.rstd = In<T>(r, kCentered ? 3 : 2);
    f.w = MaybeIn<T>(r, kCentered ? 4 : 3);
    f.dx = Out<T>(r, 0);
    f.dw = MaybeOut<T>(r, 1);
    f.db = MaybeOut<T>(r, 2);
    const TensorView& x = r.call.in[1];
    f.cols = x.shape.back();
    f.rows = f.cols == 0 ? 0 : x.num_elements() / f.cols;
    f.packed = Packs<T>(f.cols, f.dy, f.x, f.w, f.dx);
    return Backward(f);
  });
}

constexpr Binding kBindings[] = {
    {"layer_norm", MakeNorm<true>},          {"rms_norm", MakeNorm<false>},
    {"layer_norm_grad", MakeNormGrad<true>}, {"rms_norm_grad", MakeNormGrad<false>},
    {"add_layer_norm", MakeAddLayerNorm},
};

}  // namespace

std::span<const Binding> NormBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
