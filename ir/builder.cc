#include "ir/builder.h"

#include <algorithm>
#include <numeric>

#include "ir/op_def.h"

namespace shardc {

Value* OpMaker::Constant(HostTensor value) {
  Attributes attrs;
  attrs.Set("value", std::make_shared<const HostTensor>(std::move(value)));
  return Make("constant", {}, std::move(attrs));
}

Value* OpMaker::Scalar(DType dtype, double value) {
  HostTensor t(dtype, {});
  t.SetDouble(0, value);
  return Constant(std::move(t));
}

Value* OpMaker::Cast(Value* a, DType to) {
  if (a->type.dtype == to) return a;
  return Make("cast", {a}, {{"to", std::string(DTypeName(to))}});
}

Value* OpMaker::Reshape(Value* a, Shape shape) {
  if (a->type.shape == shape) return a;
  return Make("reshape", {a}, {{"shape", std::move(shape)}});
}

Value* OpMaker::Transpose(Value* a, Ints perm) {
  bool identity = static_cast<int>(perm.size()) == a->type.rank();
  for (size_t i = 0; i < perm.size(); ++i) identity &= perm[i] == static_cast<int64_t>(i);
  return identity ? a : Make("transpose", {a}, {{"perm", std::move(perm)}});
}

Value* OpMaker::BroadcastTo(Value* a, Shape shape) {
  if (a->type.shape == shape) return a;
  return Make("broadcast_to", {a}, {{"shape", std::move(shape)}});
}

Value* OpMaker::Slice(Value* a, int dim, int64_t from, int64_t to, int64_t step) {
  Ints starts(a->type.shape.size(), 0), limits = a->type.shape, steps(starts.size(), 1);
  if (from == 0 && to == limits[dim] && step == 1) return a;
  // A step beyond the dim, which no slice has, takes one element as one of its size does.
  steps[dim] = std::min(step, std::max<int64_t>(limits[dim], 1));
  starts[dim] = from, limits[dim] = to;
  return Make("slice", {a}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
}

Op* Builder::Create(std::string_view name, std::vector<Value*> operands, Attributes attrs) {
  const OpDef& def = GetOpDef(name);
  for (Value* v : operands) SHARDC_CHECK(v != nullptr, name);
  if (!def.Takes(operands.size())) InferError(name, StrCat("has ", operands.size(), " operands"));
  std::vector<TensorType> results = InferResults(def, operands, attrs);
  return Insert(def, std::move(operands), std::move(results), std::move(attrs));
}

Op* Builder::Insert(const OpDef& def, std::vector<Value*> operands, std::vector<TensorType> results,
                    Attributes attrs) {
  Op* op = graph_.AddOp(def, std::move(operands), std::move(results), std::move(attrs), before_);
  op->phase = phase;
  op->BelongWith(*this);
  return op;
}

Value* Builder::Param(std::string name, DType dtype, Shape shape, Attributes more) {
  more.Set("name", std::move(name));
  TensorType type(dtype, std::move(shape));
  return Insert(GetOpDef("param"), {}, {std::move(type)}, std::move(more))->result();
}

Value* Builder::State(std::string name, const TensorType& like, double init) {
  // The op's own inference would leave the tensor whole.
  return Insert(GetOpDef("state"), {}, {like},
                {{"name", std::move(name)},
                 {"dtype", std::string(DTypeName(like.dtype))},
                 {"shape", like.shape},
                 {"init", init}})
      ->result();
}

void Builder::Update(std::string state, Value* value) {
  Create("update", {value}, {{"name", std::move(state)}});
}

Value* Builder::ReduceSum(Value* a, Ints axes, bool keepdims) {
  if (axes.empty()) return a;
  return Make("reduce_sum", {a}, {{"axes", std::move(axes)}, {"keepdims", keepdims}});
}

Value* Builder::ReduceMax(Value* a, Ints axes, bool keepdims) {
  return Make("reduce_max", {a}, {{"axes", std::move(axes)}, {"keepdims", keepdims}});
}

Value* Builder::SumTo(Value* a, const Shape& shape) {
  const Shape& from = a->type.shape;
  if (from == shape) return a;
  size_t extra = from.size() - shape.size();
  Ints axes(extra);
  std::iota(axes.begin(), axes.end(), 0);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1 && from[i + extra] != 1) axes.push_back(static_cast<int64_t>(i + extra));
  }
  return Reshape(ReduceSum(a, std::move(axes)), shape);
}

}  // namespace shardc
