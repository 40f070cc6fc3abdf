#include <optional>

#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

template <UnaryOp kOp>
std::unique_ptr<Kernel> MakeUnary(const KernelRequest& r) {
  if (AllBf16(r)) {
    return MakeKernel(
        [x = InBf16(r, 0), y = OutBf16(r, 0), n = r.call.out[0].num_elements(),
         threads = r.call.threads] { Kernels().elementwise.unary_bf16(kOp, x, y, n, threads); });
  }
  if (!AllF32(r)) return nullptr;
  return MakeKernel(
      [x = In(r, 0), y = Out(r, 0), n = r.call.out[0].num_elements(), threads = r.call.threads] {
        Kernels().elementwise.unary(kOp, x, y, n, threads);
      });
}

std::unique_ptr<Kernel> MakeGelu(const KernelRequest& r) {
  return r.call.attrs->String("approximate", "none") == "tanh" ? MakeUnary<UnaryOp::kGeluTanh>(r)
                                                               : MakeUnary<UnaryOp::kGeluErf>(r);
}

// dy, saved -> dx
template <UnaryGradOp kOp>
std::unique_ptr<Kernel> MakeUnaryGrad(const KernelRequest& r) {
  if (r.call.in[0].shape != r.call.in[1].shape) return nullptr;
  if (AllBf16(r)) {
    return MakeKernel([dy = InBf16(r, 0), saved = InBf16(r, 1), dx = OutBf16(r, 0),
                       n = r.call.out[0].num_elements(), threads = r.call.threads] {
      Kernels().elementwise.unary_grad_bf16(kOp, saved, dy, dx, n, threads);
    });
  }
  if (!AllF32(r)) return nullptr;
  return MakeKernel([dy = In(r, 0), saved = In(r, 1), dx = Out(r, 0),
                     n = r.call.out[0].num_elements(), threads = r.call.threads] {
    Kernels().elementwise.unary_grad(kOp, saved, dy, dx, n, threads);
  });
}

std::unique_ptr<Kernel> MakeGeluGrad(const KernelRequest& r) {
  return r.call.attrs->String("approximate", "none") == "tanh"
             ? MakeUnaryGrad<UnaryGradOp::kGeluTanh>(r)
             : MakeUnaryGrad<UnaryGradOp::kGeluErf>(r);
}

// How `small` broadcasts to `big`, if it is one of the forms with a kernel.
template <typename T>
std::optional<BinaryArgsOf<T>> Form(const Shape& big, const Shape& small) {
  BinaryArgsOf<T> args;
  int64_t n = NumElements(big), m = NumElements(small);
  if (m == 1) {
    args.cols = n;
    args.broadcast = Broadcast::kScalar;
    return args;
  }
  // Aligned at the right; leading ones left out.
  Shape s(big.size() - small.size(), 1);
  s.insert(s.end(), small.begin(), small.end());
  if (s == big) {
    args.cols = n;
    return args;
  }
  size_t first = 0;
  while (first < s.size() && s[first] == 1) ++first;
  if (std::equal(s.begin() + static_cast<int64_t>(first), s.end(),
                 big.begin() + static_cast<int64_t>(first))) {
    args.cols = m;
    args.rows = n / m;
    args.broadcast = Broadcast::kRow;
    return args;
  }
  size_t last = s.size();
  while (last > 0 && s[last - 1] == 1) --last;
  if (std::equal(s.begin(), s.begin() + static_cast<int64_t>(last), big.begin())) {
    args.rows = m;
    args.cols = n / m;
    args.broadcast = Broadcast::kColumn;
    return args;
  }
  return std::nullopt;
}

template <typename T>
std::optional<BinaryArgsOf<T>> Arguments(const KernelRequest& r) {
  const Shape &a = r.call.in[0].shape, &b = r.call.in[1].shape, &out = r.call.out[0].shape;
  if (NumElements(out) == 0) return std::nullopt;
  std::optional<BinaryArgsOf<T>> args;
  const T *first = r.call.in[0].as<const T>(), *second = r.call.in[1].as<const T>();
  if (NumElements(a) == NumElements(out) && (args = Form<T>(out, b))) {
    args->a = first;
    args->b = second;
  } else if (NumElements(b) == NumElements(out) && (args = Form<T>(out, a))) {
    args->a = second;
    args->b = first;
    args->swapped = true;
  }
  return args;
}

template <BinaryOp kOp>
std::unique_ptr<Kernel> MakeBinary(const KernelRequest& r) {
  // In place over the small operand would be overwritten while it is read.
  if (AllBf16(r)) {
    auto args = Arguments<uint16_t>(r);
    if (args && (args->b != OutBf16(r, 0) || args->broadcast == Broadcast::kSame)) {
      return MakeKernel([args = *args, y = OutBf16(r, 0), threads = r.call.threads] {
        Kernels().elementwise.binary_bf16(kOp, args, y, threads);
      });
    }
  } else if (AllF32(r)) {
    auto args = Arguments<float>(r);
    if (args && (args->b != Out(r, 0) || args->broadcast == Broadcast::kSame)) {
      return MakeKernel([args = *args, y = Out(r, 0), threads = r.call.threads] {
        Kernels().elementwise.binary(kOp, args, y, threads);
      });
    }
  } else {
    return nullptr;
  }
  return MakeOneStep(r, {.kind = FusedStep::kBinary, .binary = kOp, .a = 0, .b = 1});
}

bool IsFloatWithKernel(const TensorView& v) {
  return v.dtype == DType::kF32 || v.dtype == DType::kBF16;
}

template <CompareOp kOp>
std::unique_ptr<Kernel> MakeCompare(const KernelRequest& r) {
  const TensorView &a = r.call.in[0], &b = r.call.in[1];
  if (a.dtype == DType::kF32 && b.dtype == DType::kF32) {
    if (auto args = Arguments<float>(r)) {
      return MakeKernel([args = *args, y = r.call.out[0].as<uint8_t>(), threads = r.call.threads] {
        Kernels().elementwise.compare(kOp, args, y, threads);
      });
    }
  }
  if (!IsFloatWithKernel(a) || !IsFloatWithKernel(b)) return nullptr;
  return MakeOneStep(r, {.kind = FusedStep::kCompare, .compare = kOp, .a = 0, .b = 1});
}

std::unique_ptr<Kernel> MakeWhere(const KernelRequest& r) {
  const auto& in = r.call.in;
  const TensorView& out = r.call.out[0];
  bool a_scalar = in[1].num_elements() == 1, b_scalar = in[2].num_elements() == 1;
  if (out.dtype != DType::kF32 || in[0].shape != out.shape ||
      (!a_scalar && in[1].shape != out.shape) || (!b_scalar && in[2].shape != out.shape)) {
    if (!IsFloatWithKernel(out)) return nullptr;
    return MakeOneStep(r, {.kind = FusedStep::kSelect, .a = 1, .b = 2, .c = 0});
  }
  return MakeKernel([c = in[0].as<const uint8_t>(), a = In(r, 1), b = In(r, 2), a_scalar, b_scalar,
                     y = Out(r, 0), n = out.num_elements(), threads = r.call.threads] {
    Kernels().elementwise.where(c, a_scalar ? nullptr : a, a_scalar ? *a : 0,
                                b_scalar ? nullptr : b, b_scalar ? *b : 0, y, n, threads);
  });
}

std::unique_ptr<Kernel> MakeCast(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  int64_t n = out.num_elements();
  int threads = r.call.threads;
  const CastKernels& k = Kernels().cast;
  auto make = [&](auto cast, auto* x, auto* y) {
    return MakeKernel([=] { cast(x, y, n, threads); });
  };
  using D = DType;
  auto is = [&](D from, D to) { return in.dtype == from && out.dtype == to; };
  if (is(D::kF32, D::kF64)) return make(k.f32_to_f64, in.as<const float>(), out.as<double>());
  if (is(D::kF64, D::kF32)) return make(k.f64_to_f32, in.as<const double>(), out.as<float>());
  if (is(D::kI64, D::kF32)) return make(k.i64_to_f32, in.as<const int64_t>(), out.as<float>());
  if (is(D::kF32, D::kBool)) return make(k.f32_to_bool, in.as<const float>(), out.as<uint8_t>());
  if (is(D::kBool, D::kF32)) return make(k.bool_to_f32, in.as<const uint8_t>(), out.as<float>());
  if (is(D::kF32, D::kBF16)) return make(k.f32_to_bf16, in.as<const float>(), out.as<uint16_t>());
  if (is(D::kBF16, D::kF32)) return make(k.bf16_to_f32, in.as<const uint16_t>(), out.as<float>());
  if (is(D::kF32, D::kF16)) return make(k.f32_to_f16, in.as<const float>(), out.as<uint16_t>());
  if (is(D::kF16, D::kF32)) return make(k.f16_to_f32, in.as<const uint16_t>(), out.as<float>());
  return nullptr;
}

constexpr Binding kBindings[] = {
    {"neg", MakeUnary<UnaryOp::kNeg>},
    {"abs", MakeUnary<UnaryOp::kAbs>},
    {"sqrt", MakeUnary<UnaryOp::kSqrt>},
    {"rsqrt", MakeUnary<UnaryOp::kRsqrt>},
    {"reciprocal", MakeUnary<UnaryOp::kReciprocal>},
    {"exp", MakeUnary<UnaryOp::kExp>},
    {"log", MakeUnary<UnaryOp::kLog>},
    {"log1p", MakeUnary<UnaryOp::kLog1p>},
    {"sin", MakeUnary<UnaryOp::kSin>},
    {"cos", MakeUnary<UnaryOp::kCos>},
    {"asin", MakeUnary<UnaryOp::kAsin>},
    {"acos", MakeUnary<UnaryOp::kAcos>},
    {"atan", MakeUnary<UnaryOp::kAtan>},
    {"sinh", MakeUnary<UnaryOp::kSinh>},
    {"cosh", MakeUnary<UnaryOp::kCosh>},
    {"asinh", MakeUnary<UnaryOp::kAsinh>},
    {"acosh", MakeUnary<UnaryOp::kAcosh>},
    {"atanh", MakeUnary<UnaryOp::kAtanh>},
    {"tanh", MakeUnary<UnaryOp::kTanh>},
    {"erf", MakeUnary<UnaryOp::kErf>},
    {"sigmoid", MakeUnary<UnaryOp::kSigmoid>},
    {"relu", MakeUnary<UnaryOp::kRelu>},
    {"silu", MakeUnary<UnaryOp::kSilu>},
    {"gelu", MakeGelu},
    {"gelu_grad", MakeGeluGrad},
    {"tanh_grad", MakeUnaryGrad<UnaryGradOp::kTanhFromOutput>},
    {"sigmoid_grad", MakeUnaryGrad<UnaryGradOp::kSigmoidFromOutput>},
    {"relu_grad", MakeUnaryGrad<UnaryGradOp::kRelu>},
    {"silu_grad", MakeUnaryGrad<UnaryGradOp::kSilu>},
    {"add", MakeBinary<BinaryOp::kAdd>},
    {"sub", MakeBinary<BinaryOp::kSub>},
    {"mul", MakeBinary<BinaryOp::kMul>},
    {"div", MakeBinary<BinaryOp::kDiv>},
    {"pow", MakeBinary<BinaryOp::kPow>},
    {"min", MakeBinary<BinaryOp::kMin>},
    {"max", MakeBinary<BinaryOp::kMax>},
    {"equal", MakeCompare<CompareOp::kEqual>},
    {"not_equal", MakeCompare<CompareOp::kNotEqual>},
    {"less", MakeCompare<CompareOp::kLess>},
    {"less_equal", MakeCompare<CompareOp::kLessEqual>},
    {"greater", MakeCompare<CompareOp::kGreater>},
    {"greater_equal", MakeCompare<CompareOp::kGreaterEqual>},
    {"where", MakeWhere},
    {"cast", MakeCast},
};

}  // namespace

std::span<const Binding> ElementwiseBindings() { return kBindings; }

}  // namespace shardc::cpu
