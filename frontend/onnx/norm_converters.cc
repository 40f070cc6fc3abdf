// Norms over groups of channels, and by the length of a vector.
#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

// x[n, channels, d...], every group of channels of a sample by itself; scale and bias (inputs 1 and
// 2) have an element for each channel, or for each group of opset 18.
void NormalizeGroups(NodeContext& c, int64_t groups) {
  Value* x = c.input(0);
  const Shape shape = x->type.shape;
  if (shape.size() < 2 || groups < 1 || shape[1] % groups != 0) {
    c.Fail("E1303", StrCat(ShapeToString(shape), " has no channels for ", groups, " groups"));
  }
  const int64_t n = shape[0], size = NumElements(Shape(shape.begin() + 1, shape.end()));
  Value* y = c.Reshape(x, {n, groups, size / groups});
  y = c.MakeAll("layer_norm", {y}, {{"eps", c.Float("epsilon", 1e-5f)}})[0];
  for (int i = 1; i <= 2; ++i) {
    Value* v = c.input(i);
    const int64_t parts = v->type.num_elements();
    if (v->type.rank() != 1 || (parts != shape[1] && parts != groups)) {
      c.Fail("E1303", StrCat("its input ", i, " has shape ", ShapeToString(v->type.shape),
                             ", but there are ", shape[1], " channels"));
    }
    y = c.Reshape(y, {n, parts, size / parts});
    y = c.Make(i == 1 ? "mul" : "add", {y, c.Reshape(v, {parts, 1})});
  }
  c.SetOutput(0, c.Reshape(y, shape));
}

void GroupNormalization(NodeContext& c) { NormalizeGroups(c, c.Int("num_groups", 0)); }

void InstanceNormalization(NodeContext& c) {
  const Shape& shape = c.input(0)->type.shape;
  NormalizeGroups(c, shape.size() < 2 ? 0 : shape[1]);
}

// x over its length along an axis; what has none stays 0.
void LpNormalization(NodeContext& c) {
  Value* x = c.input(0);
  const int64_t p = c.Int("p", 2);
  if (p != 1 && p != 2) c.Fail("E1303", StrCat("there is no norm of p = ", p, ", only 1 and 2"));
  const int axis = Axis(c, c.Int("axis", -1), x->type.rank());
  Value* powers = p == 1 ? c.Make("abs", {x}) : Mul(c, x, x);
  Value* sum = Reduce(c, "reduce_sum", powers, {axis}, true);
  // Before the root, which has no slope at 0.
  sum = Where(c, c.Make("equal", {sum, Like(c, sum, 0)}), Like(c, sum, 1), sum);
  c.SetOutput(0, Div(c, x, p == 1 ? sum : c.Make("sqrt", {sum})));
}

}  // namespace

void AddNormConverters(ConverterTable& table) {
  table.insert({{"GroupNormalization", GroupNormalization},
                {"InstanceNormalization", InstanceNormalization},
                {"LpNormalization", LpNormalization}});
}

}  // namespace shardc::onnx_import
