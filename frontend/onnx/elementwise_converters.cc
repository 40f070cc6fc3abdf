// Elementwise ops, activations, comparisons, casts, Dropout.
#include <algorithm>
#include <cmath>
#include <string>

#include "frontend/dropout.h"
#include "frontend/onnx/activations.h"
#include "frontend/onnx/initializers.h"
#include "ir/constant.h"
#include "ir/op_def.h"

namespace shardc::onnx_import {
namespace {

using Name = std::pair<std::string_view, std::string_view>;

// ONNX op -> our op of the same operands and meaning.
constexpr Name kSame[] = {
    {"Neg", "neg"},
    {"Abs", "abs"},
    {"Exp", "exp"},
    {"Log", "log"},
    {"Sqrt", "sqrt"},
    {"Reciprocal", "reciprocal"},
    {"Floor", "floor"},
    {"Ceil", "ceil"},
    {"Round", "round"},
    {"Sign", "sign"},
    {"Sin", "sin"},
    {"Cos", "cos"},
    {"Asin", "asin"},
    {"Acos", "acos"},
    {"Atan", "atan"},
    {"Sinh", "sinh"},
    {"Cosh", "cosh"},
    {"Asinh", "asinh"},
    {"Acosh", "acosh"},
    {"Atanh", "atanh"},
    {"Tanh", "tanh"},
    {"Sigmoid", "sigmoid"},
    {"Erf", "erf"},
    {"IsNaN", "is_nan"},
    {"Not", "not"},
    {"Add", "add"},
    {"Sub", "sub"},
    {"Mul", "mul"},
    {"Div", "div"},
    {"Equal", "equal"},
    {"Less", "less"},
    {"LessOrEqual", "less_equal"},
    {"Greater", "greater"},
    {"GreaterOrEqual", "greater_equal"},
    {"And", "and"},
    {"Or", "or"},
    {"Xor", "xor"},
    {"Where", "where"},
    {"BitwiseAnd", "bitwise_and"},
    {"BitwiseOr", "bitwise_or"},
    {"BitwiseXor", "bitwise_xor"},
};

constexpr Name kVariadic[] = {{"Min", "min"}, {"Max", "max"}, {"Sum", "add"}, {"Mean", "add"}};

void Same(NodeContext& c) {
  std::string_view op = NameIn(kSame, c.op_type());
  const int n = std::max(c.num_inputs(), GetOpDef(op).min_operands);
  std::vector<Value*> operands;
  for (int i = 0; i < n; ++i) operands.push_back(c.input(i));
  c.SetOutput(0, c.Make(op, std::move(operands)));
}

void Variadic(NodeContext& c) {
  Value* v = c.input(0);
  for (int i = 1; i < c.num_inputs(); ++i) {
    v = c.Make(NameIn(kVariadic, c.op_type()), {v, c.input(i)});
  }
  if (c.op_type() == "Mean" && c.num_inputs() > 1) v = Div(c, v, Like(c, v, c.num_inputs()));
  c.SetOutput(0, v);
}

// Whether all are numbers that integers are raised to without a fraction.
bool AreCounts(const HostTensor* exponents) {
  if (exponents == nullptr) return false;
  for (int64_t i = 0; i < exponents->num_elements(); ++i) {
    const double x = exponents->AsDouble(i);
    if (!(x >= 0 && x <= 64 && x == std::floor(x))) return false;
  }
  return true;
}

void CheckFits(const NodeContext& c, const HostTensor* values, DType type) {
  const double limit = type == DType::kI32 ? 0x1p31 : 0x1p63;
  for (int64_t i = 0; values && i < values->num_elements(); ++i) {
    const double x = std::trunc(values->AsDouble(i));
    if (!(x >= -limit && x < limit)) c.Fail("E1306", StrCat("makes ", x, ", no ", DTypeName(type)));
  }
}

// The exponent may be of another type; the result has the base's.
void Pow(NodeContext& c) {
  Value *base = c.input(0), *exponent = c.input(1);
  DType type = base->type.dtype;
  const bool of_integers = IsInteger(type) && IsFloat(exponent->type.dtype);
  const bool by_double = of_integers && !AreCounts(c.ConstantOf(exponent));
  DType computed = by_double ? DType::kF64 : type;
  Value* y = c.Make("pow", {c.Cast(base, computed), c.Cast(exponent, computed)});
  if (by_double) CheckFits(c, c.ConstantOf(y), type);
  c.SetOutput(0, c.Cast(y, type));
}

void Mod(NodeContext& c) {
  Value *a = c.input(0), *b = c.input(1);
  const bool fmod = c.Flag("fmod", false), is_float = IsFloat(a->type.dtype);
  // Of integers it has the sign of b, of floats that of a.
  Value* rest = c.Make("mod", {a, b});
  if (fmod == is_float) return c.SetOutput(0, rest);
  if (is_float) {
    Value *zero = Like(c, rest, 0), *negative = c.Make("less", {rest, zero});
    Value* other = c.Make("xor", {negative, c.Make("less", {b, zero})});
    Value* some = c.Make("not", {c.Make("equal", {rest, zero})});
    return c.SetOutput(0, Where(c, c.Make("and", {some, other}), Add(c, rest, b), rest));
  }
  // What truncating division leaves.
  c.SetOutput(0, Sub(c, a, Mul(c, b, Div(c, a, b))));
}

// -1 - x, in two's complement; as its own type again, of an unsigned one the bits that it has.
void BitwiseNot(NodeContext& c) { c.SetOutput(0, Sub(c, Like(c, c.input(0), -1), c.input(0))); }

// By how much has to be known: by as many bits as there are, or more, leaves 0.
void BitShift(NodeContext& c) {
  Value* x = c.input(0);
  const std::string direction = c.String("direction", "");
  const bool left = direction == "LEFT";
  if (!left && direction != "RIGHT")
    c.Fail("E1303", StrCat("shifts in the direction '", direction, "'"));
  const auto type = static_cast<int>(c.NarrowType(0));
  if (!OnnxTypeName(type).starts_with("uint")) c.Fail("E1301", "shifts signed integers");
  const int bits = StoredBits(type).value();
  if (left && bits == 64) c.Fail("E1301", "uint64 that is shifted left is not supported");
  // To the left what would be pushed out goes first; to the right it is two halves of the way, as
  // 2^63 is no int64.
  const Ints by = c.ConstantInts(1);
  HostTensor first(DType::kI64, c.input(1)->type.shape), second = first;
  for (size_t i = 0; i < by.size(); ++i) {
    const int64_t n = std::clamp<int64_t>(by[i], 0, bits);
    first.data<int64_t>()[i] = int64_t{1} << (left ? bits - n : n / 2);
    second.data<int64_t>()[i] = int64_t{1} << (left ? n : n - n / 2);
  }
  Value* y = c.Make(left ? "mod" : "div", {c.Cast(x, DType::kI64), c.Constant(std::move(first))});
  y = c.Make(left ? "mul" : "div", {y, c.Constant(std::move(second))});
  c.SetOutput(0, c.Cast(y, x->type.dtype));
}

void Relu(NodeContext& c) {
  Value* x = c.input(0);
  bool is_float = IsFloat(x->type.dtype);
  c.SetOutput(0, is_float ? c.Make("relu", {x}) : c.Make("max", {x, Like(c, x, 0)}));
}

void LeakyRelu(NodeContext& c) {
  c.SetOutput(0, LeakyReluOf(c, c.input(0), c.Float("alpha", 0.01f)));
}

void PRelu(NodeContext& c) {
  Value* x = c.input(0);
  c.SetOutput(0, Where(c, IsPositive(c, x), x, Mul(c, x, InputOnto(c, 1, x->type.shape))));
}

void Elu(NodeContext& c) { c.SetOutput(0, ExponentialUnit(c, c.input(0), c.Float("alpha", 1), 1)); }

void Celu(NodeContext& c) {
  double alpha = c.Float("alpha", 1);
  c.SetOutput(0, ExponentialUnit(c, c.input(0), alpha, alpha));
}

void Selu(NodeContext& c) {
  double alpha = c.Float("alpha", 1.67326319217681884765625);
  double gamma = c.Float("gamma", 1.05070102214813232421875);
  c.SetOutput(0, Times(c, ExponentialUnit(c, c.input(0), alpha, 1), gamma));
}

void ThresholdedRelu(NodeContext& c) {
  c.SetOutput(0, ThresholdedReluOf(c, c.input(0), c.Float("alpha", 1)));
}

void Softplus(NodeContext& c) { c.SetOutput(0, SoftplusOf(c, c.input(0))); }

void Mish(NodeContext& c) {
  c.SetOutput(0, Mul(c, c.input(0), c.Make("tanh", {SoftplusOf(c, c.input(0))})));
}

void Softsign(NodeContext& c) { c.SetOutput(0, SoftsignOf(c, c.input(0))); }

void HardSigmoid(NodeContext& c) {
  c.SetOutput(0, HardSigmoidOf(c, c.input(0), c.Float("alpha", 0.2f), c.Float("beta", 0.5)));
}

void HardSwish(NodeContext& c) {
  c.SetOutput(0, Mul(c, c.input(0), HardSigmoidOf(c, c.input(0), 1.0 / 6, 0.5)));
}

void Tan(NodeContext& c) {
  c.SetOutput(0, Div(c, c.Make("sin", {c.input(0)}), c.Make("cos", {c.input(0)})));
}

Value* SwishOf(NodeContext& c, Value* x, double alpha) {
  if (alpha == 1) return c.Make("silu", {x});
  return Mul(c, x, c.Make("sigmoid", {Times(c, x, alpha)}));
}

void Swish(NodeContext& c) {
  c.SetOutput(0, SwishOf(c, c.input(0), c.Float("alpha", c.op_type() == "QuickGelu" ? 1.702f : 1)));
}

void SwiGlu(NodeContext& c) {
  c.SetOutput(0, Mul(c, SwishOf(c, c.input(0), c.Float("alpha", 1)), c.input(1)));
}

void Gelu(NodeContext& c) {
  std::string approximate = c.String("approximate", "none");
  if (approximate != "none" && approximate != "tanh") {
    c.Fail("E1303", StrCat("approximate is \"none\" or \"tanh\", not \"", approximate, "\""));
  }
  c.SetOutput(0, GeluOf(c, c.input(0), approximate));
}

// com.microsoft: the bias may be left out of FastGelu.
void GeluWithBias(NodeContext& c) {
  Value* x = c.input(0);
  if (c.has_input(1)) x = Add(c, x, InputOnto(c, 1, x->type.shape));
  c.SetOutput(0, GeluOf(c, x, c.op_type() == "FastGelu" ? "tanh" : "none"));
}

bool IsZero(const Value* limit) {
  const HostTensor* number = ConstantOf(limit);
  return number != nullptr && number->num_elements() == 1 && number->AsDouble(0) == 0;
}

// Limits that cross give the upper one. At 0, where padding is and what was clipped before, there
// is no gradient, as of relu6.
void Clip(NodeContext& c) {
  Value* v = c.input(0);
  auto limit = [&](int i, std::string_view attribute) {
    return c.HasAttr(attribute) ? Like(c, v, c.Float(attribute, 0)) : c.InputOrNull(i);
  };
  Value *low = limit(1, "min"), *high = limit(2, "max");
  const bool from_zero = low != nullptr && IsZero(low) && IsFloat(v->type.dtype);
  for (Value** one : {&low, &high}) {
    if (*one && (*one)->type.num_elements() != 1) c.Fail("E1303", "a limit of Clip is one number");
    if (*one) *one = c.Reshape(*one, {});
  }
  if (low) v = from_zero ? c.Make("relu", {v}) : c.Make("max", {v, low});
  if (high) v = c.Make("min", {v, high});
  c.SetOutput(0, v);
}

void IsInf(NodeContext& c) {
  Value* x = c.input(0);
  bool positive = c.Flag("detect_positive", true), negative = c.Flag("detect_negative", true);
  Value* y = c.Make("is_inf", {x});
  if (!positive) y = c.Make("and", {y, IsNegative(c, x)});
  if (!negative) y = c.Make("and", {y, c.Make("greater", {x, Like(c, x, 0)})});
  c.SetOutput(0, y);
}

void Cast(NodeContext& c) {
  const int64_t to = c.Int("to", 0);
  c.SetOutput(0, c.Cast(c.input(0), HeldType(c, to)), to);
}

void CastLike(NodeContext& c) {
  c.SetOutput(0, c.Cast(c.input(0), c.input(1)->type.dtype), c.NarrowType(1));
}

void Identity(NodeContext& c) { c.SetOutput(0, c.input(0)); }

void Dropout(NodeContext& c) {
  Value* x = c.input(0);
  const bool masks = c.num_outputs() > 1 && c.OutputWanted(1);
  const bool training = c.has_input(2) && c.ConstantScalar(2) != 0;
  const bool given = c.has_input(1);  // asked whatever the mode: what nobody asks for is refused
  const double ratio = !training ? 0 : given ? c.ConstantScalar(1) : 0.5;
  if (!(ratio >= 0 && ratio < 1)) {
    c.Fail("E1303", StrCat("a Dropout ratio of ", ratio, " is not in [0, 1)"));
  }
  if (ratio == 0) {
    c.SetOutput(0, x);
    if (masks) c.SetOutput(1, c.BroadcastTo(c.Scalar(DType::kBool, 1), x->type.shape));
    return;
  }
  Builder& b = c.builder();
  const int64_t seed = c.Int("seed", 0);
  if (!masks) return c.SetOutput(0, AddDropout(b, x, ratio, seed));
  // The mask, and what is left of x by it.
  Value* ones = b.BroadcastTo(b.Scalar(x->type.dtype, 1), x->type.shape);
  Value* scales = AddDropout(b, ones, ratio, seed);
  c.SetOutput(0, b.Mul(x, scales));
  c.SetOutput(1, b.Make("not_equal", {scales, b.Scalar(x->type.dtype, 0)}));
}

}  // namespace

void AddElementwiseConverters(ConverterTable& table) {
  AddRandomConverters(table);
  for (const Name& name : kSame) table.emplace(name.first, Same);
  for (const Name& name : kVariadic) table.emplace(name.first, Variadic);
  table.insert({{"Pow", Pow},
                {"Mod", Mod},
                {"BitShift", BitShift},
                {"BitwiseNot", BitwiseNot},
                {"Relu", Relu},
                {"LeakyRelu", LeakyRelu},
                {"PRelu", PRelu},
                {"Elu", Elu},
                {"Celu", Celu},
                {"Selu", Selu},
                {"ThresholdedRelu", ThresholdedRelu},
                {"Softplus", Softplus},
                {"Mish", Mish},
                {"Softsign", Softsign},
                {"HardSigmoid", HardSigmoid},
                {"HardSwish", HardSwish},
                {"Tan", Tan},
                {"Swish", Swish},
                {"SwiGLU", SwiGlu},
                {"com.microsoft::QuickGelu", Swish},
                {"Gelu", Gelu},
                {"com.microsoft::Gelu", GeluWithBias},
                {"com.microsoft::BiasGelu", GeluWithBias},
                {"com.microsoft::FastGelu", GeluWithBias},
                {"Clip", Clip},
                {"IsInf", IsInf},
                {"Cast", Cast},
                {"CastLike", CastLike},
                {"Identity", Identity},
                {"Dropout", Dropout}});
}

}  // namespace shardc::onnx_import
