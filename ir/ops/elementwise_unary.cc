// neg abs exp log log1p sqrt rsqrt reciprocal floor ceil round sign sin cos, the inverse and the
// hyperbolic functions, is_nan is_inf not, cast.
#include <cmath>
#include <limits>

#include "ir/builder.h"
#include "ir/ops/elementwise.h"
#include "ir/ops/infer_util.h"

namespace shardc {
namespace {

using reference::kIsFloat;
using reference::Wide;
using UnaryGradient = Value* (*)(Builder& b, const Op& op, Value* dy);

enum class Takes { kFloat, kNumeric, kBool };

Value* Times(Builder& b, Value* v, double factor) {
  return b.Mul(v, b.Scalar(v->type.dtype, factor));
}

[[noreturn]] void Overflow(std::string_view op, int64_t x) {
  throw Diagnostic("E1102", ExitCode::kBadModel, StrCat("op '", op, "'"),
                   StrCat("the result for ", x, " does not fit in the integer type"));
}

// What all unary ops share: y has the shape of x and, unless `to_bool`, its type.
OpDef UnaryDef(std::string_view name, Takes takes, bool to_bool = false) {
  OpDef def;
  def.name = name;
  def.elementwise = true;
  def.infer = [name, takes, to_bool](const InferArgs& args) {
    if (takes == Takes::kFloat) RequireFloat(name, args[0]);
    if (takes == Takes::kNumeric) RequireNumeric(name, args[0]);
    if (takes == Takes::kBool) RequireBool(name, args[0], "the operand");
    return std::vector<TensorType>{
        TensorType(to_bool ? DType::kBool : args[0].dtype, args[0].shape)};
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op); };
  return def;
}

void SetGradient(OpDef& def, UnaryGradient gradient) {
  if (!gradient) {
    def.no_gradient = "the result is piecewise constant";
    def.gradient_is_zero = true;
    return;
  }
  def.cpu_halves = CpuHalves::kBf16;  // those without a gradient have no kernel but the reference
  def.gradient = [gradient](const GradientArgs& args) {
    return std::vector<Value*>{gradient(args.builder, args.op, args.result_grads[0])};
  };
}

// An op on floats, computed in double; `zero`: fn(0) = 0.
void AddFloat(OpRegistry& registry, std::string_view name, double (*fn)(double), bool zero,
              UnaryGradient gradient) {
  OpDef def = UnaryDef(name, Takes::kFloat);
  def.keeps_zero_padding = zero;
  SetGradient(def, gradient);
  def.reference = [fn](const KernelCall& call) {
    reference::DispatchFloat(call.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      MapElements<T, T>(call, fn);
    });
  };
  registry.Add(std::move(def));
}

// An op on floats and integers; fn takes a double or an int64_t and returns its type.
template <typename Fn>
OpDef NumericDef(std::string_view name, Fn fn, UnaryGradient gradient) {
  OpDef def = UnaryDef(name, Takes::kNumeric);
  def.keeps_zero_padding = true;
  SetGradient(def, gradient);
  def.precision = Precision::kFollow;
  def.reference = [name, fn](const KernelCall& call) {
    reference::DispatchNumeric(call.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      MapElements<T, T>(call, [&](Wide<T> x) -> Wide<T> {
        if constexpr (!kIsFloat<T>) {
          // The only integer without a negative.
          if (x == std::numeric_limits<T>::min() && name != "sign") Overflow(name, x);
        }
        return fn(x);
      });
    });
  };
  return def;
}

template <typename Fn>
void AddPredicate(OpRegistry& registry, std::string_view name, Fn fn) {
  OpDef def = UnaryDef(name, Takes::kFloat, true);
  def.keeps_zero_padding = true;
  def.no_gradient = "the result is boolean";
  def.gradient_is_zero = true;
  def.reference = [fn](const KernelCall& call) {
    reference::DispatchFloat(call.in[0].dtype, [&](auto t) {
      MapElements<bool, decltype(t)>(call, [&](double x) { return fn(x); });
    });
  };
  registry.Add(std::move(def));
}

void AddNot(OpRegistry& registry) {
  OpDef def = UnaryDef("not", Takes::kBool);
  def.no_gradient = "the result is boolean";
  def.gradient_is_zero = true;
  def.reference = [](const KernelCall& call) {
    MapElements<bool, bool>(call, [](int64_t x) { return !x; });
  };
  registry.Add(std::move(def));
}

// Truncates, saturates at the ends of To, and NaN gives 0: what GPUs do, and defined in C++.
template <typename To>
int64_t FloatToInt(double x) {
  if (std::isnan(x)) return 0;
  if (x <= static_cast<double>(std::numeric_limits<To>::min())) {
    return std::numeric_limits<To>::min();
  }
  if (x >= static_cast<double>(std::numeric_limits<To>::max())) {
    return std::numeric_limits<To>::max();
  }
  return static_cast<int64_t>(x);
}

// i64 to i32 wraps, as numpy and ONNX Runtime do.
template <typename From, typename To>
Wide<To> CastElement(Wide<From> x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != 0;
  } else if constexpr (std::is_same_v<To, float> && !kIsFloat<From>) {
    return static_cast<float>(x);  // once: by way of double it would be rounded twice
  } else if constexpr (kIsFloat<To> || !kIsFloat<From>) {
    return static_cast<Wide<To>>(x);
  } else {
    return FloatToInt<To>(x);
  }
}

void AddCast(OpRegistry& registry) {
  OpDef def;
  def.name = "cast";
  def.attrs = {{"to", AttrKind::kString, true}};
  def.elementwise = true;
  def.keeps_zero_padding = true;
  def.infer = [](const InferArgs& args) {
    auto to = ParseDType(args.attrs.String("to"));
    if (!to) InferError("cast", StrCat("there is no type '", args.attrs.String("to"), "'"));
    return std::vector<TensorType>{TensorType(*to, args[0].shape)};
  };
  def.rule = [](const Op& op) {
    bool linear = IsFloat(op.in(0).dtype) && IsFloat(op.out().dtype);
    return linear ? ElementwiseRule(op, {{0}}) : ElementwiseRule(op);
  };
  def.gradient = [](const GradientArgs& args) {
    return std::vector<Value*>{args.builder.Cast(args.result_grads[0], args.op.in(0).dtype)};
  };
  def.simplify = OperandIfSame;
  def.reference = [](const KernelCall& call) {
    reference::DispatchAny(call.in[0].dtype, [&](auto from) {
      reference::DispatchAny(call.out[0].dtype, [&](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        MapElements<To, From>(call, CastElement<From, To>);
      });
    });
  };
  registry.Add(std::move(def));
}

// x times x, plus a number.
Value* SquarePlus(Builder& b, Value* x, double number) {
  return b.Add(b.Mul(x, x), b.Scalar(x->type.dtype, number));
}

// (1 - x) (1 + x), which near 1 keeps digits that 1 - x^2 loses.
Value* OneMinusSquare(Builder& b, Value* x) {
  const auto one = [&] { return b.Scalar(x->type.dtype, 1); };
  return b.Mul(b.Sub(one(), x), b.Add(one(), x));
}

// (x - 1) (x + 1). At 1 it is 0, where less the other is -0, whose root has another sign.
Value* SquareMinusOne(Builder& b, Value* x) {
  const auto one = [&] { return b.Scalar(x->type.dtype, 1); };
  return b.Mul(b.Sub(x, one()), b.Add(x, one()));
}

Value* Rsqrt(Builder& b, Value* x) { return b.Make("rsqrt", {x}); }

void AddInverseTrigonometric(OpRegistry& registry) {
  AddFloat(
      registry, "asin", [](double x) { return std::asin(x); }, true,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(dy, Rsqrt(b, OneMinusSquare(b, op.operands[0])));
      });
  AddFloat(
      registry, "acos", [](double x) { return std::acos(x); }, false,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(b.Neg(dy), Rsqrt(b, OneMinusSquare(b, op.operands[0])));
      });
  AddFloat(
      registry, "atan", [](double x) { return std::atan(x); }, true,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Div(dy, SquarePlus(b, op.operands[0], 1));
      });
}

void AddHyperbolic(OpRegistry& registry) {
  AddFloat(
      registry, "sinh", [](double x) { return std::sinh(x); }, true,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(dy, b.Make("cosh", {op.operands[0]}));
      });
  AddFloat(
      registry, "cosh", [](double x) { return std::cosh(x); }, false,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(dy, b.Make("sinh", {op.operands[0]}));
      });
  AddFloat(
      registry, "asinh", [](double x) { return std::asinh(x); }, true,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(dy, Rsqrt(b, SquarePlus(b, op.operands[0], 1)));
      });
  AddFloat(
      registry, "acosh", [](double x) { return std::acosh(x); }, false,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(dy, Rsqrt(b, SquareMinusOne(b, op.operands[0])));
      });
  AddFloat(
      registry, "atanh", [](double x) { return std::atanh(x); }, true,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Div(dy, OneMinusSquare(b, op.operands[0]));
      });
}

}  // namespace

void RegisterUnaryOps(OpRegistry& registry) {
  OpDef neg = NumericDef(
      "neg", [](auto x) { return -x; }, [](Builder& b, const Op&, Value* dy) { return b.Neg(dy); });
  neg.rule = [](const Op& op) { return ElementwiseRule(op, {{0}}); };
  registry.Add(std::move(neg));
  registry.Add(NumericDef(
      "abs", [](auto x) { return std::abs(x); },
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(dy, b.Make("sign", {op.operands[0]}));
      }));
  registry.Add(NumericDef(
      "sign",
      [](auto x) {
        using X = decltype(x);
        return x > 0 ? X(1) : x < 0 ? X(-1) : x;  // NaN and the zeros as they are
      },
      nullptr));

  AddFloat(
      registry, "exp", [](double x) { return std::exp(x); }, false,
      [](Builder& b, const Op& op, Value* dy) { return b.Mul(dy, op.result()); });
  AddFloat(
      registry, "log", [](double x) { return std::log(x); }, false,
      [](Builder& b, const Op& op, Value* dy) { return b.Div(dy, op.operands[0]); });
  AddFloat(
      registry, "log1p", [](double x) { return std::log1p(x); }, true,
      [](Builder& b, const Op& op, Value* dy) {
        Value* x = op.operands[0];
        return b.Div(dy, b.Add(x, b.Scalar(x->type.dtype, 1)));
      });
  AddFloat(
      registry, "sqrt", [](double x) { return std::sqrt(x); }, true,
      [](Builder& b, const Op& op, Value* dy) { return b.Div(Times(b, dy, 0.5), op.result()); });
  AddFloat(
      registry, "rsqrt", [](double x) { return 1 / std::sqrt(x); }, false,
      [](Builder& b, const Op& op, Value* dy) {
        Value* y = op.result();
        return b.Mul(Times(b, dy, -0.5), b.Mul(y, b.Mul(y, y)));
      });
  AddFloat(
      registry, "reciprocal", [](double x) { return 1 / x; }, false,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(b.Neg(dy), b.Mul(op.result(), op.result()));
      });
  AddFloat(
      registry, "sin", [](double x) { return std::sin(x); }, true,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(dy, b.Make("cos", {op.operands[0]}));
      });
  AddFloat(
      registry, "cos", [](double x) { return std::cos(x); }, false,
      [](Builder& b, const Op& op, Value* dy) {
        return b.Mul(b.Neg(dy), b.Make("sin", {op.operands[0]}));
      });
  AddInverseTrigonometric(registry);
  AddHyperbolic(registry);
  AddFloat(
      registry, "floor", [](double x) { return std::floor(x); }, true, nullptr);
  AddFloat(
      registry, "ceil", [](double x) { return std::ceil(x); }, true, nullptr);
  // Halves to even, as ONNX wants.
  AddFloat(
      registry, "round", [](double x) { return std::nearbyint(x); }, true, nullptr);

  AddPredicate(registry, "is_nan", [](double x) { return std::isnan(x); });
  AddPredicate(registry, "is_inf", [](double x) { return std::isinf(x); });
  AddNot(registry);
  AddCast(registry);
}

}  // namespace shardc
