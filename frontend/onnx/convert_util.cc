#include "frontend/onnx/convert_util.h"

#include <algorithm>
#include <numeric>

#include "frontend/onnx/initializers.h"

namespace shardc::onnx_import {

int Axis(const NodeContext& c, int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    c.Fail("E1303", StrCat("axis ", axis, " is out of range for ", rank, " dims"));
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Ints Axes(const NodeContext& c, const Ints& axes, int rank) {
  Ints out;
  std::vector<bool> given(rank);
  for (int64_t axis : axes) {
    out.push_back(Axis(c, axis, rank));
    const auto d = static_cast<size_t>(out.back());
    if (given[d]) c.Fail("E1303", StrCat("axis ", axis, " is given twice"));
    given[d] = true;
  }
  return out;
}

Ints Count(int64_t n) {
  Ints out(n);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

std::optional<Repeats> RepeatsOf(const Ints& positions, int64_t n) {
  const auto count = static_cast<int64_t>(positions.size());
  if (n < 1 || count <= n || count % n != 0) return std::nullopt;
  const int64_t times = count / n;
  bool one_by_one = true, in_turns = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = positions[i];
    one_by_one = one_by_one && at == i / times;
    in_turns = in_turns && at == i % n;
  }
  if (!one_by_one && !in_turns) return std::nullopt;
  return Repeats{times, !one_by_one};
}

Value* Iota(NodeContext& c, int64_t n, int axis, int rank) {
  Shape shape(rank, 1);
  shape[axis] = n;
  return c.Constant(HostTensor::Of(std::move(shape), Count(n)));
}

std::optional<Ints> IntsOf(const NodeContext& c, int i, std::string_view attribute) {
  return c.has_input(i) ? c.ConstantInts(i) : c.IntList(attribute);
}

DType HeldType(const NodeContext& c, int64_t onnx_type) {
  std::optional<DType> held = HeldAs(static_cast<int>(onnx_type));
  if (!held) {
    c.Fail("E1301",
           StrCat("the type ", OnnxTypeName(static_cast<int>(onnx_type)), " is not supported"),
           "use float, float16, bfloat16, double, int32, int64 or bool");
  }
  return *held;
}

Value* Times(NodeContext& c, Value* v, double factor) {
  return factor == 1 ? v : Mul(c, v, Like(c, v, factor));
}

Value* Plus(NodeContext& c, Value* v, double term) {
  return term == 0 ? v : Add(c, v, Like(c, v, term));
}

void CheckOnto(const NodeContext& c, const Value* v, const Shape& shape, const std::string& what) {
  const Shape& from = v->type.shape;
  bool fits = from.size() <= shape.size();
  for (size_t d = 0; fits && d < from.size(); ++d) {
    fits = from[d] == 1 || from[d] == shape[shape.size() - from.size() + d];
  }
  if (!fits) {
    c.Fail("E1303", StrCat(what, " of shape ", ShapeToString(from), " does not broadcast to ",
                           ShapeToString(shape)));
  }
}

Value* InputOnto(NodeContext& c, int i, const Shape& shape) {
  CheckOnto(c, c.input(i), shape, StrCat("its input ", i));
  return c.input(i);
}

Value* Reduce(NodeContext& c, std::string_view op, Value* v, Ints axes, bool keepdims) {
  if (axes.empty()) return v;
  return c.Make(op, {v}, {{"axes", std::move(axes)}, {"keepdims", keepdims}});
}

Value* SliceDim(NodeContext& c, Value* v, int axis, int64_t from, int64_t to) {
  if (axis >= v->type.rank()) {
    c.Fail("E1303",
           StrCat("an operand of shape ", ShapeToString(v->type.shape), " has no dim ", axis));
  }
  return c.Slice(v, axis, from, to);
}

Value* LogSoftmax(NodeContext& c, Value* x, int axis) {
  Value* shifted = Sub(c, x, Reduce(c, "reduce_max", x, {axis}, true));
  Value* sum = Reduce(c, "reduce_sum", c.Make("exp", {shifted}), {axis}, true);
  return Sub(c, shifted, c.Make("log", {sum}));
}

}  // namespace shardc::onnx_import
