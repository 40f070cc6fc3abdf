// reduce_sum reduce_mean reduce_max reduce_min, cumsum. Sums are added in an order
// that only the shape decides: chunks first, then the chunks' results.
#include "runtime/cuda/kernels/gaps.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

struct SumFold {
  template <typename W>
  static __device__ W Identity() {
    return W(0);
  }
  template <typename W>
  static __device__ W Fold(W a, W b) {
    return AddFn()(a, b);
  }
};
template <typename W>
__device__ W Highest() {
  if constexpr (kIsFloatW<W>)
    return Infinity<W>();
  else
    return kGreatest<W>;
}
struct MaxFold : SumFold {
  template <typename W>
  static __device__ W Identity() {
    if constexpr (kIsFloatW<W>)
      return -Infinity<W>();
    else
      return kLeast<W>;
  }
  template <typename W>
  static __device__ W Fold(W a, W b) {
    return MaxNan(a, b);
  }
};
struct MinFold : SumFold {
  template <typename W>
  static __device__ W Identity() {
    return Highest<W>();
  }
  template <typename W>
  static __device__ W Fold(W a, W b) {
    return MinNan(a, b);
  }
};

template <typename T, typename Op>
struct Stage1 {
  using W = Wide<T>;
  const T* x;
  Walk kept, reduced;  // strides[0]: of x
  int64_t kept_count, reduced_count, chunk, chunks;
  Gaps gaps;
  W* partial;  // [chunks, kept]

  __device__ W Range(int64_t base, int64_t begin, int64_t end, int64_t step) const {
    W total = Op::template Identity<W>();
    for (int64_t i = begin; i < end; i += step) {
      int64_t at[1];
      Locate(reduced, i, at);
      int64_t offset = base + at[0];
      if (gaps.count > 0 && !gaps.Valid(offset)) continue;
      total = Op::Fold(total, Widen(x[offset]));
    }
    return total;
  }
};

// A thread per (chunk, result).
template <typename T, typename Op>
struct ColumnStage : Stage1<T, Op> {
  __device__ void operator()(int64_t item) const {
    int64_t result = item % this->kept_count, c = item / this->kept_count, at[1];
    Locate(this->kept, result, at);
    int64_t begin = c * this->chunk, end = begin + this->chunk;
    if (end > this->reduced_count) end = this->reduced_count;
    this->partial[item] = this->Range(at[0], begin, end, 1);
  }
};
// A block per (chunk, result).
template <typename T, typename Op>
struct BlockStage : Stage1<T, Op> {
  __device__ void operator()(int64_t item) const {
    using W = Wide<T>;
    int64_t result = item % this->kept_count, c = item / this->kept_count, at[1];
    Locate(this->kept, result, at);
    int64_t begin = c * this->chunk, end = begin + this->chunk;
    if (end > this->reduced_count) end = this->reduced_count;
    W total = this->Range(at[0], begin + threadIdx.x, end, blockDim.x);
    total = BlockFold(total, Op::template Identity<W>(), [](W a, W b) { return Op::Fold(a, b); });
    if (threadIdx.x == 0) this->partial[item] = total;
  }
};

// A block per (chunk of rows, tile of columns) of a dense matrix, see TilePlan.
template <typename T, typename Op>
struct TileStage {
  using W = Wide<T>;
  static constexpr int kN = kPack<T>;
  const T* x;
  int64_t rows, cols;
  TilePlan plan;
  W* partial;  // [chunks, cols]
  __device__ void operator()(int64_t item) const {
    __shared__ W parts[kTileWarps][32 * kN];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t c = item / plan.tiles, first = item % plan.tiles * 32 * kN,
                  column = first + lane * kN;
    int64_t end = (c + 1) * plan.chunk;
    if (end > rows) end = rows;
    W total[kN];
    for (int j = 0; j < kN; ++j) total[j] = Op::template Identity<W>();
    if (column < cols) {
      SHARDC_UNROLL_BY(4)
      for (int64_t row = c * plan.chunk + warp; row < end; row += kTileWarps) {
        const auto v = LoadPack<T, kN>(x + row * cols + column);
        for (int j = 0; j < kN; ++j) total[j] = Op::Fold(total[j], Widen(v.v[j]));
      }
    }
    for (int j = 0; j < kN; ++j) parts[warp][lane * kN + j] = total[j];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 32 * kN && first + i < cols;
         i += static_cast<int>(blockDim.x)) {
      W sum = parts[0][i];
      for (int w = 1; w < kTileWarps; ++w) sum = Op::Fold(sum, parts[w][i]);
      partial[c * cols + first + i] = sum;
    }
    __syncthreads();
  }
};

// U: of the result, which the attribute "out" may choose.
template <typename T, typename U, typename Op>
struct Stage2 {
  const Wide<T>* partial;
  U* y;
  int64_t kept_count, chunks;
  double count;  // the sum is divided by it
  __device__ void operator()(int64_t i) const {
    Wide<T> total = partial[i];
    for (int64_t c = 1; c < chunks; ++c) total = Op::Fold(total, partial[c * kept_count + i]);
    if constexpr (kIsFloat<T>) {
      if (count != 1) total = total / static_cast<Wide<T>>(count);
    }
    y[i] = Narrow<U>(static_cast<Wide<U>>(total));
  }
};

struct Reduction {
  Walk kept, reduced;
  Gaps gaps;
  bool inner_kept = false;
  double count = 1;  // of global elements reduced
  // Sums of the columns of a dense matrix.
  bool columns() const {
    return gaps.count == 0 && kept.rank == 1 && reduced.rank == 1 && kept.strides[0][0] == 1 &&
           reduced.strides[0][0] == kept.dims[0];
  }
};

bool Describe(const KernelRequest& r, const std::vector<bool>& is_reduced, Reduction* out) {
  const TensorView& x = r.call.in[0];
  Ints strides = DenseStrides(x.shape), kept, kept_strides, reduced, reduced_strides;
  for (int d = 0; d < x.rank(); ++d) {
    auto dim = static_cast<size_t>(d);
    (is_reduced[dim] ? reduced : kept).push_back(x.shape[dim]);
    (is_reduced[dim] ? reduced_strides : kept_strides).push_back(strides[dim]);
    if (x.shape[dim] > 1) out->inner_kept = !is_reduced[dim];
    if (!is_reduced[dim]) continue;
    out->count *= static_cast<double>(r.call.GlobalDim(x, d));
    if (!AddGaps(r, d, strides[dim], &out->gaps)) return false;
  }
  auto kept_walk = MakeWalk(kept, {kept_strides}),
       reduced_walk = MakeWalk(reduced, {reduced_strides});
  if (!kept_walk || !reduced_walk) return false;
  out->kept = *kept_walk;
  out->reduced = *reduced_walk;
  return true;
}

template <typename T, typename Op>
void LaunchStage1(const Launch& launch, const Stage1<T, Op>& f, const ReducePlan& plan) {
  const int64_t items = f.kept_count * plan.chunks;
  if (plan.columns) {
    using Stage = ColumnStage<T, Op>;
    Grid grid = ElementGrid(items);
    return LaunchKernel(launch, ElementsKernel<Stage>, grid.blocks, grid.threads, 0, Stage{f},
                        items);
  }
  using Stage = BlockStage<T, Op>;
  Grid grid = RowGrid(items, plan.chunk);
  LaunchKernel(launch, RowsKernel<Stage>, grid.blocks, grid.threads, 0, Stage{f}, items);
}
template <typename T, typename U, typename Op>
void LaunchStage2(const Launch& launch, const Stage2<T, U, Op>& f) {
  Grid grid = ElementGrid(f.kept_count);
  LaunchKernel(launch, ElementsKernel<Stage2<T, U, Op>>, grid.blocks, grid.threads, 0, f,
               f.kept_count);
}

template <typename T, typename U, typename Op>
KernelPtr MakeTyped(const KernelRequest& r, const Reduction& d, bool mean) {
  int64_t kept = d.kept.size(), reduced = d.reduced.size();
  Stage2<T, U, Op> second{nullptr, Out<U>(r, 0), kept, 0, mean ? d.count : 1.0};
  auto workspace = [&] { return second.chunks * kept * static_cast<int64_t>(sizeof(Wide<T>)); };
  auto tiles =
      d.columns() && Aligned(In<T>(r, 0), 16) ? PlanTiles(reduced, kept, kPack<T>) : std::nullopt;
  if (tiles) {
    second.chunks = tiles->chunks;
    TileStage<T, Op> first{In<T>(r, 0), reduced, kept, *tiles, nullptr};
    auto run = [=](const Launch& launch) mutable {
      second.partial = first.partial = reinterpret_cast<Wide<T>*>(launch.workspace);
      const int64_t blocks = first.plan.tiles * first.plan.chunks;
      LaunchKernel(launch, RowsKernel<TileStage<T, Op>>, blocks, 32 * kTileWarps, 0, first, blocks);
      LaunchStage2(launch, second);
    };
    return MakeKernel(run, workspace());
  }
  ReducePlan plan = PlanReduce(kept, reduced, d.inner_kept);
  second.chunks = plan.chunks;
  Stage1<T, Op> first{In<T>(r, 0), d.kept,      d.reduced, kept,   reduced,
                      plan.chunk,  plan.chunks, d.gaps,    nullptr};
  auto run = [=](const Launch& launch) mutable {
    second.partial = first.partial = reinterpret_cast<Wide<T>*>(launch.workspace);
    LaunchStage1(launch, first, plan);
    LaunchStage2(launch, second);
  };
  return MakeKernel(run, workspace());
}

template <typename Op, bool kMean = false>
KernelPtr MakeReduce(const KernelRequest& r) {
  const TensorView& x = r.call.in[0];
  std::vector<bool> is_reduced(static_cast<size_t>(x.rank()));
  for (int64_t a : r.call.attrs->IntList("axes"))
    is_reduced[static_cast<size_t>(Axis(a, x.rank()))] = true;
  Reduction d;
  if (!Describe(r, is_reduced, &d)) return nullptr;
  if constexpr (!kMean && (std::is_same_v<Op, SumFold> || std::is_same_v<Op, MaxFold>)) {
    if (IsFloat(x.dtype)) {
      return DispatchFloats(x.dtype, r.call.out[0].dtype, [&](auto t, auto u) {
        return MakeTyped<decltype(t), decltype(u), Op>(r, d, false);
      });
    }
  }
  return DispatchNumeric(
      x.dtype, [&](auto t) { return MakeTyped<decltype(t), decltype(t), Op>(r, d, kMean); });
}

// A thread per line.
template <typename T>
struct Cumsum {
  const T* x;
  T* y;
  int64_t n, inner;
  bool exclusive, reverse;
  __device__ void operator()(int64_t line) const {
    int64_t base = line / inner * n * inner + line % inner;
    Wide<T> total = 0;
    for (int64_t i = 0; i < n; ++i) {
      int64_t at = base + (reverse ? n - 1 - i : i) * inner;
      Wide<T> next = AddFn()(total, Widen(x[at]));
      y[at] = Narrow<T>(exclusive ? total : next);
      total = next;
    }
  }
};
KernelPtr MakeCumsum(const KernelRequest& r) {
  const TensorView& x = r.call.in[0];
  auto axis = static_cast<size_t>(Axis(r.call.attrs->Int("axis"), x.rank()));
  int64_t n = x.shape[axis], lines = n == 0 ? 0 : x.num_elements() / n;
  return DispatchNumeric(x.dtype, [&](auto t) {
    using F = Cumsum<decltype(t)>;
    F f{In<decltype(t)>(r, 0),
        Out<decltype(t)>(r, 0),
        n,
        Product(x.shape, axis + 1, x.shape.size()),
        r.call.attrs->Bool("exclusive"),
        r.call.attrs->Bool("reverse")};
    return MakeKernel([f, lines, grid = ElementGrid(lines)](const Launch& launch) {
      LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, lines);
    });
  });
}

constexpr Binding kBindings[] = {{"reduce_sum", MakeReduce<SumFold>},
                                 {"reduce_mean", MakeReduce<SumFold, true>},
                                 {"reduce_max", MakeReduce<MaxFold>},
                                 {"reduce_min", MakeReduce<MinFold>},
                                 {"cumsum", MakeCumsum}};

}  // namespace

std::span<const Binding> ReduceBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
