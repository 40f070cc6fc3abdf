// softmax over one axis, and its gradient dx = y * (dy - sum(dy * y)).
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

int Axis(const Op& op) {
  return NormalizeAxis(op.name(), op.attrs.Int("axis", -1), op.in(0).rank());
}

std::vector<TensorType> Infer(std::string_view op, const InferArgs& args) {
  RequireFloat(op, args[0], "the operand");
  if (args.size() > 1) RequireTensor(op, args[1], args[0].dtype, args[0].shape, "y");
  NormalizeAxis(op, args.attrs.Int("axis", -1), args[0].rank());
  return {TensorType(args[0].dtype, args[0].shape)};
}

ShardingRule Rule(const Op& op, std::vector<std::vector<int>> linear) {
  ShardingRule rule = ElementwiseRule(op, std::move(linear));
  rule.factors[Axis(op)].kind = FactorKind::kExpandable;
  return rule;
}

// Calls fn(first, stride, size) for every line of elements along the axis.
template <typename Fn>
void ForEachLine(const KernelCall& call, Fn fn) {
  const Shape& shape = call.in[0].shape;
  int rank = static_cast<int>(shape.size());
  int axis = NormalizeAxis("softmax", call.attrs->Int("axis", -1), rank);
  int64_t outer = NumElements(Shape(shape.begin(), shape.begin() + axis));
  int64_t inner = NumElements(Shape(shape.begin() + axis + 1, shape.end()));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) fn(o * shape[axis] * inner + i, inner, shape[axis]);
  }
}

void Reference(const KernelCall& call) {
  std::vector<double> y = ToDoubles(call.in[0]);
  ForEachLine(call, [&](int64_t first, int64_t stride, int64_t size) {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t i = 0; i < size; ++i) max = std::max(max, y[first + i * stride]);
    for (int64_t i = 0; i < size; ++i)
      sum += y[first + i * stride] = std::exp(y[first + i * stride] - max);
    for (int64_t i = 0; i < size; ++i) y[first + i * stride] /= sum;
  });
  FromDoubles(y, call.out[0]);
}

void ReferenceGrad(const KernelCall& call) {
  std::vector<double> dx = ToDoubles(call.in[0]), y = ToDoubles(call.in[1]);
  ForEachLine(call, [&](int64_t first, int64_t stride, int64_t size) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += dx[first + i * stride] * y[first + i * stride];
    for (int64_t i = 0; i < size; ++i) {
      double& d = dx[first + i * stride];
      d = y[first + i * stride] * (d - sum);
    }
  });
  FromDoubles(dx, call.out[0]);
}

std::vector<Value*> Expand(Builder& builder, const Op& op) {
  Value* x = op.operands[0];
  Value* e = builder.Make("exp", {builder.Sub(x, builder.ReduceMax(x, {Axis(op)}, true))});
  return {builder.Div(e, builder.ReduceSum(e, {Axis(op)}, true))};
}

std::vector<Value*> ExpandGrad(Builder& builder, const Op& op) {
  Value *dy = op.operands[0], *y = op.operands[1];
  Value* sum = builder.ReduceSum(builder.Mul(dy, y), {Axis(op)}, true);
  return {builder.Mul(y, builder.Sub(dy, sum))};
}

OpDef Def(std::string_view name, int operands) {
  OpDef def;
  def.name = name;
  def.min_operands = def.max_operands = operands;
  def.attrs = {{"axis", AttrKind::kInt}};
  def.cpu_halves = CpuHalves::kWidened;
  def.infer = [name](const InferArgs& args) { return Infer(name, args); };
  def.flops = [](const Op& op) { return 5 * op.out().num_elements(); };
  return def;
}

}  // namespace

void RegisterSoftmaxOps(OpRegistry& registry) {
  OpDef softmax = Def("softmax", 1);
  softmax.rule = [](const Op& op) { return Rule(op, {}); };
  softmax.gradient = [](const GradientArgs& args) {
    return std::vector<Value*>{args.builder.Make("softmax_grad",
                                                 {args.result_grads[0], args.op.result()},
                                                 {{"axis", int64_t{Axis(args.op)}}})};
  };
  softmax.reference = Reference;
  softmax.expand = Expand;
  softmax.cheap = true;
  registry.Add(std::move(softmax));

  OpDef grad = Def("softmax_grad", 2);
  grad.rule = [](const Op& op) { return Rule(op, {{0}}); };
  grad.no_gradient = kSecondDerivative;
  grad.reference = ReferenceGrad;
  grad.expand = ExpandGrad;
  grad.keeps_zero_padding = true;
  registry.Add(std::move(grad));
}

}  // namespace shardc
