// add sub mul div pow max min mod.
#include <cmath>
#include <limits>

#include "ir/builder.h"
#include "ir/constant.h"
#include "ir/ops/elementwise.h"
#include "ir/ops/infer_util.h"

namespace shardc {
namespace {

using reference::kIsFloat;
using reference::Wide;

[[noreturn]] void Overflow(std::string_view op, int64_t a, int64_t b) {
  throw Diagnostic("E1102", ExitCode::kBadModel, StrCat("op '", op, "'"),
                   StrCat(op, " of the integers ", a, " and ", b, " overflows"));
}

[[noreturn]] void DivisionByZero(std::string_view op, int64_t a) {
  throw Diagnostic("E1103", ExitCode::kBadModel, StrCat("op '", op, "'"),
                   StrCat("the integer ", a, " is divided by zero"));
}

// Exact in int64_t or E1102; a negative exponent truncates 1 / a^-b as div does.
int64_t IntPow(int64_t a, int64_t b) {
  if (a == 1 || b == 0) return 1;
  if (a == -1) return b % 2 ? -1 : 1;
  if (b < 0) {
    if (a == 0) DivisionByZero("pow", 1);
    return 0;
  }
  if (a == 0) return 0;
  int64_t y = 1;  // |a| >= 2: at most 63 rounds before it overflows
  for (int64_t i = 0; i < b; ++i) {
    if (__builtin_mul_overflow(y, a, &y)) Overflow("pow", a, b);
  }
  return y;
}

struct AddFn {
  static constexpr std::string_view kName = "add";
  double operator()(double a, double b) const { return a + b; }
  int64_t operator()(int64_t a, int64_t b) const {
    int64_t y;
    if (__builtin_add_overflow(a, b, &y)) Overflow(kName, a, b);
    return y;
  }
};
struct SubFn {
  static constexpr std::string_view kName = "sub";
  double operator()(double a, double b) const { return a - b; }
  int64_t operator()(int64_t a, int64_t b) const {
    int64_t y;
    if (__builtin_sub_overflow(a, b, &y)) Overflow(kName, a, b);
    return y;
  }
};
struct MulFn {
  static constexpr std::string_view kName = "mul";
  double operator()(double a, double b) const { return a * b; }
  int64_t operator()(int64_t a, int64_t b) const {
    int64_t y;
    if (__builtin_mul_overflow(a, b, &y)) Overflow(kName, a, b);
    return y;
  }
};
// Integers truncate towards zero.
struct DivFn {
  static constexpr std::string_view kName = "div";
  double operator()(double a, double b) const { return a / b; }
  int64_t operator()(int64_t a, int64_t b) const {
    if (b == 0) DivisionByZero(kName, a);
    if (b == -1 && a == std::numeric_limits<int64_t>::min()) Overflow(kName, a, b);
    return a / b;
  }
};
struct PowFn {
  static constexpr std::string_view kName = "pow";
  double operator()(double a, double b) const { return std::pow(a, b); }
  int64_t operator()(int64_t a, int64_t b) const { return IntPow(a, b); }
};
// max and min return NaN if either operand is one.
struct MaxFn {
  static constexpr std::string_view kName = "max";
  double operator()(double a, double b) const { return std::isnan(a) || a > b ? a : b; }
  int64_t operator()(int64_t a, int64_t b) const { return std::max(a, b); }
};
struct MinFn {
  static constexpr std::string_view kName = "min";
  double operator()(double a, double b) const { return std::isnan(a) || a < b ? a : b; }
  int64_t operator()(int64_t a, int64_t b) const { return std::min(a, b); }
};
// ONNX Mod: integers take the sign of b, floats (fmod = 1) that of a.
struct ModFn {
  static constexpr std::string_view kName = "mod";
  double operator()(double a, double b) const { return std::fmod(a, b); }
  int64_t operator()(int64_t a, int64_t b) const {
    if (b == 0) DivisionByZero(kName, a);
    if (b == -1) return 0;
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
};

template <typename Fn>
void RunBinary(const KernelCall& call) {
  reference::DispatchNumeric(call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    MapElements<T, T, T>(call, [](Wide<T> a, Wide<T> b) {
      Wide<T> y = Fn()(a, b);
      if constexpr (!kIsFloat<T>) {
        if (y < std::numeric_limits<T>::min() || y > std::numeric_limits<T>::max()) {
          Overflow(Fn::kName, a, b);
        }
      }
      return y;
    });
  });
}

// Small constant powers of floats by what computes them faster.
Value* SimplifyPow(Builder& b, const Op& op) {
  Value *x = op.operands[0], *exponent = op.operands[1];
  const HostTensor* constant = ConstantOf(exponent);
  if (!constant || constant->num_elements() != 1) return nullptr;
  if (!IsFloat(op.out().dtype) || !op.in(0).SameTensor(op.out())) return nullptr;
  const double e = constant->AsDouble(0);
  if (e == 1) return x;
  if (e == 2) return b.Mul(x, x);
  if (e == 3) return b.Mul(x, b.Mul(x, x));
  if (e == 0.5) return b.Make("sqrt", {x});
  if (e == -0.5) return b.Make("rsqrt", {x});
  if (e == -1) return b.Make("reciprocal", {x});
  return nullptr;
}

// The gradient of one operand in the broadcast shape; AddBinary sums it to the operand's.
using OperandGradient = Value* (*)(Builder& b, const Op& op, Value* dy);

template <typename Fn>
void AddBinary(OpRegistry& registry, std::vector<std::vector<int>> linear, OperandGradient da,
               OperandGradient db) {
  OpDef def;
  def.name = Fn::kName;
  def.min_operands = def.max_operands = 2;
  def.elementwise = true;
  if (Fn::kName != "mod") def.cpu_halves = CpuHalves::kBf16;
  // Zero in the padding of a says nothing about the result where b broadcasts over that dim, except
  // for a product.
  def.keeps_zero_padding = Fn::kName == "mul";
  if (Fn::kName == "pow") def.simplify = SimplifyPow;
  if (Fn::kName != "pow") def.precision = Precision::kFollow;
  if (Fn::kName == "add") def.precision = Precision::kAccumulate;
  if (Fn::kName == "sub") def.attrs = {{"detached", AttrKind::kBool}};
  def.infer = [](const InferArgs& args) {
    RequireNumeric(Fn::kName, args[0], "operand 0");
    RequireSameDType(Fn::kName, args, 0, 2);
    Shape shape = BroadcastShapes(Fn::kName, args[0].shape, args[1].shape);
    return std::vector<TensorType>{TensorType(args[0].dtype, std::move(shape))};
  };
  def.rule = [linear](const Op& op) {
    bool is_float = IsFloat(op.out().dtype);  // integer division is not linear
    return is_float ? ElementwiseRule(op, linear) : ElementwiseRule(op);
  };
  def.gradient = [da, db](const GradientArgs& args) {
    std::vector<Value*> grads(2);
    Value* dy = args.result_grads[0];
    OperandGradient fns[] = {da, db};
    const bool detached = args.op.attrs.Bool("detached", false);
    for (int i = 0; i < 2; ++i) {
      if (!args.wanted[i] || detached) continue;
      grads[i] = args.builder.SumTo(fns[i](args.builder, args.op, dy), args.op.in(i).shape);
    }
    return grads;
  };
  def.reference = RunBinary<Fn>;
  registry.Add(std::move(def));
}

Value* A(const Op& op) { return op.operands[0]; }
Value* B(const Op& op) { return op.operands[1]; }
Value* Identity(Builder&, const Op&, Value* dy) { return dy; }
Value* Where(Builder& b, Value* c, Value* x, Value* y) { return b.Make("where", {c, x, y}); }

bool IsConstantWithoutZero(const Value* v) {
  const HostTensor* t = ConstantOf(v);
  for (int64_t i = 0; t && i < t->num_elements(); ++i) {
    if (t->AsDouble(i) == 0) return false;
  }
  return t != nullptr;
}

// dy b a^(b-1), and 0 where b = 0 (also for a = 0).
Value* PowBaseGradient(Builder& b, const Op& op, Value* dy) {
  DType type = op.out().dtype;
  Value* power = b.Make("pow", {A(op), b.Sub(B(op), b.Scalar(type, 1))});
  Value* slope = b.Mul(B(op), power);
  if (!IsConstantWithoutZero(B(op))) {
    Value* zero = b.Scalar(type, 0);
    slope = Where(b, b.Make("equal", {B(op), zero}), zero, slope);
  }
  return b.Mul(dy, slope);
}

// dy y log(a) where a > 0, else 0.
Value* PowExponentGradient(Builder& b, const Op& op, Value* dy) {
  DType type = op.out().dtype;
  Value* zero = b.Scalar(type, 0);
  Value* positive = b.Make("greater", {A(op), zero});
  Value* log = b.Make("log", {Where(b, positive, A(op), b.Scalar(type, 1))});
  return b.Mul(dy, Where(b, positive, b.Mul(op.result(), log), zero));
}

// dy goes to the operand that won; equal ones get half each.
Value* WinnerGradient(Builder& b, const Op& op, Value* dy, std::string_view wins) {
  DType type = op.out().dtype;
  Value* lost = Where(b, b.Make(wins, {A(op), B(op)}), dy, b.Scalar(type, 0));
  return Where(b, b.Make("equal", {A(op), B(op)}), b.Mul(dy, b.Scalar(type, 0.5)), lost);
}

// a mod b = a - b trunc(a / b) for floats.
Value* ModDivisorGradient(Builder& b, const Op& op, Value* dy) {
  Value* q = b.Div(A(op), B(op));
  Value* trunc = b.Mul(b.Make("sign", {q}), b.Make("floor", {b.Make("abs", {q})}));
  return b.Neg(b.Mul(dy, trunc));
}

}  // namespace

void RegisterBinaryOps(OpRegistry& registry) {
  AddBinary<AddFn>(registry, {{0, 1}}, Identity, Identity);
  AddBinary<SubFn>(registry, {{0, 1}}, Identity,
                   [](Builder& b, const Op&, Value* dy) { return b.Neg(dy); });
  AddBinary<MulFn>(
      registry, {{0}, {1}}, [](Builder& b, const Op& op, Value* dy) { return b.Mul(dy, B(op)); },
      [](Builder& b, const Op& op, Value* dy) { return b.Mul(dy, A(op)); });
  AddBinary<DivFn>(
      registry, {{0}}, [](Builder& b, const Op& op, Value* dy) { return b.Div(dy, B(op)); },
      [](Builder& b, const Op& op, Value* dy) {
        return b.Neg(b.Mul(dy, b.Div(op.result(), B(op))));
      });
  AddBinary<PowFn>(registry, {}, PowBaseGradient, PowExponentGradient);
  AddBinary<MaxFn>(
      registry, {},
      [](Builder& b, const Op& op, Value* dy) { return WinnerGradient(b, op, dy, "greater"); },
      [](Builder& b, const Op& op, Value* dy) { return WinnerGradient(b, op, dy, "less"); });
  AddBinary<MinFn>(
      registry, {},
      [](Builder& b, const Op& op, Value* dy) { return WinnerGradient(b, op, dy, "less"); },
      [](Builder& b, const Op& op, Value* dy) { return WinnerGradient(b, op, dy, "greater"); });
  AddBinary<ModFn>(registry, {}, Identity, ModDivisorGradient);
}

}  // namespace shardc
