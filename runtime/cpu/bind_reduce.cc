#include <utility>
#include <vector>

#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

// A sum over the middle dim of [outer, rows, cols].
struct Step {
  int64_t outer, rows, cols;
};

// The reduced axes run by run, the last run first; none where there is nothing to do, or padding
// along an axis.
std::vector<Step> StepsOf(const KernelRequest& r) {
  const TensorView& x = r.call.in[0];
  std::vector<bool> reduced(x.rank());
  for (int64_t a : r.call.attrs->IntList("axes")) {
    const int64_t axis = a < 0 ? a + x.rank() : a;
    if (!Full(r, x, static_cast<int>(axis))) return {};
    reduced[axis] = true;
  }
  std::vector<Step> steps;
  if (x.num_elements() == 0) return steps;
  int64_t left = x.num_elements(), kept = 1;  // what is in front; what is kept behind
  bool in_run = false;
  for (int d = x.rank(); d-- > 0;) {
    const int64_t n = x.shape[d];
    left /= n;
    if (n == 1) continue;
    if (!reduced[d]) {
      kept *= n;
    } else if (in_run) {
      steps.back().outer = left;
      steps.back().rows *= n;
    } else {
      steps.push_back({left, n, kept});
    }
    in_run = reduced[d];
  }
  return steps;
}

int64_t GlobalCount(const KernelRequest& r) {
  int64_t n = 1;
  for (int64_t a : r.call.attrs->IntList("axes")) {
    const TensorView& x = r.call.in[0];
    n *= r.call.GlobalDim(x, static_cast<int>(a < 0 ? a + x.rank() : a));
  }
  return n;
}

template <bool kMean>
std::unique_ptr<Kernel> MakeSum(const KernelRequest& r) {
  const std::vector<Step> steps = StepsOf(r);
  if (steps.empty()) return nullptr;
  const int threads = r.call.threads;
  const Step& first = steps[0];
  if (!kMean && r.call.in[0].dtype == DType::kBF16 && r.call.out[0].dtype == DType::kF32 &&
      steps.size() == 1 && first.outer == 1) {
    return MakeKernel([x = InBf16(r, 0), y = Out(r, 0), first, threads] {
      Kernels().reduce.sum_rows_bf16(x, y, first.rows, first.cols, false, threads);
    });
  }
  if (!AllF32(r)) return nullptr;
  const float* x = In(r, 0);
  float* y = Out(r, 0);
  const double scale = kMean ? 1.0 / static_cast<double>(GlobalCount(r)) : 1.0;
  if (steps.size() == 1 && first.outer == 1 && first.cols == 1) {
    return MakeKernel([=, n = first.rows] {
      double sum;
      Kernels().reduce.sum(x, n, &sum, threads);
      *y = static_cast<float>(sum * scale);
    });
  }
  // What all steps but the last leave.
  std::vector<std::vector<float>> between;
  int64_t held = 0;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    held += steps[i].outer * steps[i].cols;
    between.emplace_back(steps[i].outer * steps[i].cols);
  }
  const int64_t results = steps.back().outer * steps.back().cols;
  auto run = [=, between = std::move(between)]() mutable {
    const KernelTable& k = Kernels();
    const float* from = x;
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto& [outer, rows, cols] = steps[i];
      float* to = i < between.size() ? between[i].data() : y;
      if (cols == 1) {
        k.reduce.sum_last(from, to, outer, rows, threads);
      } else {
        k.reduce.sum_middle(from, to, outer, rows, cols, threads);
      }
      from = to;
    }
    if (kMean) k.elementwise.affine(y, static_cast<float>(scale), 0, y, results, threads);
  };
  return MakeKernel(std::move(run), held * static_cast<int64_t>(sizeof(float)));
}

// Over the last axis, padded or not.
std::unique_ptr<Kernel> MakeMax(const KernelRequest& r) {
  const TensorView& x = r.call.in[0];
  const Ints& axes = r.call.attrs->IntList("axes");
  auto known = [](DType t) { return t == DType::kF32 || t == DType::kBF16; };
  if (!known(x.dtype) || !known(r.call.out[0].dtype)) return nullptr;
  if (axes.size() != 1 || (axes[0] != -1 && axes[0] != x.rank() - 1)) return nullptr;
  auto runs = r.call.Runs(x, x.rank() - 1);
  if (runs.size() > 1 || (!runs.empty() && runs[0].local != 0)) return nullptr;
  LogitShard shard;
  if (x.dtype == DType::kBF16) {
    shard.logits_bf16 = InBf16(r, 0);
  } else {
    shard.logits = In(r, 0);
  }
  shard.stride = x.shape.back();
  shard.rows = Product(x.shape, 0, x.shape.size() - 1);
  shard.valid = runs.empty() ? 0 : runs[0].size;
  if (r.call.out[0].dtype == DType::kBF16) {
    return MakeKernel([shard, y = OutBf16(r, 0), threads = r.call.threads] {
      Kernels().cross_entropy.row_max_bf16(shard, y, threads);
    });
  }
  return MakeKernel([shard, y = Out(r, 0), threads = r.call.threads] {
    Kernels().cross_entropy.row_max(shard, y, threads);
  });
}

std::unique_ptr<Kernel> MakeSumSquares(const KernelRequest& r) {
  const TensorView& x = r.call.in[0];
  for (int d = 0; d < x.rank(); ++d) {
    if (!Full(r, x, d)) return nullptr;
  }
  if (!AllF32(r)) return nullptr;
  return MakeKernel([x = In(r, 0), y = Out(r, 0), n = x.num_elements(), threads = r.call.threads] {
    double sum;
    Kernels().reduce.sum_squares(x, n, &sum, threads);
    *y = static_cast<float>(sum);
  });
}

constexpr Binding kBindings[] = {{"reduce_sum", MakeSum<false>},
                                 {"reduce_mean", MakeSum<true>},
                                 {"reduce_max", MakeMax},
                                 {"sum_squares", MakeSumSquares}};

}  // namespace

std::span<const Binding> ReduceBindings() { return kBindings; }

}  // namespace shardc::cpu
