// rotary: pairs of a row's elements turned by angles of which it is given cos and sin (RoFormer,
// arXiv:2104.09864): y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. `inverse` turns back, which is the
// gradient for x.
#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"
#include "ir/ops/reference_util.h"

namespace shardc {
namespace {

constexpr std::string_view kName = "rotary";

// A table's rows are those of x, or broadcast to them.
void CheckTable(const TensorType& x, const TensorType& table, std::string_view what) {
  const DType statistic = StatisticType(x.dtype);
  if (table.dtype != x.dtype && table.dtype != statistic) {
    InferError(kName, StrCat(what, " is ", DTypeName(table.dtype), " but must be ",
                             DTypeName(statistic), " or of the type of x, ", DTypeName(x.dtype)));
  }
  bool fits = table.rank() >= 1 && table.rank() <= x.rank();
  for (int d = 2; fits && d <= table.rank(); ++d) {
    const int64_t n = *(table.shape.end() - d);
    fits = n == 1 || n == *(x.shape.end() - d);
  }
  if (!fits) {
    InferError(kName, StrCat(what, " of shape ", ShapeToString(table.shape),
                             " has no row for each row of x, ", ShapeToString(x.shape)));
  }
}

std::vector<TensorType> Infer(const InferArgs& args) {
  const TensorType &x = args[0], &cos = args[1], &sin = args[2];
  RequireFloat(kName, x, "x");
  if (x.rank() < 1) InferError(kName, "turns the last dim, but x is a scalar");
  CheckTable(x, cos, "cos");
  CheckTable(x, sin, "sin");
  if (sin.dtype != cos.dtype || sin.shape.back() != cos.shape.back()) {
    InferError(kName,
               StrCat("cos and sin are not alike: ", DTypeName(cos.dtype), ShapeToString(cos.shape),
                      " and ", DTypeName(sin.dtype), ShapeToString(sin.shape)));
  }
  // Not their double, which could overflow.
  if (cos.shape.back() > x.shape.back() / 2) {
    InferError(kName, StrCat("tables for ", cos.shape.back(), " pairs do not fit rows of ",
                             x.shape.back(), " elements"));
  }
  const DType out = OutType(kName, args.attrs, x.dtype);
  if (out != x.dtype && cos.dtype != DType::kF32) {
    InferError(kName, StrCat("gives ", DTypeName(out), " for ", DTypeName(x.dtype),
                             " only with tables in f32, not ", DTypeName(cos.dtype)));
  }
  return {TensorType(out, x.shape)};
}

// The last dims are whole: they hold pairs, or what belongs to one each.
ShardingRule Rule(const Op& op) {
  ShardingRule rule = ElementwiseRule(op, {{0}});
  const int last = op.out().rank() - 1;
  rule.factors[last].kind = FactorKind::kReplicated;
  for (int i : {1, 2}) {
    const int pairs = rule.AddFactor(op.in(i).shape.back(), FactorKind::kReplicated);
    rule.operands[i].back().factors = {pairs};
  }
  return rule;
}

struct Halves {
  Value *first, *second;
};

// Of the part of x that is turned, in the tables' type.
Halves HalvesOf(Builder& b, Value* x, const Op& op) {
  const TensorType& table = op.in(1);
  const int64_t half = table.shape.back();
  auto part = [&](Value* v, int64_t from, int64_t to) {
    return b.Slice(v, v->type.rank() - 1, from, to);
  };
  x = b.Cast(x, table.dtype);
  if (!op.attrs.Bool("interleaved")) return {part(x, 0, half), part(x, half, 2 * half)};
  Shape single = x->type.shape, pairs = single;
  single.back() = pairs.back() = half;
  pairs.push_back(2);
  x = b.Reshape(part(x, 0, 2 * half), pairs);
  return {b.Reshape(part(x, 0, 1), single), b.Reshape(part(x, 1, 2), single)};
}

std::vector<Value*> Gradient(const GradientArgs& args) {
  const Op& op = args.op;
  Builder& b = args.builder;
  std::vector<Value*> grads(3);
  Value* dy = args.result_grads[0];
  const bool inverse = op.attrs.Bool("inverse");
  if (args.wanted[0]) {
    Attributes back = op.attrs;
    back.Erase("inverse");
    if (!inverse) back.Set("inverse", true);
    back.Erase("out");
    if (dy->type.dtype != op.in(0).dtype) back.Set("out", std::string(DTypeName(op.in(0).dtype)));
    grads[0] = b.Make(kName, {dy, op.operands[1], op.operands[2]}, std::move(back));
  }
  if (!args.wanted[1] && !args.wanted[2]) return grads;
  const Halves x = HalvesOf(b, op.operands[0], op), d = HalvesOf(b, dy, op);
  if (args.wanted[1]) {
    Value* sum = b.Add(b.Mul(d.first, x.first), b.Mul(d.second, x.second));
    grads[1] = b.SumTo(sum, op.in(1).shape);
  }
  if (args.wanted[2]) {
    Value *up = b.Mul(d.second, x.first), *down = b.Mul(d.first, x.second);
    grads[2] = b.SumTo(inverse ? b.Sub(down, up) : b.Sub(up, down), op.in(2).shape);
  }
  return grads;
}

void Reference(const KernelCall& call) {
  std::vector<double> x = ToDoubles(call.in[0]);
  const std::vector<double> cos = ToDoubles(call.in[1]), sin = ToDoubles(call.in[2]);
  const Shape& shape = call.in[0].shape;
  const int64_t half = call.in[1].shape.back();
  const bool interleaved = call.attrs->Bool("interleaved");
  const double sign = call.attrs->Bool("inverse") ? -1 : 1;
  const Shape rows = WithoutLast(shape);
  auto strides = [&](const TensorView& v) {
    Shape s = BroadcastStrides(WithoutLast(v.shape), rows);
    for (int64_t& n : s) n *= v.shape.back();
    return s;
  };
  reference::ForEach<3>(
      rows, {strides(call.in[0]), strides(call.in[1]), strides(call.in[2])}, [&](const auto& at) {
        for (int64_t i = 0; i < half; ++i) {
          double& first = x[at[0] + (interleaved ? 2 * i : i)];
          double& second = x[at[0] + (interleaved ? 2 * i + 1 : i + half)];
          const double c = cos[at[1] + i], s = sign * sin[at[2] + i], before = first;
          first = first * c - second * s;
          second = second * c + before * s;
        }
      });
  FromDoubles(x, call.out[0]);
}

}  // namespace

void RegisterRotaryOps(OpRegistry& registry) {
  OpDef def;
  def.name = kName;
  def.min_operands = def.max_operands = 3;
  def.attrs = {
      {"interleaved", AttrKind::kBool}, {"inverse", AttrKind::kBool}, {"out", AttrKind::kString}};
  def.infer = Infer;
  def.rule = Rule;
  def.gradient = Gradient;
  def.flops = [](const Op& op) {
    const int64_t cols = op.in(0).shape.back();
    const int64_t rows = cols == 0 ? 0 : op.in(0).num_elements() / cols;
    return 6 * rows * op.in(1).shape.back();
  };
  def.simplify = [](Builder&, const Op& op) {
    return op.in(1).shape.back() == 0 ? op.operands[0] : nullptr;
  };
  def.reference = Reference;
  def.in_place = [](int operand, int) { return operand == 0; };
  // The angles' digits are worth keeping, and q and k are rounded once: x may come in f32 where the
  // result is a half, and as a half where it is one anyway (gradients, products of halves).
  def.typed_result = 0;
  def.narrow_operands = {0};
  def.cpu_halves = CpuHalves::kBf16Result;
  def.cheap = true;
  def.keeps_zero_padding = true;
  registry.Add(std::move(def));
}

}  // namespace shardc
