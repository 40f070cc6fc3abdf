// equal not_equal less less_equal greater greater_equal and or xor, where.
#include <functional>

#include "ir/builder.h"
#include "ir/constant.h"
#include "ir/ops/elementwise.h"
#include "ir/ops/infer_util.h"

namespace shardc {
namespace {

enum class Takes { kAny, kNumeric, kBool };

template <typename Fn>
void AddCompare(OpRegistry& registry, std::string_view name, Takes takes, Fn fn,
                bool zero_padding = false) {
  OpDef def;
  def.name = name;
  def.min_operands = def.max_operands = 2;
  def.elementwise = true;
  def.cpu_halves = CpuHalves::kBf16;
  def.keeps_zero_padding = zero_padding;
  def.infer = [name, takes](const InferArgs& args) {
    if (takes == Takes::kNumeric) RequireNumeric(name, args[0], "operand 0");
    if (takes == Takes::kBool) RequireBool(name, args[0], "operand 0");
    RequireSameDType(name, args, 0, 2);
    Shape shape = BroadcastShapes(name, args[0].shape, args[1].shape);
    return std::vector<TensorType>{TensorType(DType::kBool, std::move(shape))};
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op); };
  def.no_gradient = "the result is boolean";
  def.gradient_is_zero = true;
  def.reference = [fn](const KernelCall& call) {
    reference::DispatchAny(call.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      MapElements<bool, T, T>(call, fn);
    });
  };
  registry.Add(std::move(def));
}

std::vector<TensorType> InferWhere(const InferArgs& args) {
  RequireBool("where", args[0], "the condition");
  RequireSameDType("where", args, 1, 3);
  Shape shape = BroadcastShapes("where", args[1].shape, args[2].shape);
  shape = BroadcastShapes("where", args[0].shape, shape);
  return {TensorType(args[1].dtype, std::move(shape))};
}

bool IsZero(const Value* v) {
  const HostTensor* value = ConstantOf(v);
  return value != nullptr && value->num_elements() == 1 && value->AsDouble(0) == 0;
}

// Linear in both, and in one alone where the other is zero.
ShardingRule WhereRule(const Op& op) {
  if (!IsFloat(op.out().dtype)) return ElementwiseRule(op);
  std::vector<std::vector<int>> linear = {{1, 2}};
  if (IsZero(op.operands[2])) linear.push_back({1});
  if (IsZero(op.operands[1])) linear.push_back({2});
  return ElementwiseRule(op, std::move(linear));
}

std::vector<Value*> WhereGradient(const GradientArgs& args) {
  std::vector<Value*> grads(3);
  Value* dy = args.result_grads[0];
  Value* condition = args.op.operands[0];
  Builder& b = args.builder;
  Value* zero = b.Scalar(dy->type.dtype, 0);
  if (args.wanted[1]) {
    grads[1] = b.SumTo(b.Make("where", {condition, dy, zero}), args.op.in(1).shape);
  }
  if (args.wanted[2]) {
    grads[2] = b.SumTo(b.Make("where", {condition, zero, dy}), args.op.in(2).shape);
  }
  return grads;
}

}  // namespace

void RegisterCompareOps(OpRegistry& registry) {
  AddCompare(registry, "equal", Takes::kAny, std::equal_to<>());
  AddCompare(registry, "not_equal", Takes::kAny, std::not_equal_to<>());
  AddCompare(registry, "less", Takes::kNumeric, std::less<>());
  AddCompare(registry, "less_equal", Takes::kNumeric, std::less_equal<>());
  AddCompare(registry, "greater", Takes::kNumeric, std::greater<>());
  AddCompare(registry, "greater_equal", Takes::kNumeric, std::greater_equal<>());
  AddCompare(registry, "and", Takes::kBool, std::logical_and<>(), true);
  AddCompare(registry, "or", Takes::kBool, std::logical_or<>());
  AddCompare(registry, "xor", Takes::kBool, std::not_equal_to<>());

  OpDef where;
  where.name = "where";
  where.min_operands = where.max_operands = 3;
  where.elementwise = true;
  where.cpu_halves = CpuHalves::kBf16;
  where.precision = Precision::kFollow;
  where.infer = InferWhere;
  where.rule = WhereRule;
  where.gradient = WhereGradient;
  where.reference = [](const KernelCall& call) {
    reference::DispatchAny(call.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      MapElements<T, bool, T, T>(call, [](int64_t c, auto a, auto b) { return c ? a : b; });
    });
  };
  registry.Add(std::move(where));
}

}  // namespace shardc
