#include <algorithm>

#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

struct Axes {
  bool all = false, leading = false, trailing = false;
  int64_t rows = 1, cols = 1;  // leading: rows are reduced; trailing: cols
};

// The reduced axes as a prefix or suffix of the dims, without padding along them.
bool Classify(const KernelRequest& r, Axes* out) {
  const TensorView& x = r.call.in[0];
  Ints axes = r.call.attrs->IntList("axes");
  for (int64_t& a : axes) a = a < 0 ? a + x.rank() : a;
  std::sort(axes.begin(), axes.end());
  int64_t n = static_cast<int64_t>(axes.size()), rank = x.rank();
  if (n == 0 || x.num_elements() == 0) return false;
  for (int64_t a : axes) {
    if (!Full(r, x, static_cast<int>(a))) return false;
  }
  out->all = n == rank;
  out->leading = axes.front() == 0 && axes.back() == n - 1;
  out->trailing = axes.back() == rank - 1 && axes.front() == rank - n;
  if (out->trailing) {
    out->rows = Product(x.shape, 0, static_cast<size_t>(rank - n));
    out->cols = Product(x.shape, static_cast<size_t>(rank - n), x.shape.size());
  } else if (out->leading) {
    out->rows = Product(x.shape, 0, static_cast<size_t>(n));
    out->cols = Product(x.shape, static_cast<size_t>(n), x.shape.size());
  }
  return out->leading || out->trailing;
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
  Axes axes;
  if (!Classify(r, &axes)) return nullptr;
  if (!kMean && r.call.in[0].dtype == DType::kBF16 && r.call.out[0].dtype == DType::kF32 &&
      axes.leading) {
    // Reduced whole, a tensor is one column.
    int64_t cols = axes.all ? 1 : axes.cols, rows = NumElements(r.call.in[0].shape) / cols;
    return MakeKernel([x = InBf16(r, 0), y = Out(r, 0), rows, cols, threads = r.call.threads] {
      Kernels().reduce.sum_rows_bf16(x, y, rows, cols, false, threads);
    });
  }
  if (!AllF32(r)) return nullptr;
  const float* x = In(r, 0);
  float* y = Out(r, 0);
  int threads = r.call.threads;
  double scale = kMean ? 1.0 / static_cast<double>(GlobalCount(r)) : 1.0;
  if (axes.all) {
    return MakeKernel([=, n = axes.rows * axes.cols] {
      double sum;
      Kernels().reduce.sum(x, n, &sum, threads);
      *y = static_cast<float>(sum * scale);
    });
  }
  return MakeKernel([=] {
    const KernelTable& k = Kernels();
    if (axes.trailing) {
      k.reduce.sum_last(x, y, axes.rows, axes.cols, threads);
    } else {
      k.reduce.sum_rows(x, y, axes.rows, axes.cols, false, threads);
    }
    if (kMean) {
      k.elementwise.affine(y, static_cast<float>(scale), 0, y,
                           axes.trailing ? axes.rows : axes.cols, threads);
    }
  });
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
