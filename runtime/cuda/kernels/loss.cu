// cross_entropy and its pieces for a cut vocabulary. A block per row of logits; one pass finds
// maximum and sum together. For loss and gradient in one, rows that have room are in shared memory.
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
  // The same for an id that was read before.
  __device__ int64_t Check(int64_t row, int64_t id, Fault* report) const {
    return ids.Padding(row) || id == ignore_index ? -1 : ids.Check(row, id, report);
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
};

// What a thread has seen of a row.
template <typename T>
struct RowState {
  using W = Wide<T>;
  SoftmaxState<W, MathOf<T>> state;
  W sum = 0;
  bool smooth;
  template <int kN>
  __device__ __forceinline__ void Add(const Pack<T, kN>& v) {
    const auto wide = WidenPack(v);
    state.Add(wide.v);
    if (!smooth) return;
    for (int j = 0; j < kN; ++j) sum += wide.v[j];
  }
};
// The loss of a row, and the logarithm of its sum of exponentials, which every thread of the block
// gets.
template <typename W>
struct RowLoss {
  W lse, loss;  // loss: for thread 0
};
// target(label): the label's logit; thread 0 asks for it once all have seen the row.
template <typename T, typename Target>
__device__ __forceinline__ RowLoss<Wide<T>> LossOfRow(RowState<T>& seen, const Labels& labels,
                                                      int64_t label, Target target) {
  using W = Wide<T>;
  const W max = BlockMax(seen.state.max), total = BlockSum(seen.state.SumFrom(max));
  if (seen.smooth) seen.sum = BlockSum(seen.sum);
  RowLoss<W> out{static_cast<W>(max + ::log(total)), 0};
  if (threadIdx.x != 0 || label < 0) return out;
  out.loss = out.lse - static_cast<W>(1 - labels.smoothing) * Widen(target(label));
  if (seen.smooth) out.loss -= static_cast<W>(labels.smoothing / labels.classes) * seen.sum;
  return out;
}
template <typename T>
__device__ RowLoss<Wide<T>> LossOfRow(const Logits<T>& x, const Labels& labels, int64_t row) {
  RowState<T> seen{{}, 0, labels.smoothing != 0};
  x.ForEach(row, [&](auto, int64_t, int64_t, const auto& v) { seen.Add(v); });
  const int64_t label = threadIdx.x == 0 ? labels.Read(row, labels.fault) : -1;
  return LossOfRow(seen, labels, label,
                   [&](int64_t l) { return x.data[row * x.stride + x.runs.Local(l)]; });
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
    if (!labels.Padding(row)) out = LossOfRow(x, labels, row);
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
template <typename W>
struct RowGradient {
  int64_t label;
  W g, log_sum, everywhere, target;
  __device__ __forceinline__ RowGradient(const Labels& labels, int64_t label, W g, W log_sum)
      : label(label),
        g(g),
        log_sum(log_sum),
        everywhere(g * static_cast<W>(labels.smoothing / labels.classes)),
        target(g * static_cast<W>(1 - labels.smoothing)) {}
  // Of a pack of logits, of which the first is of class `first`.
  template <typename U, typename T, int kN>
  __device__ __forceinline__ Pack<U, kN> Of(const Pack<T, kN>& v, int64_t first) const {
    if (label < 0) return {};
    auto d = WidenPack(v);
    for (int j = 0; j < kN; ++j) d.v[j] = g * MathOf<T>::Exp(d.v[j] - log_sum) - everywhere;
    const auto of_label = static_cast<uint64_t>(label - first);
    if (of_label < kN) {
      for (int j = 0; j < kN; ++j) {
        if (static_cast<uint64_t>(j) == of_label) d.v[j] -= target;
      }
    }
    return NarrowPack<U>(d);
  }
};
template <typename T, typename U>
__device__ void ClearPadding(const Logits<T>& x, int64_t row, U* dx) {
  int64_t gap = 0;
  for (int k = 0; k <= x.runs.count; ++k) {
    const bool last = k == x.runs.count;
    const int64_t end = last ? x.stride : x.runs.runs[k].local;
    for (int64_t c = gap + threadIdx.x; c < end; c += blockDim.x) dx[row * x.stride + c] = U{};
    if (!last) gap = end + x.runs.runs[k].size;
  }
}
template <typename T, typename U>
__device__ void GradientOfRow(const Logits<T>& x, const Labels& labels, int64_t row, int64_t label,
                              Wide<T> g, Wide<T> log_sum, U* dx) {
  const RowGradient<Wide<T>> gradient(labels, label, g, log_sum);
  auto load = [&](auto n, int64_t at) {
    return label < 0 ? Pack<T, n.value>{} : LoadPack<T, n.value>(x.data + at);
  };
  x.ForEach(row, load, [&](auto, int64_t at, int64_t first, const auto& v) {
    StorePack(dx + at, gradient.template Of<U>(v, first));
  });
  ClearPadding(x, row, dx);
}

template <typename S, typename T, typename U>
struct CrossEntropyGrad {
  Logits<T> x;
  Labels labels;
  const S *dloss, *lse;
  U* dx;
  __device__ void operator()(int64_t row) const {
    const int64_t label = labels.Read(row, threadIdx.x == 0 ? labels.fault : nullptr);
    GradientOfRow(x, labels, row, label, Widen(dloss[row]), Widen(lse[row]), dx);
  }
};

// Both. The second time the row comes from the caches, if it is still there.
template <typename S, typename T, typename U>
struct CrossEntropyWithGrad {
  using W = Wide<T>;
  Logits<T> x;
  Labels labels;
  const S* dloss;
  S* loss;
  U* dx;
  __device__ void operator()(int64_t row) const {
    RowLoss<W> out{0, 0};
    if (!labels.Padding(row)) out = LossOfRow(x, labels, row);
    const int64_t label = labels.Read(row, nullptr);
    const W g = Widen(dloss[row]);
    __syncthreads();  // the target's logit was read, and may go
    GradientOfRow(x, labels, row, label, g, out.lse, dx);
    if (threadIdx.x == 0) loss[row] = Narrow<S>(out.loss);
  }
};

// Both, of rows that shared memory has room for. A block has every `blocks`-th row. Its packs come
// to shared memory in parts, each when the same packs of the row before have been used: a thread
// copies, and reads, its own.
template <typename S, typename T, typename U>
struct CrossEntropyWithGradOfKept {
  using W = Wide<T>;
  static constexpr int kN = kPack<T>, kParts = 4;
  Logits<T> x;  // of one run, from each row's beginning on
  Labels labels;
  const S* dloss;
  S* loss;
  U* dx;
  int64_t rows = 0, blocks = 0;
  int of_part = 0;  // packs of a part: for each thread as many

  static int64_t SharedBytes(int64_t classes) { return classes / kN * 16; }
  __device__ __forceinline__ T* Kept(int pack) const {
    return reinterpret_cast<T*>(SharedMemory()) + pack * kN;
  }
  __device__ __forceinline__ int Classes() const { return static_cast<int>(x.runs.runs[0].size); }
  // A row's elements before its first pack, and its packs.
  struct Split {
    int head, packs;
  };
  __device__ __forceinline__ Split Of(int64_t row) const {
    const int classes = Classes(), before = static_cast<int>((kN - row * x.stride % kN) % kN);
    const int head = x.packed && before < classes ? before : classes;
    return {head, (classes - head) / kN};
  }
  // use(q) for this thread's packs of a part of the row.
  template <typename Use>
  __device__ __forceinline__ void ForPacks(int packs, int part, Use use) const {
    const int threads = static_cast<int>(blockDim.x), begin = part * of_part,
              end = begin + of_part < packs ? begin + of_part : packs;
    SHARDC_UNROLL_BY(4)
    for (int q = begin + static_cast<int>(threadIdx.x); q < end; q += threads) use(q);
  }
  // use(c) for this thread's elements that are in no pack.
  template <typename Use>
  __device__ __forceinline__ void ForSingles(const Split& of, Use use) const {
    const int in_packs = of.packs * kN, singles = Classes() - in_packs;
    for (int i = static_cast<int>(threadIdx.x); i < singles; i += static_cast<int>(blockDim.x)) {
      use(i < of.head ? i : i + in_packs);
    }
  }
  __device__ __forceinline__ void Fetch(int64_t row, int part) const {
    if (row >= 0) {
      const Split of = Of(row);
      const T* from = x.data + row * x.stride + of.head;
      ForPacks(of.packs, part, [&](int q) { CopyAhead<16>(Kept(q), from + q * kN); });
    }
    CommitCopies();
  }
  // Behind it come the parts that follow.
  __device__ __forceinline__ void WaitForPart(int part) const {
    static_assert(kParts == 4);
    if (part == 0) WaitForCopies<3>();
    if (part == 1) WaitForCopies<2>();
    if (part == 2) WaitForCopies<1>();
    if (part == 3) WaitForCopies<0>();
  }

  __device__ void operator()(int64_t block) const {
    const int64_t last = rows - 1 - block;
    for (int part = 0; part < kParts; ++part) Fetch(last, part);
    for (int64_t row = last; row >= 0; row -= blocks) {
      const Split of = Of(row);
      const T* in = x.data + row * x.stride;
      // Loaded here, needed when the row was seen. By one lane: what is the same for all of a warp
      // would be waited for at once.
      const bool first = threadIdx.x % 32 == 0;
      const int64_t read = first ? labels.ids.Raw(row) : 0;
      const W scale = first ? Widen(dloss[row]) : W(0);
      RowState<T> seen{{}, 0, labels.smoothing != 0};
      for (int part = 0; part < kParts; ++part) {
        WaitForPart(part);
        ForPacks(of.packs, part, [&](int q) { seen.Add(LoadPack<T, kN>(Kept(q))); });
      }
      ForSingles(of, [&](int c) { seen.Add(LoadPack<T, 1>(in + c)); });
      const int64_t id = Shuffle(read, 0),
                    label = labels.Check(row, id, threadIdx.x == 0 ? labels.fault : nullptr);
      const W g = Shuffle(scale, 0);
      __syncthreads();
      const RowLoss<W> out = LossOfRow(seen, labels, label, [&](int64_t l) {
        const int at = static_cast<int>(l) - of.head;
        return at >= 0 && at < of.packs * kN ? *(Kept(0) + at) : in[l];
      });
      __syncthreads();  // the target's logit was read, and may go
      const RowGradient<W> gradient(labels, label, g, out.lse);
      U* to = dx + row * x.stride;
      for (int part = 0; part < kParts; ++part) {
        ForPacks(of.packs, part, [&](int q) {
          const int c = of.head + q * kN;
          StorePack(to + c, gradient.template Of<U>(LoadPack<T, kN>(Kept(q)), c));
        });
        Fetch(row - blocks, part);
      }
      ForSingles(of, [&](int c) {
        StorePack(to + c, gradient.template Of<U>(LoadPack<T, 1>(in + c), c));
      });
      ClearPadding(x, row, dx);
      if (threadIdx.x == 0) loss[row] = Narrow<S>(label < 0 ? W(0) : out.loss);
    }
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
  using Kept = CrossEntropyWithGradOfKept<S, T, U>;
  const int64_t bytes = Kept::SharedBytes(x.runs.runs[0].size);
  if (bytes > MostShared(RowsKernel<Kept>)) {
    return PerRow(
        CrossEntropyWithGrad<S, T, U>{x, p.labels, In<S>(r, 0), Out<S>(r, 0), Out<U>(r, 1)}, p,
        x.stride);
  }
  AllowShared(RowsKernel<Kept>, static_cast<size_t>(bytes));
  const int threads = RowGrid(p.rows, x.stride).threads;
  const int64_t blocks = BlocksAtOnce<Kept>(p.rows, threads, bytes);
  const int64_t rounds = CeilDiv(x.runs.runs[0].size / Kept::kN, Kept::kParts * threads);
  Kept f{x,
         p.labels,
         In<S>(r, 0),
         Out<S>(r, 0),
         Out<U>(r, 1),
         p.rows,
         blocks,
         static_cast<int>(rounds * threads)};
  return MakeKernel([f, threads, bytes, positions = p.positions](const Launch& launch) mutable {
    f.labels.fault = launch.fault;
    LaunchKernel(launch, RowsKernel<Kept>, f.blocks, threads, static_cast<size_t>(bytes), f,
                 f.blocks);
  });
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
