// embedding_grad, gather_grad and gather_nd_grad: dx[o, ids[i], :] += dy[o, i, :], always in the
// order of i. A stable counting sort of the ids by row, then one sum per row; atomics only count
// integers.
#include <functional>

#include "runtime/cuda/kernels/index.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

struct Sorting {
  IdReader ids;
  Runs rows;
  int64_t count, n, chunk, chunks;  // ids; rows
  int *counters, *totals, *offsets, *order, *placed;
  Fault* fault;
  __device__ int64_t Row(int64_t i, Fault* report) const {
    int64_t id = ids.Read(i, report);
    return id < 0 ? -1 : rows.Local(id);
  }
};

// A kernel, not a memset: see Executor::Step.
struct ClearCounters : Sorting {
  __device__ void operator()(int64_t i) const {
    counters[i] = 0;
    if (i == 0) *placed = 0;
  }
};
// counters[chunk, row]: how often the chunk has the row.
struct CountIds : Sorting {
  __device__ void operator()(int64_t i) const {
    int64_t row = Row(i, fault);
    if (row >= 0) AtomicAdd(counters + i / chunk * n + row, 1);
  }
};
// A block per kRowThreads rows: counts become how many come before the chunk, and the rows get
// their places, which blocks take as they come: only within a row is there an order.
struct PlaceRows : Sorting {
  __device__ void operator()(int64_t item) const {
    __shared__ int sums[kRowThreads];
    __shared__ int base;
    const int me = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int64_t row = item * threads + me;
    int total = 0;
    constexpr int kAhead = 8;
    for (int64_t c = 0; row < n && c < chunks; c += kAhead) {
      int here[kAhead];
      SHARDC_UNROLL
      for (int k = 0; k < kAhead; ++k) here[k] = c + k < chunks ? counters[(c + k) * n + row] : 0;
      SHARDC_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        if (c + k < chunks) counters[(c + k) * n + row] = total;
        total += here[k];
      }
    }
    sums[me] = total;
    __syncthreads();
    for (int step = 1; step < threads; step *= 2) {
      const int before = me >= step ? sums[me - step] : 0;
      __syncthreads();
      sums[me] += before;
      __syncthreads();
    }
    if (me == threads - 1) base = AtomicAdd(placed, sums[me]);
    __syncthreads();
    if (row < n) {
      totals[row] = total;
      offsets[row] = base + sums[me] - total;
    }
    __syncthreads();
  }
};
// A block per chunk: every id finds its place by counting its equals before it in the chunk.
struct PlaceIds : Sorting {
  __device__ void operator()(int64_t c) const {
    // Of some ids at a time, in packs that all lanes read at once.
    __shared__ Pack<int, 4> packs[kRowThreads / 4];
    int* rows = packs[0].v;
    const int me = static_cast<int>(threadIdx.x);
    const int64_t begin = c * chunk, end = begin + chunk < count ? begin + chunk : count;
    for (int64_t first = begin; first < end; first += kRowThreads) {
      const int64_t i = first + me;
      const int row = i < end ? static_cast<int>(Row(i, nullptr)) : -1;
      int rank = 0;
      for (int64_t other = begin; other <= first; other += kRowThreads) {
        __syncthreads();
        rows[me] = other == first ? row : static_cast<int>(Row(other + me, nullptr));
        __syncthreads();
        const int before = other == first ? me : kRowThreads;
        int j = 0;
        SHARDC_UNROLL_BY(4)
        for (; j + 4 <= before; j += 4) {
          const auto four = LoadPack<int, 4>(rows + j);
          for (int k = 0; k < 4; ++k) rank += four.v[k] == row;
        }
        for (; j < before; ++j) rank += rows[j] == row;
      }
      if (row >= 0) order[offsets[row] + counters[c * n + row] + rank] = static_cast<int>(i);
    }
    __syncthreads();
  }
};

// An item per kN columns of a row of dx.
template <typename T, int kN>
struct SumRows {
  const T* dy;
  const T* sum;  // what is added to, or null; may be dx
  T* dx;
  const int *totals, *offsets, *order;
  int64_t count, n, packs;  // packs: columns / kN
  __device__ void operator()(int64_t item) const {
    int64_t c = item % packs * kN, rest = item / packs, row = rest % n, o = rest / n,
            cols = packs * kN;
    Wide<T> total[kN] = {};
    const int64_t at = (o * n + row) * cols + c;
    if (sum) {
      auto v = LoadPack<T, kN>(sum + at);
      for (int j = 0; j < kN; ++j) total[j] = Widen(v.v[j]);
    }
    const int begin = offsets[row], end = begin + totals[row];
    SHARDC_UNROLL_BY(4)
    for (int k = begin; k < end; ++k) {
      auto v = LoadPack<T, kN>(dy + (o * count + order[k]) * cols + c);
      for (int j = 0; j < kN; ++j) total[j] += Widen(v.v[j]);
    }
    Pack<T, kN> out;
    for (int j = 0; j < kN; ++j) out.v[j] = Narrow<T>(total[j]);
    StorePack<T, kN>(dx + at, out);
  }
};

// Where rows are few and each has many ids, as with token types, one chunk of ids is summed for
// each row before all are. An item per kN columns of a row and chunk.
template <typename T, int kN>
struct SumChunks {
  const T* dy;
  Wide<T>* sums;  // [o, chunk, row, column]
  const int *counters, *totals, *offsets, *order;
  int64_t count, n, chunks, packs;
  __device__ void operator()(int64_t item) const {
    const int64_t c = item % packs * kN, cols = packs * kN, at = item / packs;
    const int64_t row = at % n, chunk = at / n % chunks, o = at / n / chunks;
    const int begin = offsets[row] + counters[chunk * n + row],
              end = chunk + 1 < chunks ? offsets[row] + counters[(chunk + 1) * n + row]
                                       : offsets[row] + totals[row];
    Wide<T> total[kN] = {};
    SHARDC_UNROLL_BY(4)
    for (int k = begin; k < end; ++k) {
      auto v = LoadPack<T, kN>(dy + (o * count + order[k]) * cols + c);
      for (int j = 0; j < kN; ++j) total[j] += Widen(v.v[j]);
    }
    for (int j = 0; j < kN; ++j) sums[at * cols + c + j] = total[j];
  }
};
// An item per element of dx.
template <typename T>
struct AddChunks {
  const Wide<T>* sums;
  const T* sum;  // as in SumRows
  T* dx;
  int64_t elements, chunks;  // of n rows
  __device__ void operator()(int64_t item) const {
    Wide<T> total = sum ? Widen(sum[item]) : Wide<T>(0);
    const Wide<T>* at = sums + item / elements * chunks * elements + item % elements;
    for (int64_t c = 0; c < chunks; ++c) total += at[c * elements];
    dx[item] = Narrow<T>(total);
  }
};

template <typename F>
void PerElement(const Launch& launch, const F& f, int64_t items) {
  Grid grid = ElementGrid(items);
  LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, items);
}

void Sort(const Launch& launch, const Sorting& s) {
  PerElement(launch, ClearCounters{s}, s.chunks * s.n);
  PerElement(launch, CountIds{s}, s.count);
  const int64_t tiles = CeilDiv(s.n, kRowThreads);
  LaunchKernel(launch, RowsKernel<PlaceRows>, tiles, kRowThreads, 0, PlaceRows{s}, tiles);
  LaunchKernel(launch, RowsKernel<PlaceIds>, s.chunks, kRowThreads, 0, PlaceIds{s}, s.chunks);
}

// s: the ids and the rows, of which only the sizes and readers are set. prepare(launch, workspace):
// runs before the sort, which takes ids for `prepared` bytes of work memory that it fills; null
// where the ids are an operand.
using Prepare = std::function<void(const Launch&, std::byte*)>;
KernelPtr MakeSums(const KernelRequest& r, Sorting s, int64_t cols,
                   std::shared_ptr<DeviceTable<int64_t>> positions, Prepare prepare = {}) {
  const TensorView& dx = r.call.out[0];
  const bool adds = r.call.in.size() > 2;
  if (s.count > kGreatest<int32_t> || s.n >= kGreatest<int32_t>) return nullptr;
  CountingPlan plan = PlanCounting(s.count, s.n);
  s.chunk = plan.chunk;
  s.chunks = plan.chunks;
  return DispatchFloat(dx.dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int kN = kPack<T>;
    const T* sum = adds ? In<T>(r, 2) : nullptr;
    bool packed = Packs<T>(cols, In<T>(r, 0), Out<T>(r, 0)) && Packs<T>(cols, sum);
    const int64_t elements = dx.num_elements(), ids_at = plan.bytes,
                  sums_at = ids_at + (prepare ? CeilDiv(s.count * 8, 256) * 256 : 0);
    const int64_t sums_bytes =
        SumsByChunk(s.n, plan) ? plan.chunks * elements * static_cast<int64_t>(sizeof(Wide<T>)) : 0;
    auto run = [=, positions = positions, from = In<T>(r, 0),
                to = Out<T>(r, 0)](const Launch& launch) mutable {
      auto at = [&](int64_t offset) { return reinterpret_cast<int*>(launch.workspace + offset); };
      s.counters = at(plan.counters);
      s.totals = at(plan.totals);
      s.offsets = at(plan.offsets);
      s.order = at(plan.order);
      s.placed = at(plan.placed);
      s.fault = launch.fault;
      if (prepare) {
        s.ids.data = launch.workspace + ids_at;
        s.fault = nullptr;  // what is wrong was reported when the ids were made
        prepare(launch, launch.workspace + ids_at);
      }
      Sort(launch, s);
      if (sums_bytes > 0) {
        auto* sums = reinterpret_cast<Wide<T>*>(launch.workspace + sums_at);
        auto sum_chunks = [&](auto each) {
          PerElement(launch,
                     SumChunks<T, each.value>{from, sums, s.counters, s.totals, s.offsets, s.order,
                                              s.count, s.n, s.chunks, cols / each.value},
                     s.chunks * elements / each.value);
        };
        if (packed) {
          sum_chunks(std::integral_constant<int, kN>());
        } else {
          sum_chunks(std::integral_constant<int, 1>());
        }
        PerElement(launch, AddChunks<T>{sums, sum, to, s.n * cols, s.chunks}, elements);
      } else if (packed) {
        PerElement(
            launch,
            SumRows<T, kN>{from, sum, to, s.totals, s.offsets, s.order, s.count, s.n, cols / kN},
            elements / kN);
      } else {
        PerElement(launch,
                   SumRows<T, 1>{from, sum, to, s.totals, s.offsets, s.order, s.count, s.n, cols},
                   elements);
      }
    };
    return MakeKernel(run, sums_at + sums_bytes);
  });
}

KernelPtr MakeClear(const TensorView& dx) {
  return MakeKernel(
      [to = dx.data, bytes = Bytes(dx)](const Launch& launch) { ClearBytes(launch, to, bytes); });
}

KernelPtr MakeScatter(const KernelRequest& r, int axis, bool negative, Fault::Kind kind) {
  const TensorView &dy = r.call.in[0], &ids = r.call.in[1], &dx = r.call.out[0];
  auto dim = static_cast<size_t>(axis);
  if (dx.num_elements() == 0) return NoWork();
  if (dy.num_elements() == 0 && r.call.in.size() == 2) return MakeClear(dx);
  Sorting s{};
  if (!MakeRuns(r, dx, axis, &s.rows)) return nullptr;
  auto positions = std::make_shared<DeviceTable<int64_t>>(Positions(r, ids));
  s.ids = MakeIdReader(ids, r.call.GlobalDim(dx, axis), negative, kind, *positions);
  s.count = ids.num_elements();
  s.n = dx.shape[dim];
  return MakeSums(r, s, Product(dx.shape, dim + 1, dx.shape.size()), std::move(positions));
}

KernelPtr MakeEmbeddingGrad(const KernelRequest& r) {
  return MakeScatter(r, 0, false, Fault::kBadId);
}
KernelPtr MakeGatherGrad(const KernelRequest& r) {
  return MakeScatter(r, Axis(r.call.attrs->Int("axis"), r.call.out[0].rank()), true,
                     Fault::kBadIndex);
}

// rows[i]: the row of dx, batch and indexed dims flattened, that tuple i picks; -1 in padding.
struct TupleRows {
  IndexTuple tuple;
  int64_t* rows;
  Fault* fault;
  __device__ void operator()(int64_t i) const { rows[i] = tuple.Offset(i, fault); }
};

KernelPtr MakeGatherNdGrad(const KernelRequest& r) {
  const TensorView &dy = r.call.in[0], &indices = r.call.in[1], &dx = r.call.out[0];
  if (dx.num_elements() == 0) return NoWork();
  if (dy.num_elements() == 0) return MakeClear(dx);
  auto positions = std::make_shared<DeviceTable<int64_t>>(Positions(r, indices));
  TupleRows f{};
  if (!MakeIndexTuple(r, dx.shape, *positions, &f.tuple)) return nullptr;
  const int64_t cols = f.tuple.block;
  f.tuple.CountRows();
  Sorting s{};
  s.count = Product(indices.shape, 0, indices.shape.size() - 1);
  s.n = dx.num_elements() / cols;
  s.rows.count = 1;
  s.rows.runs[0] = {0, 0, s.n};
  s.ids = {nullptr, true, s.n, false, Fault::kBadIndex, nullptr};
  return MakeSums(r, s, cols, std::move(positions),
                  [f, count = s.count](const Launch& launch, std::byte* rows) mutable {
                    f.rows = reinterpret_cast<int64_t*>(rows);
                    f.fault = launch.fault;
                    PerElement(launch, f, count);
                  });
}

constexpr Binding kBindings[] = {{"embedding_grad", MakeEmbeddingGrad},
                                 {"gather_grad", MakeGatherGrad},
                                 {"gather_nd_grad", MakeGatherNdGrad}};

}  // namespace

std::span<const Binding> ScatterBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
