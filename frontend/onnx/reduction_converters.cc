// Reductions, ArgMax, CumSum.
#include <algorithm>

#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/narrow.h"

namespace shardc::onnx_import {
namespace {

// Without axes the node reduces nothing; what it does to each element it still does.
struct Reduction {
  Ints axes;
  bool keepdims;
};

Reduction ReadReduction(NodeContext& c) {
  Ints axes = IntsOf(c, 1, "axes").value_or(Ints());  // an attribute before opset 18, or 13
  int rank = c.input(0)->type.rank();
  if (axes.empty() && !c.Flag("noop_with_empty_axes", false)) axes = Count(rank);
  return {Axes(c, axes, rank), c.Flag("keepdims", true)};
}

Value* Sum(NodeContext& c, Value* x, const Reduction& r) {
  return Reduce(c, "reduce_sum", x, r.axes, r.keepdims);
}

Value* Mean(NodeContext& c, Value* x, const Reduction& r) {
  if (IsFloat(x->type.dtype)) return Reduce(c, "reduce_mean", x, r.axes, r.keepdims);
  int64_t count = 1;
  for (int64_t axis : r.axes) count *= x->type.shape[axis];
  return Div(c, Sum(c, x, r), Like(c, x, static_cast<double>(count)));
}

// Bools are reduced as integers; of none, the least (or the largest) of these stands for false (or
// true).
Value* Extreme(NodeContext& c, Value* x, const Reduction& r, std::string_view op) {
  const bool flags = x->type.dtype == DType::kBool;
  const bool of_none = std::any_of(r.axes.begin(), r.axes.end(),
                                   [&](int64_t axis) { return x->type.shape[axis] == 0; });
  if (const int64_t narrow = c.NarrowType(0); of_none && IsNarrow(narrow)) {
    // The least (or the largest) of the type that holds it would wrap.
    Value* sum = Sum(c, x, r);
    return c.BroadcastTo(Like(c, sum, ExtremeOf(c, narrow, op == "reduce_min")), sum->type.shape);
  }
  Value* extreme = Reduce(c, op, flags ? c.Cast(x, DType::kI32) : x, r.axes, r.keepdims);
  return flags ? c.Make("greater", {extreme, Like(c, extreme, 0)}) : extreme;
}

Value* Max(NodeContext& c, Value* x, const Reduction& r) { return Extreme(c, x, r, "reduce_max"); }
Value* Min(NodeContext& c, Value* x, const Reduction& r) { return Extreme(c, x, r, "reduce_min"); }

Value* SumSquare(NodeContext& c, Value* x, const Reduction& r) { return Sum(c, Mul(c, x, x), r); }
Value* L1(NodeContext& c, Value* x, const Reduction& r) { return Sum(c, c.Make("abs", {x}), r); }

// The root has no slope at 0, where that of the norm counts as 0.
Value* L2(NodeContext& c, Value* x, const Reduction& r) {
  Value* squares = SumSquare(c, x, r);
  if (IsFloat(x->type.dtype)) {
    Value *zero = Like(c, squares, 0), *none = c.Make("equal", {squares, zero});
    Value* root = c.Make("sqrt", {Where(c, none, Like(c, squares, 1), squares)});
    return Where(c, none, zero, root);
  }
  return c.Cast(c.Make("sqrt", {c.Cast(squares, DType::kF64)}), x->type.dtype);
}

Value* LogSum(NodeContext& c, Value* x, const Reduction& r) {
  return c.Make("log", {Sum(c, x, r)});
}

// max + log(sum(exp(x - max))), with 0 for a maximum that is infinite.
Value* LogSumExp(NodeContext& c, Value* x, const Reduction& r) {
  Value* max = Reduce(c, "reduce_max", x, r.axes, true);
  max = Where(c, c.Make("is_inf", {max}), Like(c, x, 0), max);
  Value* sum = Sum(c, c.Make("exp", {Sub(c, x, max)}), r);
  return Add(c, c.Make("log", {sum}), c.Reshape(max, sum->type.shape));
}

// Halves multiplied with each other until one element is left.
Value* Prod(NodeContext& c, Value* x, const Reduction& r) {
  for (int64_t axis : r.axes) {
    int d = static_cast<int>(axis);
    Shape one = x->type.shape;
    one[d] = 1;
    if (x->type.shape[d] == 0) x = c.BroadcastTo(Like(c, x, 1), one);
    while (x->type.shape[d] > 1) {
      int64_t n = x->type.shape[d], half = n / 2;
      Value* product = Mul(c, SliceDim(c, x, d, 0, half), SliceDim(c, x, d, half, 2 * half));
      Value* rest = n % 2 == 0 ? nullptr : SliceDim(c, x, d, n - 1, n);
      x = rest ? Joined(c, {product, rest}, axis) : product;
    }
  }
  Shape out;
  for (int d = 0; d < x->type.rank(); ++d) {
    bool reduced = std::find(r.axes.begin(), r.axes.end(), d) != r.axes.end();
    if (r.keepdims || !reduced) out.push_back(x->type.shape[d]);
  }
  return c.Reshape(x, std::move(out));
}

template <Value* (*Fn)(NodeContext&, Value*, const Reduction&)>
void Convert(NodeContext& c) {
  c.SetOutput(0, Fn(c, c.input(0), ReadReduction(c)));
}

// The first (or last) position that has the extreme value.
void ArgExtreme(NodeContext& c) {
  Value* x = c.input(0);
  int rank = x->type.rank(), axis = Axis(c, c.Int("axis", 0), rank);
  bool max = c.op_type() == "ArgMax", last = c.Flag("select_last_index", false);
  int64_t n = x->type.shape[axis];
  Value* extreme = Reduce(c, max ? "reduce_max" : "reduce_min", x, {axis}, true);
  Value* hits = c.Make("equal", {x, extreme});
  if (IsFloat(x->type.dtype)) hits = c.Make("or", {hits, c.Make("is_nan", {x})});
  // What wins against no hit, and is a position itself: indices are seen to stay within the dim.
  Value* none = c.Scalar(DType::kI64, static_cast<double>(last ? 0 : n - 1));
  Value* positions = Where(c, hits, Iota(c, n, axis, rank), none);
  bool keepdims = c.Flag("keepdims", true);
  c.SetOutput(0, Reduce(c, last ? "reduce_max" : "reduce_min", positions, {axis}, keepdims));
}

void CumSum(NodeContext& c) {
  Value* x = c.input(0);
  int64_t axis = Axis(c, c.ConstantInt(1), x->type.rank());
  bool exclusive = c.Flag("exclusive", false), reverse = c.Flag("reverse", false);
  c.SetOutput(
      0, c.Make("cumsum", {x}, {{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}}));
}

}  // namespace

void AddReductionConverters(ConverterTable& table) {
  table.insert({{"ReduceSum", Convert<Sum>},
                {"ReduceMean", Convert<Mean>},
                {"ReduceMax", Convert<Max>},
                {"ReduceMin", Convert<Min>},
                {"ReduceProd", Convert<Prod>},
                {"ReduceSumSquare", Convert<SumSquare>},
                {"ReduceL1", Convert<L1>},
                {"ReduceL2", Convert<L2>},
                {"ReduceLogSum", Convert<LogSum>},
                {"ReduceLogSumExp", Convert<LogSumExp>},
                {"ArgMax", ArgExtreme},
                {"ArgMin", ArgExtreme},
                {"CumSum", CumSum}});
}

}  // namespace shardc::onnx_import
