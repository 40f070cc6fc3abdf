// cross_entropy and its pieces for a cut vocabulary. A block per row of logits; one pass finds
// maximum and sum together, and keeps the row for the gradient where it has room.
#include "runtime/cuda/kernels/index.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

struct Labels {
  IdReader ids;
  int64_t ignore_index;
  double smoothing, classes;  // of the whole vocabulary
  Fault* fault;
  // -1: the row does not count.
  __device__ int64_t Read(int64_t row, Fault* report) const {
    if (!ids.Padding(row) && ids.Raw(row) == ignore_index) return -1;
    return ids.Read(row, report);
  }
  __device__ bool Padding(int64_t row) const { return ids.Padding(row); }
};

template <typename T>
struct Logits {
  const T* data;
  int64_t stride;  // elements of a row, padding included
  Runs runs;
  bool packed;  // the array begins at a pack; rows need not

  // use(n, first element, class of the first, pack of n) over the threads of the block for the
  // classes that this rank has; load(n, first element) makes the pack.
  template <typename Load, typename Use>
  __device__ __forceinline__ void ForEach(int64_t row, Load load, Use use) const {
    for (int k = 0; k < runs.count; ++k) {
      const Run run = runs.runs[k];
      const int64_t first = row * stride + run.local;
      ForStretch<T>(
          first, run.size, packed, [&](auto n, int64_t c) { return load(n, first + c); },
          [&](auto n, int64_t c, const auto& v) { use(n, first + c, run.global + c, v); });
    }
  }
  template <typename Use>
  __device__ __forceinline__ void ForEach(int64_t row, Use use) const {
    ForEach(
        row, [&](auto n, int64_t at) { return LoadPack<T, n.value>(data + at); }, use);
  }

  // A row's place in shared memory, as far from a pack as in the array; each thread comes to the
  // same elements again.
  __device__ __forceinline__ T* Kept(int64_t row, int64_t at) const {
    return reinterpret_cast<T*>(SharedMemory()) + (at - row * stride / kPack<T> * kPack<T>);
  }
  int64_t KeptBytes() const { return (stride + kPack<T>)*static_cast<int64_t>(sizeof(T)); }
};

// The loss of a row that is no padding, and the logarithm of its sum of exponentials, which every
// thread of the block gets.
template <typename W>
struct RowLoss {
  W lse, loss;  // loss: for thread 0
};
template <bool kKeep, typename T>
__device__ RowLoss<Wide<T>> LossOfRow(const Logits<T>& x, const Labels& labels, int64_t row) {
  using W = Wide<T>;
  SoftmaxState<W, MathOf<T>> state;
  W sum = 0;
  const bool smooth = labels.smoothing != 0;
  x.ForEach(row, [&](auto n, int64_t at, int64_t, const auto& v) {
    if constexpr (kKeep) StorePack<T, n.value>(x.Kept(row, at), v);
    const auto wide = WidenPack(v);
    state.Add(wide.v);
    if (!smooth) return;
    for (int j = 0; j < n.value; ++j) sum += wide.v[j];
  });
  const W max = BlockMax(state.max), total = BlockSum(state.SumFrom(max));
  if (smooth) sum = BlockSum(sum);
  RowLoss<W> out{static_cast<W>(max + ::log(total)), 0};
  if (threadIdx.x != 0) return out;
  const int64_t label = labels.Read(row, labels.fault);
  if (label < 0) return out;
  out.loss = out.lse - static_cast<W>(1 - labels.smoothing) *
                           Widen(x.data[row * x.stride + x.runs.Local(label)]);
  if (smooth) out.loss -= static_cast<W>(labels.smoothing / labels.classes) * sum;
  return out;
}

// S: of the loss and of what comes with it, than which logits may be narrower.
template <typename S, typename T>
struct CrossEntropy {
  using W = Wide<T>;
  Logits<T> x;
  Labels labels;
  S *loss, *lse;
  __device__ void operator()(int64_t row) const {
    RowLoss<W> out{0, 0};
    if (!labels.Padding(row)) out = LossOfRow<false>(x, labels, row);
    if (threadIdx.x != 0) return;
    loss[row] = Narrow<S>(out.loss);
    lse[row] = Narrow<S>(out.lse);
  }
};

template <typename S, typename T>
struct SoftmaxStats {
  using W = Wide<T>;
  Logits<T> x;
  Labels labels;
  const S* max;
  S *sum_exp, *target, *sum;  // sum may be null
  __device__ void operator()(int64_t row) const {
    W exps = 0, plain = 0;
    const W top = Widen(max[row]);
    const bool padding = labels.Padding(row);
    if (!padding) {
      x.ForEach(row, [&](auto n, int64_t, int64_t, const auto& v) {
        for (int j = 0; j < n.value; ++j) {
          exps += MathOf<T>::Exp(Widen(v.v[j]) - top);
          plain += Widen(v.v[j]);
        }
      });
    }
    exps = BlockSum(exps);
    if (sum) plain = BlockSum(plain);
    if (threadIdx.x != 0) return;
    int64_t label = padding ? -1 : labels.Read(row, labels.fault),
            at = label < 0 ? -1 : x.runs.Local(label);
    sum_exp[row] = Narrow<S>(exps);
    target[row] = Narrow<S>(at < 0 ? W(0) : Widen(x.data[row * x.stride + at]));
    if (sum) sum[row] = Narrow<S>(plain);
  }
};

template <typename T>
struct Combine {
  using W = Wide<T>;
  const T *max, *sum_exp, *target, *sum;  // sum may be null
  Labels labels;
  T *loss, *lse;
  __device__ void operator()(int64_t row) const {
    W out = 0, value = 0;
    if (!labels.Padding(row)) {
      out = Widen(max[row]) + ::log(Widen(sum_exp[row]));
      if (labels.Read(row, labels.fault) >= 0) {
        value = out - static_cast<W>(1 - labels.smoothing) * Widen(target[row]);
        if (sum) value -= static_cast<W>(labels.smoothing / labels.classes) * Widen(sum[row]);
      }
    }
    loss[row] = Narrow<T>(value);
    lse[row] = Narrow<T>(out);
  }
};

// Of a row, to rows of the same length; zero where x has padding. May overwrite the
// logits: every element is read and written by one thread.
template <bool kKept, typename T, typename U>
__device__ void GradientOfRow(const Logits<T>& x, const Labels& labels, int64_t row, int64_t label,
                              Wide<T> g, Wide<T> log_sum, U* dx) {
  using W = Wide<T>;
  if (label < 0) {
    x.ForEach(
        row, [](auto n, int64_t) { return Pack<T, n.value>{}; },
        [&](auto n, int64_t at, int64_t, const auto&) { StorePack(dx + at, Pack<U, n.value>{}); });
  } else {
    const W everywhere = g * static_cast<W>(labels.smoothing / labels.classes),
            target = g * static_cast<W>(1 - labels.smoothing);
    auto load = [&](auto n, int64_t at) {
      return LoadPack<T, n.value>(kKept ? x.Kept(row, at) : x.data + at);
    };
    x.ForEach(row, load, [&](auto n, int64_t at, int64_t first, const auto& v) {
      auto d = WidenPack(v);
      for (int j = 0; j < n.value; ++j) d.v[j] = g * MathOf<T>::Exp(d.v[j] - log_sum) - everywhere;
      const auto of_label = static_cast<uint64_t>(label - first);
      if (of_label < n.value) {
        for (int j = 0; j < n.value; ++j) {
          if (static_cast<uint64_t>(j) == of_label) d.v[j] -= target;
        }
      }
      StorePack(dx + at, NarrowPack<U>(d));
    });
  }
  int64_t gap = 0;
  for (int k = 0; k <= x.runs.count; ++k) {
    const bool last = k == x.runs.count;
    const int64_t end = last ? x.stride : x.runs.runs[k].local;
    for (int64_t c = gap + threadIdx.x; c < end; c += blockDim.x) dx[row * x.stride + c] = U{};
    if (!last) gap = end + x.runs.runs[k].size;
  }
}

template <typename S, typename T, typename U>
struct CrossEntropyGrad {
  Logits<T> x;
  Labels labels;
  const S *dloss, *lse;
  U* dx;
  __device__ void operator()(int64_t row) const {
    const int64_t label = labels.Read(row, threadIdx.x == 0 ? labels.fault : nullptr);
    GradientOfRow<false>(x, labels, row, label, Widen(dloss[row]), Widen(lse[row]), dx);
  }
};

// Both. The second time the row comes from shared memory, or from the caches.
template <bool kKeep, typename S, typename T, typename U>
struct CrossEntropyWithGrad {
  using W = Wide<T>;
  Logits<T> x;
  Labels labels;
  const S* dloss;
  S* loss;
  U* dx;
  __device__ void operator()(int64_t row) const {
    RowLoss<W> out{0, 0};
    if (!labels.Padding(row)) out = LossOfRow<kKeep>(x, labels, row);
    const int64_t label = labels.Read(row, nullptr);
    const W g = Widen(dloss[row]);
    __syncthreads();  // the target's logit was read, and may go
    GradientOfRow<kKeep>(x, labels, row, label, g, out.lse, dx);
    if (threadIdx.x == 0) loss[row] = Narrow<S>(out.loss);
    // The next row may begin elsewhere in a pack, and so have elements that another thread reads.
    if constexpr (kKeep) __syncthreads();
  }
};

struct Parts {
  std::shared_ptr<DeviceTable<int64_t>> positions;
  Labels labels;
  int64_t rows = 0;
};
Parts LabelsOf(const KernelRequest& r, size_t labels, int64_t classes) {
  Parts p;
  const TensorView& ids = r.call.in[labels];
  p.positions = std::make_shared<DeviceTable<int64_t>>(Positions(r, ids));
  p.rows = ids.num_elements();
  p.labels = {MakeIdReader(ids, classes, false, Fault::kBadLabel, *p.positions),
              r.call.attrs->Int("ignore_index", -100), r.call.attrs->Float("label_smoothing", 0.0),
              static_cast<double>(classes), nullptr};
  return p;
}
template <typename T, typename U = T>
Logits<T> LogitsOf(const KernelRequest& r, size_t logits, const Runs& runs, const U* result) {
  const TensorView& x = r.call.in[logits];
  return {In<T>(r, logits), x.shape.back(), runs,
          Aligned(In<T>(r, logits), 16) && Aligned(result, sizeof(U) * kPack<T>)};
}

template <typename F>
KernelPtr PerRow(F f, const Parts& p, int64_t cols, int64_t shared = 0) {
  return MakeKernel([f, positions = p.positions, rows = p.rows, shared,
                     grid = RowGrid(p.rows, cols)](const Launch& launch) mutable {
    f.labels.fault = launch.fault;
    LaunchKernel(launch, RowsKernel<F>, grid.blocks, grid.threads, static_cast<size_t>(shared), f,
                 rows);
  });
}

template <typename S, typename T, typename U>
KernelPtr WithGradPerRow(const KernelRequest& r, const Logits<T>& x, const Parts& p) {
  const int64_t cols = x.stride;
  auto make = [&](auto keep) {
    return CrossEntropyWithGrad<keep.value, S, T, U>{x, p.labels, In<S>(r, 0), Out<S>(r, 0),
                                                     Out<U>(r, 1)};
  };
  // A multiprocessor should have a second row to load while it computes one.
  const auto keeping = make(std::true_type());
  constexpr auto kKernel = RowsKernel<std::remove_cv_t<decltype(keeping)>>;
  constexpr int64_t kOfBlock = 2 << 10;  // what it has of its own, and for rounding
  const int64_t bytes = x.KeptBytes();
  if (bytes > MostShared(kKernel) / 2 - kOfBlock) return PerRow(make(std::false_type()), p, cols);
  AllowShared(kKernel, static_cast<size_t>(bytes));
  return PerRow(keeping, p, cols, bytes);
}

KernelPtr MakeCrossEntropy(const KernelRequest& r) {
  const TensorView& x = r.call.in[0];
  if (!Full(r, x, x.rank() - 1) || x.shape.back() != r.call.GlobalDim(x, x.rank() - 1))
    return nullptr;
  const Runs runs{1, {{0, 0, x.shape.back()}}};
  Parts p = LabelsOf(r, 1, x.shape.back());
  return DispatchFloat(x.dtype, [&](auto t) {
    using T = decltype(t);
    using S = Wide<T>;
    return PerRow(CrossEntropy<S, T>{LogitsOf<T, T>(r, 0, runs, nullptr), p.labels, Out<S>(r, 0),
                                     Out<S>(r, 1)},
                  p, x.shape.back());
  });
}
// dloss, logits, labels -> loss, dlogits
KernelPtr MakeWithGrad(const KernelRequest& r) {
  const TensorView& x = r.call.in[1];
  const int last = x.rank() - 1;
  const int64_t all = r.call.GlobalDim(x, last), classes = r.call.attrs->Int("classes", all);
  if (!Full(r, x, last) || x.shape.back() != all) return nullptr;
  Runs runs{1, {{0, 0, classes}}};
  Parts p = LabelsOf(r, 2, classes);
  auto make = [&](auto s, auto t, auto u) {
    using T = decltype(t);
    using U = decltype(u);
    return WithGradPerRow<decltype(s), T, U>(r, LogitsOf<T, U>(r, 1, runs, Out<U>(r, 1)), p);
  };
  return DispatchMixed(r.call.in[0].dtype, x.dtype, r.call.out[1].dtype, make);
}
KernelPtr MakeStats(const KernelRequest& r) {
  const TensorView& x = r.call.in[0];
  Runs runs;
  if (!MakeRuns(r, x, x.rank() - 1, &runs)) return nullptr;
  Parts p = LabelsOf(r, 1, r.call.GlobalDim(x, x.rank() - 1));
  return DispatchFloat(r.call.in[2].dtype, [&](auto s) {
    using S = decltype(s);
    return DispatchNarrow<S>(x.dtype, [&](auto t) {
      using T = decltype(t);
      S* sum = r.call.out.size() > 2 ? Out<S>(r, 2) : nullptr;
      return PerRow(SoftmaxStats<S, T>{LogitsOf<T, T>(r, 0, runs, nullptr), p.labels, In<S>(r, 2),
                                       Out<S>(r, 0), Out<S>(r, 1), sum},
                    p, x.shape.back());
    });
  });
}
KernelPtr MakeGrad(const KernelRequest& r) {
  const TensorView& x = r.call.in[1];
  Runs runs;
  if (!MakeRuns(r, x, x.rank() - 1, &runs)) return nullptr;
  Parts p = LabelsOf(r, 2, r.call.GlobalDim(x, x.rank() - 1));
  auto make = [&](auto s, auto t, auto u) {
    using S = decltype(s);
    using T = decltype(t);
    using U = decltype(u);
    return PerRow(CrossEntropyGrad<S, T, U>{LogitsOf<T, U>(r, 1, runs, Out<U>(r, 0)), p.labels,
                                            In<S>(r, 0), In<S>(r, 3), Out<U>(r, 0)},
                  p, x.shape.back());
  };
  return DispatchMixed(r.call.in[0].dtype, x.dtype, r.call.out[0].dtype, make);
}
KernelPtr MakeCombine(const KernelRequest& r) {
  Parts p = LabelsOf(r, r.call.in.size() - 1, r.call.attrs->Int("classes"));
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    Combine<T> f{
        In<T>(r, 0), In<T>(r, 1),  In<T>(r, 2), r.call.in.size() == 5 ? In<T>(r, 3) : nullptr,
        p.labels,    Out<T>(r, 0), Out<T>(r, 1)};
    return MakeKernel([f, positions = p.positions, rows = p.rows](const Launch& launch) mutable {
      f.labels.fault = launch.fault;
      Grid grid = ElementGrid(rows);
      LaunchKernel(launch, ElementsKernel<Combine<T>>, grid.blocks, grid.threads, 0, f, rows);
    });
  });
}

constexpr Binding kBindings[] = {{"cross_entropy", MakeCrossEntropy},
                                 {"cross_entropy_with_grad", MakeWithGrad},
                                 {"softmax_stats", MakeStats},
                                 {"cross_entropy_combine", MakeCombine},
                                 {"cross_entropy_grad", MakeGrad}};

}  // namespace

std::span<const Binding> LossBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
