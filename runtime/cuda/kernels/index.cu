// embedding, gather, gather_nd, top_k.
#include "runtime/cuda/kernels/index.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

DeviceTable<int64_t> Positions(const KernelRequest& r, const TensorView& view) {
  bool whole = true;
  for (int d = 0; d < view.rank(); ++d) {
    auto dim = static_cast<size_t>(d);
    std::vector<Run> runs = r.call.Runs(view, d);
    whole = whole &&
            (view.shape[dim] == 0 || (runs.size() == 1 && runs[0] == Run{0, 0, view.shape[dim]} &&
                                      r.call.GlobalDim(view, d) == view.shape[dim]));
  }
  if (whole || view.num_elements() == 0) return {};
  std::vector<int64_t> at = {0};
  for (int d = 0; d < view.rank(); ++d) {
    auto dim = static_cast<size_t>(d);
    std::vector<int64_t> global(static_cast<size_t>(view.shape[dim]), -1), next;
    for (const Run& run : r.call.Runs(view, d)) {
      for (int64_t i = 0; i < run.size; ++i)
        global[static_cast<size_t>(run.local + i)] = run.global + i;
    }
    for (int64_t p : at) {
      for (int64_t g : global)
        next.push_back(p < 0 || g < 0 ? -1 : p * r.call.GlobalDim(view, d) + g);
    }
    at = std::move(next);
  }
  return DeviceTable<int64_t>(at);
}

namespace {

// y[o, i, :] = x[o, ids[i], :], in units of U; zero where the row is another rank's, and in
// padding.
template <typename U>
struct Lookup {
  IdReader ids;
  Runs rows;
  const U* x;
  U* y;
  int64_t count, n, inner;  // of ids; of x's rows; units of a row
  Fault* fault;
  __device__ void operator()(int64_t item) const {
    int64_t k = item % inner, rest = item / inner, i = rest % count, o = rest / count;
    int64_t id = ids.Read(i, fault), row = id < 0 ? -1 : rows.Local(id);
    U value{};
    if (row >= 0) value = x[(o * n + row) * inner + k];
    y[item] = value;
  }
};

KernelPtr MakeLookup(const KernelRequest& r, int axis, bool negative, Fault::Kind kind) {
  const TensorView &x = r.call.in[0], &ids = r.call.in[1], &y = r.call.out[0];
  auto dim = static_cast<size_t>(axis);
  Runs rows;
  if (!MakeRuns(r, x, axis, &rows)) return nullptr;
  if (y.num_elements() == 0) return NoWork();
  auto positions = std::make_shared<DeviceTable<int64_t>>(Positions(r, ids));
  IdReader reader = MakeIdReader(ids, r.call.GlobalDim(x, axis), negative, kind, *positions);
  int64_t bytes = Product(x.shape, dim + 1, x.shape.size()) * DTypeSize(x.dtype);
  auto make = [&](auto unit) {
    using U = decltype(unit);
    Lookup<U> f{reader,
                rows,
                reinterpret_cast<const U*>(x.data),
                reinterpret_cast<U*>(y.data),
                ids.num_elements(),
                x.shape[dim],
                bytes / static_cast<int64_t>(sizeof(U)),
                nullptr};
    int64_t items = Bytes(y) / static_cast<int64_t>(sizeof(U));
    return MakeKernel([f, items, positions](const Launch& launch) mutable {
      f.fault = launch.fault;
      Grid grid = ElementGrid(items);
      LaunchKernel(launch, ElementsKernel<Lookup<U>>, grid.blocks, grid.threads, 0, f, items);
    });
  };
  if (bytes % 16 == 0 && Aligned(x.data, 16) && Aligned(y.data, 16)) return make(Bytes16());
  return DispatchSize(x.dtype, make);
}

KernelPtr MakeEmbedding(const KernelRequest& r) { return MakeLookup(r, 0, false, Fault::kBadId); }
KernelPtr MakeGather(const KernelRequest& r) {
  return MakeLookup(r, Axis(r.call.attrs->Int("axis"), r.call.in[0].rank()), true,
                    Fault::kBadIndex);
}

// An item per element of y.
template <typename T>
struct GatherNd {
  IndexTuple tuple;
  const T* x;
  T* y;
  Fault* fault;
  __device__ void operator()(int64_t item) const {
    int64_t from = tuple.Offset(item / tuple.block, fault);
    y[item] = from < 0 ? T(0) : x[from + item % tuple.block];
  }
};

KernelPtr MakeGatherNd(const KernelRequest& r) {
  const TensorView &x = r.call.in[0], &y = r.call.out[0];
  if (y.num_elements() == 0) return NoWork();
  auto positions = std::make_shared<DeviceTable<int64_t>>(Positions(r, r.call.in[1]));
  IndexTuple tuple;
  if (!MakeIndexTuple(r, x.shape, *positions, &tuple)) return nullptr;
  return DispatchSize(x.dtype, [&](auto t) {
    using T = decltype(t);
    GatherNd<T> f{tuple, In<T>(r, 0), Out<T>(r, 0), nullptr};
    return MakeKernel([f, positions, items = y.num_elements()](const Launch& launch) mutable {
      f.fault = launch.fault;
      Grid grid = ElementGrid(items);
      LaunchKernel(launch, ElementsKernel<GatherNd<T>>, grid.blocks, grid.threads, 0, f, items);
    });
  });
}

// A block per line of elements along the axis: each pass finds the first, in the order of the op,
// of those behind the one that the pass before found.
template <typename T, bool kLargest>
struct TopK {
  using W = Wide<T>;
  const T* x;
  int64_t* y;
  int64_t size, k, inner;

  // Whether a goes before b; NaN is larger than all others.
  static __device__ bool Before(W a, W b) {
    if constexpr (kIsFloatW<W>) {
      if (a != a || b != b) return kLargest ? a != a && b == b : b != b && a == a;
    }
    return kLargest ? a > b : a < b;
  }
  static __device__ W Last() {
    if constexpr (!kIsFloatW<W>) {
      return kLargest ? kLeast<W> : kGreatest<W>;
    } else {
      return kLargest ? -Infinity<W>() : Infinity<W>() - Infinity<W>();
    }
  }
  __device__ void operator()(int64_t line) const {
    const T* from = x + line / inner * size * inner + line % inner;
    int64_t* to = y + line / inner * k * inner + line % inner;
    W value = Last();
    int64_t at = -1;
    for (int64_t pass = 0; pass < k; ++pass) {
      auto left = [&](W v, int64_t i) {
        return pass == 0 || Before(value, v) || (!Before(v, value) && i > at);
      };
      W best = Last();
      for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
        W v = Widen(from[i * inner]);
        if (left(v, i) && Before(v, best)) best = v;
      }
      best = BlockFold(best, Last(), [](W a, W b) { return Before(b, a) ? b : a; });
      int64_t first = size;
      for (int64_t i = threadIdx.x; i < size && first == size; i += blockDim.x) {
        W v = Widen(from[i * inner]);
        if (left(v, i) && !Before(best, v)) first = i;
      }
      at = BlockFold(first, size, [](int64_t a, int64_t b) { return a < b ? a : b; });
      value = best;
      if (threadIdx.x == 0) to[pass * inner] = at;
    }
  }
};

template <bool kLargest>
KernelPtr MakeTopKOf(const KernelRequest& r) {
  const TensorView &x = r.call.in[0], &y = r.call.out[0];
  if (y.num_elements() == 0) return NoWork();
  const auto axis = static_cast<size_t>(Axis(r.call.attrs->Int("axis"), x.rank()));
  const int64_t size = x.shape[axis], inner = Product(x.shape, axis + 1, x.shape.size());
  return DispatchNumeric(x.dtype, [&](auto t) {
    using F = TopK<decltype(t), kLargest>;
    F f{In<decltype(t)>(r, 0), Out<int64_t>(r, 0), size, y.shape[axis], inner};
    const int64_t lines = x.num_elements() / size;
    return MakeKernel([f, lines, grid = RowGrid(lines, size)](const Launch& launch) {
      LaunchKernel(launch, RowsKernel<F>, grid.blocks, grid.threads, 0, f, lines);
    });
  });
}
KernelPtr MakeTopK(const KernelRequest& r) {
  return r.call.attrs->Bool("largest", true) ? MakeTopKOf<true>(r) : MakeTopKOf<false>(r);
}

constexpr Binding kBindings[] = {{"embedding", MakeEmbedding},
                                 {"gather", MakeGather},
                                 {"gather_nd", MakeGatherNd},
                                 {"top_k", MakeTopK}};

}  // namespace

std::span<const Binding> IndexBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
