// sum_squares of one tensor or of many, with the additions and casts behind them, in three
// launches: of chunks, of tensors, and of what is left, which are scalars. Partial sums and their
// order depend on the tensor alone.
#include <map>

#include "ir/program.h"
#include "runtime/cuda/kernels/batch.h"
#include "runtime/cuda/kernels/gaps.h"
#include "runtime/cuda/kernels/scalars.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

template <typename T>
struct PartialSquares {
  struct Tensor {
    const T* x;
    int64_t n;
    int64_t first;     // among the partial sums
    const Gaps* gaps;  // null: it has no padding
    bool packed;
  };
  static constexpr int64_t kChunk = 8192;
  double* partial = nullptr;

  __device__ bool Begin() const { return true; }
  __device__ void operator()(bool, const Tensor& t, int64_t number) const {
    const int64_t begin = number * kChunk, left = t.n - begin;
    const int64_t count = left < kChunk ? left : kChunk;
    const T* x = t.x + begin;
    Wide<T> total = 0;
    auto add = [&](T v) {
      const Wide<T> w = Widen(v);
      total += w * w;
    };
    if (t.gaps) {
      for (int64_t i = threadIdx.x; i < count; i += kBatchThreads) {
        if (t.gaps->Valid(begin + i)) add(x[i]);
      }
    } else {
      ForStretch<T>(
          0, count, t.packed, [&](auto n, int64_t c) { return LoadPack<T, n.value>(x + c); },
          [&](auto n, int64_t, const auto& pack) {
            for (int j = 0; j < n.value; ++j) add(pack.v[j]);
          });
    }
    total = BlockSum(total);
    if (threadIdx.x == 0) partial[t.first + number] = total;
  }
};

// A block for each tensor.
struct FoldSquares {
  struct Tensor {
    int64_t first, count;  // of its partial sums
    DType dtype;
  };
  const Tensor* tensors;
  const double* partial;
  double* squares;
  __device__ void operator()(int64_t i) const {
    const Tensor t = tensors[i];
    double total = 0;
    for (int64_t c = threadIdx.x; c < t.count; c += blockDim.x) total += partial[t.first + c];
    total = BlockSum(total);
    if (threadIdx.x == 0) squares[i] = Rounded(t.dtype, total);
  }
};

// Slots hold the sums of squares, then the result of each step. What a step adds is a slot, or
// ~i for the scalar `loads[i]`.
struct ScalarStep {
  static constexpr int32_t kNone = INT32_MIN;
  int32_t a, b;
  DType dtype;
};
struct Stored {
  ScalarView to;
  int32_t slot;
};

// One block. W holds all values exactly.
template <typename W>
struct ScalarSteps {
  const double* squares = nullptr;
  const ScalarView* loads;
  const ScalarStep* steps;
  const Stored* stores;
  int num_squares, num_steps, num_stores;

  size_t shared() const {
    return static_cast<size_t>(num_squares + num_steps) * sizeof(W) +
           static_cast<size_t>(num_steps) * sizeof(ScalarStep);
  }
  __device__ W Value(const W* slots, int32_t of) const {
    return of >= 0 ? slots[of] : static_cast<W>(loads[~of].Value());
  }
  __device__ void operator()(int64_t) const {
    W* slots = reinterpret_cast<W*>(SharedMemory());
    auto* own = reinterpret_cast<ScalarStep*>(slots + num_squares + num_steps);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < num_squares; i += threads) slots[i] = static_cast<W>(squares[i]);
    for (int i = thread; i < num_steps; i += threads) own[i] = steps[i];
    __syncthreads();
    if (thread > 0) return;
    for (int i = 0; i < num_steps; ++i) {
      const ScalarStep s = own[i];
      W v = Value(slots, s.a);
      if (s.b != ScalarStep::kNone) v += Value(slots, s.b);
      slots[num_squares + i] = Rounded(s.dtype, v);
    }
    for (int i = 0; i < num_stores; ++i) stores[i].to.Store(slots[stores[i].slot]);
  }
};

// What a run leaves, and what it does for it behind its sums of squares.
class Plan {
 public:
  Plan(std::span<const KernelRequest> run, int squares) {
    int square = 0;
    for (const KernelRequest& r : run) {
      int slot = square;
      if (r.instruction.op == "sum_squares") {
        ++square;
      } else {
        slot = squares + static_cast<int>(steps.size());
        const bool two = r.call.in.size() > 1;
        steps.push_back({Read(r, 0), two ? Read(r, 1) : ScalarStep::kNone, r.call.out[0].dtype});
      }
      Keep({Scalar(r.call.out[0]), slot});
      for (int buffer : r.instruction.results) slots_[buffer] = slot;
    }
  }

  std::vector<ScalarView> loads;
  std::vector<ScalarStep> steps;
  std::vector<Stored> stores;

 private:
  int Read(const KernelRequest& r, size_t i) {
    auto [at, added] =
        slots_.try_emplace(r.instruction.operands[i], ~static_cast<int>(loads.size()));
    if (added) loads.push_back(Scalar(r.call.in[i]));
    return at->second;
  }
  // Of what is written to one place only the last.
  void Keep(const Stored& last) {
    std::erase_if(stores, [&](const Stored& s) {
      return s.to.data == last.to.data && DTypeSize(s.to.dtype) <= DTypeSize(last.to.dtype);
    });
    stores.push_back(last);
  }

  std::map<int, int> slots_;  // by buffer
};

class SquaresKernel : public CudaKernel {
 public:
  // Null where a tensor has more padding than a kernel takes.
  static KernelPtr Make(std::span<const KernelRequest> run) {
    auto kernel = std::make_unique<SquaresKernel>();
    std::vector<const KernelRequest*> squares;
    for (const KernelRequest& r : run) {
      if (r.instruction.op == "sum_squares") squares.push_back(&r);
    }
    if (!kernel->PlanSums(squares)) return nullptr;
    kernel->PlanSteps(run);
    return kernel;
  }

  void Enqueue(const Launch& launch) override {
    auto* partial = reinterpret_cast<double*>(launch.workspace);
    double* squares = partial + partials_;
    for (const KernelPtr& first : firsts_) first->Enqueue(launch);
    const FoldSquares fold{tensors_.data(), partial, squares};
    LaunchKernel(launch, RowsKernel<FoldSquares>, num_squares_, 256, 0, fold,
                 int64_t{num_squares_});
    if (wide_) return LaunchSteps<double>(launch, squares);
    LaunchSteps<float>(launch, squares);
  }
  int64_t workspace_bytes() const override {
    return (partials_ + num_squares_) * static_cast<int64_t>(sizeof(double));
  }

 private:
  bool PlanSums(const std::vector<const KernelRequest*>& squares) {
    std::vector<FoldSquares::Tensor> tensors;
    std::vector<Gaps> gaps;
    std::vector<int> gaps_of;
    for (const KernelRequest* r : squares) {
      const TensorView& x = r->call.in[0];
      const Ints strides = DenseStrides(x.shape);
      Gaps own;
      for (int d = 0; d < x.rank(); ++d) {
        if (!AddGaps(*r, d, strides[static_cast<size_t>(d)], &own)) return false;
      }
      gaps_of.push_back(own.count > 0 ? static_cast<int>(gaps.size()) : -1);
      if (own.count > 0) gaps.push_back(own);
      const int64_t count = CeilDiv(x.num_elements(), PartialSquares<float>::kChunk);
      tensors.push_back({partials_, count, x.dtype});
      partials_ += count;
    }
    num_squares_ = static_cast<int>(squares.size());
    tensors_ = DeviceTable<FoldSquares::Tensor>(tensors);
    gaps_ = DeviceTable<Gaps>(gaps);
    for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      KernelPtr first = DispatchFloat(dtype, [&](auto t) -> KernelPtr {
        using F = PartialSquares<decltype(t)>;
        std::vector<typename F::Tensor> of;
        for (size_t i = 0; i < squares.size(); ++i) {
          const TensorView& x = squares[i]->call.in[0];
          if (x.dtype != dtype) continue;
          of.push_back({x.as<decltype(t)>(), x.num_elements(), tensors[i].first,
                        gaps_of[i] < 0 ? nullptr : gaps_.data() + gaps_of[i], Aligned(x.data, 16)});
        }
        if (of.empty()) return nullptr;
        return MakeKernel([batch = Batch<F>(of)](const Launch& launch) {
          batch.Enqueue(launch, F{reinterpret_cast<double*>(launch.workspace)});
        });
      });
      if (first) firsts_.push_back(std::move(first));
    }
    return true;
  }

  void PlanSteps(std::span<const KernelRequest> run) {
    const Plan plan(run, num_squares_);
    for (const KernelRequest& r : run) {
      for (const TensorView& v : r.call.in) wide_ |= v.dtype == DType::kF64;
    }
    loads_ = DeviceTable<ScalarView>(plan.loads);
    steps_ = DeviceTable<ScalarStep>(plan.steps);
    stores_ = DeviceTable<Stored>(plan.stores);
    num_steps_ = static_cast<int>(plan.steps.size());
    num_stores_ = static_cast<int>(plan.stores.size());
  }

  template <typename W>
  void LaunchSteps(const Launch& launch, const double* squares) const {
    const ScalarSteps<W> f{squares,      loads_.data(), steps_.data(), stores_.data(),
                           num_squares_, num_steps_,    num_stores_};
    LaunchKernel(launch, RowsKernel<ScalarSteps<W>>, 1, 256, f.shared(), f, int64_t{1});
  }

  int64_t partials_ = 0;
  DeviceTable<FoldSquares::Tensor> tensors_;
  DeviceTable<Gaps> gaps_;
  std::vector<KernelPtr> firsts_;  // by type
  DeviceTable<ScalarView> loads_;
  DeviceTable<ScalarStep> steps_;
  DeviceTable<Stored> stores_;
  int num_squares_ = 0, num_steps_ = 0, num_stores_ = 0;
  bool wide_ = false;  // a value needs f64
};

}  // namespace

KernelPtr MakeSquares(std::span<const KernelRequest> run) { return SquaresKernel::Make(run); }

namespace {
constexpr Binding kBindings[] = {{"sum_squares", OfOne<MakeSquares>}};
}  // namespace

std::span<const Binding> SumSquaresBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
