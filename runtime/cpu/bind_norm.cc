#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

void RowsAndCols(const TensorView& x, int64_t* rows, int64_t* cols) {
  *cols = x.shape.back();
  *rows = Product(x.shape, 0, x.shape.size() - 1);
}

template <typename Args>
void SetY(const KernelRequest& r, size_t result, Args* args) {
  if (r.call.out[result].dtype == DType::kBF16) {
    args->y_bf16 = OutBf16(r, result);
  } else {
    args->y = Out(r, result);
  }
}

template <bool kRms>
std::unique_ptr<Kernel> MakeForward(const KernelRequest& r) {
  if (!AllF32But(r, 0)) return nullptr;
  NormForwardArgs args;
  args.x = In(r, 0);
  if (r.call.in.size() > 1) args.w = In(r, 1);
  if (r.call.in.size() > 2) args.b = In(r, 2);
  SetY(r, 0, &args);
  if (!kRms) args.mean = Out(r, 1);
  args.rstd = Out(r, kRms ? 1 : 2);
  args.eps = static_cast<float>(r.call.attrs->Float("eps"));
  RowsAndCols(r.call.in[0], &args.rows, &args.cols);
  return MakeKernel([args, threads = r.call.threads] {
    const NormKernels& k = Kernels().norm;
    (kRms ? k.rms_norm_forward : k.layer_norm_forward)(args, threads);
  });
}

// x, r[, w[, b]] -> x + r, y, mean, rstd
std::unique_ptr<Kernel> MakeAddLayerNorm(const KernelRequest& r) {
  if (!AllF32But(r, 1, 1)) return nullptr;
  NormForwardArgs args;
  args.x = In(r, 0);
  if (r.call.in[1].dtype == DType::kBF16) {
    args.residual_bf16 = InBf16(r, 1);
  } else {
    args.residual = In(r, 1);
  }
  if (r.call.in.size() > 2) args.w = In(r, 2);
  if (r.call.in.size() > 3) args.b = In(r, 3);
  args.sum = Out(r, 0);
  SetY(r, 1, &args);
  args.mean = Out(r, 2);
  args.rstd = Out(r, 3);
  args.eps = static_cast<float>(r.call.attrs->Float("eps"));
  RowsAndCols(r.call.in[0], &args.rows, &args.cols);
  return MakeKernel(
      [args, threads = r.call.threads] { Kernels().norm.layer_norm_forward(args, threads); });
}

// Whether the norm's result is wanted again: the last.
bool WantsY(const KernelRequest& r) { return r.call.attrs->Has("y"); }

// Whether all is f32 but the operand, the result, and y, which may be bf16.
bool Suits(const KernelRequest& r, size_t result, size_t operand) {
  const bool narrow = WantsY(r) && r.call.out.back().dtype == DType::kBF16;
  if (!narrow) return AllF32But(r, result, operand);
  KernelRequest others = r;
  others.call.out = r.call.out.first(r.call.out.size() - 1);
  return AllF32But(others, result, operand);
}

// dy, x, [mean,] rstd[, w[, b]] from operand `first` on; -> dx, then dw[, db] in [weights, end),
// and y at the end.
template <bool kRms>
std::unique_ptr<Kernel> MakeBackward(const KernelRequest& r, NormBackwardArgs args, size_t first,
                                     size_t weights, size_t end) {
  if (r.call.in[first].dtype == DType::kBF16) {
    args.dy_bf16 = InBf16(r, first);
  } else {
    args.dy = In(r, first);
  }
  args.x = In(r, first + 1);
  if (!kRms) args.mean = In(r, first + 2);
  args.rstd = In(r, first + (kRms ? 2 : 3));
  const size_t w = first + (kRms ? 3 : 4);
  if (r.call.in.size() > w) args.w = In(r, w);
  if (r.call.in.size() > w + 1) args.b = In(r, w + 1);
  if (WantsY(r)) SetY(r, r.call.out.size() - 1, &args);
  args.dx = Out(r, 0);
  if (end > weights) args.dw = Out(r, weights);
  if (end > weights + 1) args.db = Out(r, weights + 1);
  RowsAndCols(r.call.in[first + 1], &args.rows, &args.cols);
  return MakeKernel([args, threads = r.call.threads] {
    const NormKernels& k = Kernels().norm;
    (kRms ? k.rms_norm_backward : k.layer_norm_backward)(args, threads);
  });
}

template <bool kRms>
std::unique_ptr<Kernel> MakeBackward(const KernelRequest& r) {
  if (!Suits(r, kNone, 0)) return nullptr;
  return MakeBackward<kRms>(r, {}, 0, 1, r.call.out.size() - (WantsY(r) ? 1 : 0));
}

// residual, dy, ... -> sum, copy[, dw[, db]][, sums of columns][, y]
template <bool kRms>
std::unique_ptr<Kernel> MakeBackwardAdd(const KernelRequest& r) {
  if (!Suits(r, 1, 1)) return nullptr;
  NormBackwardArgs args;
  args.residual_grad = In(r, 0);
  if (r.call.out[1].dtype == DType::kBF16) {
    args.dx_bf16 = OutBf16(r, 1);
  } else {
    args.dx_copy = Out(r, 1);
  }
  size_t end = r.call.out.size() - (WantsY(r) ? 1 : 0);
  if (r.call.attrs->Bool("sums")) args.dx_sums = Out(r, --end);
  return MakeBackward<kRms>(r, args, 1, 2, end);
}

// The dims before the axis, along it and behind it.
struct Middle {
  int64_t rows, cols, inner;
  explicit Middle(const KernelRequest& r) {
    const Shape& shape = r.call.in[0].shape;
    int64_t axis = r.call.attrs->Int("axis", -1);
    if (axis < 0) axis += r.call.in[0].rank();
    const auto at = static_cast<size_t>(axis);
    rows = Product(shape, 0, at);
    cols = shape[at];
    inner = Product(shape, at + 1, shape.size());
  }
};

std::unique_ptr<Kernel> MakeSoftmax(const KernelRequest& r) {
  if (!AllF32(r)) return nullptr;
  return MakeKernel([x = In(r, 0), y = Out(r, 0), m = Middle(r), threads = r.call.threads] {
    Kernels().softmax.forward(x, y, m.rows, m.cols, m.inner, threads);
  });
}

std::unique_ptr<Kernel> MakeSoftmaxGrad(const KernelRequest& r) {
  if (!AllF32(r)) return nullptr;
  return MakeKernel(
      [dy = In(r, 0), y = In(r, 1), dx = Out(r, 0), m = Middle(r), threads = r.call.threads] {
        Kernels().softmax.backward(y, dy, dx, m.rows, m.cols, m.inner, threads);
      });
}

constexpr Binding kBindings[] = {{"layer_norm", MakeForward<false>},
                                 {"layer_norm_grad", MakeBackward<false>},
                                 {"layer_norm_grad_add", MakeBackwardAdd<false>},
                                 {"rms_norm", MakeForward<true>},
                                 {"rms_norm_grad", MakeBackward<true>},
                                 {"rms_norm_grad_add", MakeBackwardAdd<true>},
                                 {"softmax", MakeSoftmax},
                                 {"softmax_grad", MakeSoftmaxGrad},
                                 {"add_layer_norm", MakeAddLayerNorm}};

}  // namespace

std::span<const Binding> NormBindings() { return kBindings; }

}  // namespace shardc::cpu
