#include "runtime/cuda/kernels/reduction.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda {
namespace SHARDC_KERNEL_SPACE {
namespace {

struct Pointers {
  const std::byte* sources[kMaxReductionRanks];
  std::byte* targets[kMaxReductionRanks];
  int num_sources, num_targets;
};

struct SumOf {
  template <typename W>
  static __device__ W Fold(W a, W b) {
    return AddFn()(a, b);
  }
};
struct MaxOf {
  template <typename W>
  static __device__ W Fold(W a, W b) {
    return MaxNan(a, b);
  }
};

// An item per kN elements.
template <typename T, typename Op, int kN>
struct ReduceRanks {
  Pointers p;
  __device__ void operator()(int64_t item) const {
    const int64_t at = item * kN;
    Wide<T> sum[kN];
    auto first = LoadPack<T, kN>(reinterpret_cast<const T*>(p.sources[0]) + at);
    for (int j = 0; j < kN; ++j) sum[j] = Widen(first.v[j]);
    for (int r = 1; r < p.num_sources; ++r) {
      auto next = LoadPack<T, kN>(reinterpret_cast<const T*>(p.sources[r]) + at);
      for (int j = 0; j < kN; ++j) sum[j] = Op::Fold(sum[j], Widen(next.v[j]));
    }
    Pack<T, kN> out;
    for (int j = 0; j < kN; ++j) out.v[j] = Narrow<T>(sum[j]);
    for (int r = 0; r < p.num_targets; ++r) {
      StorePack<T, kN>(reinterpret_cast<T*>(p.targets[r]) + at, out);
    }
  }
};

template <typename T, typename Op, int kN>
void Run(const Launch& launch, const Pointers& p, int64_t begin, int64_t items) {
  Pointers shifted = p;
  const int64_t offset = begin * static_cast<int64_t>(sizeof(T));
  for (int r = 0; r < p.num_sources; ++r) shifted.sources[r] += offset;
  for (int r = 0; r < p.num_targets; ++r) shifted.targets[r] += offset;
  Grid grid = ElementGrid(items);
  LaunchKernel(launch, ElementsKernel<ReduceRanks<T, Op, kN>>, grid.blocks, grid.threads, 0,
               ReduceRanks<T, Op, kN>{shifted}, items);
}

template <typename T, typename Op>
void RunPacked(const Launch& launch, const Pointers& p, int64_t n) {
  constexpr int kN = kPack<T>;
  bool aligned = true;
  for (int r = 0; r < p.num_sources; ++r) aligned = aligned && Aligned(p.sources[r], 16);
  for (int r = 0; r < p.num_targets; ++r) aligned = aligned && Aligned(p.targets[r], 16);
  const int64_t packs = aligned ? n / kN : 0;
  Run<T, Op, kN>(launch, p, 0, packs);
  Run<T, Op, 1>(launch, p, packs * kN, n - packs * kN);
}

}  // namespace

void LaunchReduction(const Launch& launch, const Reduction& r) {
  if (r.count == 0) return;
  SHARDC_CHECK(r.sources.size() <= kMaxReductionRanks && r.targets.size() <= kMaxReductionRanks);
  SHARDC_CHECK(r.dtype != DType::kBool || r.op != ReduceOp::kSum, "there is no sum of bools");
  Pointers p = {};
  std::copy(r.sources.begin(), r.sources.end(), p.sources);
  std::copy(r.targets.begin(), r.targets.end(), p.targets);
  p.num_sources = static_cast<int>(r.sources.size());
  p.num_targets = static_cast<int>(r.targets.size());
  DispatchAny(r.dtype, [&](auto t) -> KernelPtr {
    using T = decltype(t);
    switch (r.op) {
      case ReduceOp::kSum:
        if constexpr (!std::is_same_v<T, Bool>) RunPacked<T, SumOf>(launch, p, r.count);
        break;
      case ReduceOp::kMax:
        RunPacked<T, MaxOf>(launch, p, r.count);
        break;
      case ReduceOp::kMin:
        SHARDC_CHECK(false, "no collective of a program is a minimum");
    }
    return nullptr;
  });
}

}  // namespace SHARDC_KERNEL_SPACE

#if defined(__CUDACC__)
void LaunchReduction(const Launch& launch, const Reduction& r) {
  device::LaunchReduction(launch, r);
}
#endif

}  // namespace shardc::cuda
