// relu tanh sigmoid erf silu gelu, and *_grad.
#include <cmath>
#include <numbers>
#include <string>

#include "ir/builder.h"
#include "ir/ops/elementwise.h"
#include "ir/ops/infer_util.h"

namespace shardc {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// gelu by tanh: 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3); by erf: x Phi(x).
// Hendrycks and Gimpel, arXiv:1606.08415.
constexpr double kCubic = 0.044715;
const double kRootTwoOverPi = std::sqrt(2 / std::numbers::pi);

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}
double GeluErf(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }

double GeluTanhSlope(double x) {
  double t = std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kCubic * x * x);
}
double GeluErfSlope(double x) {
  double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
  return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * density;
}
double SiluSlope(double x) {
  double s = Sigmoid(x);
  return s * (1 + x * (1 - s));
}

using Fn = double (*)(double);

// Which of the two functions a gelu op is.
bool IsTanh(const Attributes& attrs) { return attrs.String("approximate") == "tanh"; }

void CheckApproximate(std::string_view op, const Attributes& attrs) {
  const std::string& a = attrs.String("approximate");
  if (a != "tanh" && a != "none") {
    InferError(op, StrCat("approximate is '", a, "', but must be \"tanh\" or \"none\""));
  }
}

OpDef ForwardDef(std::string_view name) {
  OpDef def;
  def.name = name;
  def.elementwise = true;
  def.cpu_halves = CpuHalves::kBf16;
  def.infer = [name](const InferArgs& args) {
    RequireFloat(name, args[0]);
    if (name == "gelu") CheckApproximate(name, args.attrs);
    return std::vector<TensorType>{TensorType(args[0].dtype, args[0].shape)};
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op); };
  return def;
}

void RunMap(const KernelCall& call, Fn fn) {
  reference::DispatchFloat(call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    MapElements<T, T>(call, fn);
  });
}

// A forward op whose gradient is the op `grad` of dy and x, or of dy and y with `by_result`.
void AddForward(OpRegistry& registry, std::string_view name, Fn fn, std::string_view grad,
                bool by_result, bool zero) {
  OpDef def = ForwardDef(name);
  def.keeps_zero_padding = zero;
  def.precision = Precision::kFollow;
  def.gradient = [grad, by_result](const GradientArgs& args) {
    Value* saved = by_result ? args.op.result() : args.op.operands[0];
    return std::vector<Value*>{
        args.builder.Make(grad, {args.result_grads[0], saved}, args.op.attrs)};
  };
  def.reference = [fn](const KernelCall& call) { RunMap(call, fn); };
  if (name == "gelu") {
    def.attrs = {{"approximate", AttrKind::kString, true}};
    def.reference = [](const KernelCall& call) {
      RunMap(call, IsTanh(*call.attrs) ? GeluTanh : GeluErf);
    };
  }
  registry.Add(std::move(def));
}

// dx = dy slope(saved); linear in dy.
void AddGrad(OpRegistry& registry, std::string_view name, Fn slope) {
  OpDef def;
  def.name = name;
  def.min_operands = def.max_operands = 2;
  def.elementwise = true;
  def.cpu_halves = CpuHalves::kBf16;
  def.precision = Precision::kFollow;
  def.keeps_zero_padding = true;
  if (name == "gelu_grad") def.attrs = {{"approximate", AttrKind::kString, true}};
  def.infer = [name](const InferArgs& args) {
    RequireFloat(name, args[0], "dy");
    RequireSameDType(name, args, 0, 2);
    RequireSameShape(name, args[0].shape, args[1].shape, "the operands");
    if (name == "gelu_grad") CheckApproximate(name, args.attrs);
    return std::vector<TensorType>{TensorType(args[0].dtype, args[0].shape)};
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op, {{0}}); };
  def.no_gradient = kSecondDerivative;
  def.reference = [slope](const KernelCall& call) {
    Fn fn = slope ? slope : IsTanh(*call.attrs) ? GeluTanhSlope : GeluErfSlope;
    reference::DispatchFloat(call.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      MapElements<T, T, T>(call, [fn](double dy, double saved) { return dy * fn(saved); });
    });
  };
  registry.Add(std::move(def));
}

// erf' = 2 / sqrt(pi) exp(-x^2).
void AddErf(OpRegistry& registry) {
  OpDef def = ForwardDef("erf");
  def.keeps_zero_padding = true;
  def.gradient = [](const GradientArgs& args) {
    Builder& b = args.builder;
    Value* x = args.op.operands[0];
    Value* bell = b.Make("exp", {b.Neg(b.Mul(x, x))});
    Value* scale = b.Scalar(x->type.dtype, 2 / std::sqrt(std::numbers::pi));
    return std::vector<Value*>{b.Mul(args.result_grads[0], b.Mul(bell, scale))};
  };
  def.reference = [](const KernelCall& call) {
    RunMap(call, [](double x) { return std::erf(x); });
  };
  registry.Add(std::move(def));
}

}  // namespace

void RegisterActivationOps(OpRegistry& registry) {
  // Not x > 0 ? x : 0: that would hide a NaN.
  AddForward(
      registry, "relu", [](double x) { return x < 0 ? 0.0 : x; }, "relu_grad", false, true);
  AddForward(
      registry, "tanh", [](double x) { return std::tanh(x); }, "tanh_grad", true, true);
  AddForward(registry, "sigmoid", Sigmoid, "sigmoid_grad", true, false);
  AddForward(
      registry, "silu", [](double x) { return x * Sigmoid(x); }, "silu_grad", false, true);
  AddForward(registry, "gelu", nullptr, "gelu_grad", false, true);
  AddErf(registry);
  AddGrad(registry, "relu_grad", [](double x) { return x > 0 ? 1.0 : 0.0; });
  AddGrad(registry, "tanh_grad", [](double y) { return 1 - y * y; });
  AddGrad(registry, "sigmoid_grad", [](double y) { return y * (1 - y); });
  AddGrad(registry, "silu_grad", SiluSlope);
  AddGrad(registry, "gelu_grad", nullptr);
}

}  // namespace shardc
