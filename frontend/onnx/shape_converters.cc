// Ops that make shapes and constants, and ops that only rearrange dims.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "frontend/onnx/convert_util.h"
#include "ir/op_def.h"

namespace shardc::onnx_import {
namespace {

void ShapeOf(NodeContext& c) {
  const Shape& shape = c.input(0)->type.shape;
  int64_t rank = static_cast<int64_t>(shape.size());
  auto place = [rank](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  int64_t start = place(c.Int("start", 0)), end = place(c.Int("end", rank));
  Ints dims(shape.begin() + start, shape.begin() + std::max(start, end));
  int64_t count = static_cast<int64_t>(dims.size());
  Value* constant = c.Constant(HostTensor::Of<int64_t>({count}, dims));
  const ChosenRows::Mark* rows = c.rows().Of(c.input(0));
  if (rows != nullptr && start <= rows->dim && rows->dim < end) {
    c.rows().SetCount(constant, *rows, [&](int64_t n) {
      dims[rows->dim - start] = n * rows->each;
      return HostTensor::Of<int64_t>({count}, dims);
    });
  }
  c.SetOutput(0, constant);
}

void Size(NodeContext& c) {
  Value* constant = c.Constant(HostTensor::Scalar(c.input(0)->type.num_elements()));
  if (const ChosenRows::Mark* rows = c.rows().Of(c.input(0))) {
    shardc::Shape shape = c.input(0)->type.shape;
    c.rows().SetCount(constant, *rows, [&](int64_t n) {
      shape[rows->dim] = n * rows->each;
      return HostTensor::Scalar(NumElements(shape));
    });
  }
  c.SetOutput(0, constant);
}

HostTensor Floats(Shape shape, const std::vector<double>& values) {
  return HostTensor::Of(std::move(shape), std::vector<float>(values.begin(), values.end()));
}

void Constant(NodeContext& c) {
  if (c.HasAttr("value"))
    return c.SetOutput(0, c.Constant(*c.Tensor("value")), c.TypeOfTensor("value"));
  if (c.HasAttr("value_int")) {
    return c.SetOutput(0, c.Constant(HostTensor::Scalar(c.Int("value_int", 0))));
  }
  if (c.HasAttr("value_float")) {
    return c.SetOutput(0, c.Constant(Floats({}, {c.Float("value_float", 0)})));
  }
  if (auto ints = c.IntList("value_ints")) {
    Shape shape = {static_cast<int64_t>(ints->size())};
    return c.SetOutput(0, c.Constant(HostTensor::Of<int64_t>(std::move(shape), *ints)));
  }
  if (auto floats = c.FloatList("value_floats")) {
    Shape shape = {static_cast<int64_t>(floats->size())};
    return c.SetOutput(0, c.Constant(Floats(std::move(shape), *floats)));
  }
  c.Fail("E1301", "a Constant of strings or of a sparse tensor is not supported");
}

Shape ShapeInput(NodeContext& c, int i) {
  Shape shape = c.ConstantInts(i);
  for (int64_t d : shape) {
    if (d < 0) c.Fail("E1303", StrCat("the shape ", ShapeToString(shape), " has a negative dim"));
  }
  return shape;
}

void ConstantOfShape(NodeContext& c) {
  HostTensor value = HostTensor::Scalar(0.0f);
  if (c.HasAttr("value")) value = *c.Tensor("value");
  if (value.num_elements() != 1) c.Fail("E1303", "the value of ConstantOfShape has one element");
  Shape shape = ShapeInput(c, 0);
  c.SetOutput(0, c.BroadcastTo(c.Constant(value.Reshaped({})), std::move(shape)),
              c.TypeOfTensor("value"));
}

void Reshape(NodeContext& c) {
  Value* x = c.input(0);
  Shape shape = c.ConstantInts(1);
  bool allow_zero = c.Flag("allowzero", false);
  int64_t known = 1, unknown = -1;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0 && !allow_zero) {
      if (d >= x->type.shape.size()) {
        c.Fail("E1303", StrCat("dim ", d, " of the new shape is 0, which copies a dim that ",
                               ShapeToString(x->type.shape), " does not have"));
      }
      shape[d] = x->type.shape[d];
    }
    if (shape[d] < -1 || (shape[d] == -1 && unknown >= 0)) {
      c.Fail("E1303", StrCat("the new shape ", ShapeToString(shape), " is not valid"));
    }
    if (shape[d] == -1) {
      unknown = static_cast<int64_t>(d);
    } else if (__builtin_mul_overflow(known, shape[d], &known)) {
      c.Fail("E1303", StrCat("the new shape ", ShapeToString(shape), " is too large"));
    }
  }
  const int64_t elements = x->type.num_elements();
  if (unknown >= 0 ? known == 0 || elements % known != 0 : elements != known) {
    c.Fail("E1303",
           StrCat(elements, " elements of shape ", ShapeToString(x->type.shape),
                  " do not fit the new shape ", ShapeToString(shape)),
           "check what the symbols of the inputs are bound to, and what sizes the exporter kept");
  }
  if (unknown >= 0) shape[unknown] = elements / known;
  c.SetOutput(0, c.Reshape(x, std::move(shape)));
}

void Flatten(NodeContext& c) {
  Value* x = c.input(0);
  int64_t rank = x->type.rank(), axis = c.Int("axis", 1);
  if (axis < -rank || axis > rank) {
    c.Fail("E1303", StrCat("axis ", axis, " is out of range for ", rank, " dims"));
  }
  const Shape& shape = x->type.shape;
  auto middle = shape.begin() + (axis < 0 ? axis + rank : axis);
  int64_t rows = NumElements(Shape(shape.begin(), middle));
  int64_t columns = NumElements(Shape(middle, shape.end()));
  c.SetOutput(0, c.Reshape(x, {rows, columns}));
}

void Squeeze(NodeContext& c) {
  Value* x = c.input(0);
  const Shape& shape = x->type.shape;
  std::vector<bool> drop(shape.size());
  std::optional<Ints> axes = IntsOf(c, 1, "axes");
  if (!axes) {
    for (size_t d = 0; d < shape.size(); ++d) drop[d] = shape[d] == 1;
  } else {
    for (int64_t d : Axes(c, *axes, x->type.rank())) {
      if (shape[d] != 1) {
        c.Fail("E1303", StrCat("dim ", d, " of ", ShapeToString(shape), " is not 1"));
      }
      drop[d] = true;
    }
  }
  Shape out;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!drop[d]) out.push_back(shape[d]);
  }
  c.SetOutput(0, c.Reshape(x, std::move(out)));
}

void Unsqueeze(NodeContext& c) {
  Value* x = c.input(0);
  std::optional<Ints> given = IntsOf(c, 1, "axes");
  if (!given) c.Fail("E1302", "does not say which axes are new");
  int rank = x->type.rank() + static_cast<int>(given->size());
  Ints axes = Axes(c, *given, rank);
  std::sort(axes.begin(), axes.end());
  Shape out = x->type.shape;
  for (int64_t d : axes) out.insert(out.begin() + d, 1);
  c.SetOutput(0, c.Reshape(x, std::move(out)));
}

void Transpose(NodeContext& c) {
  Value* x = c.input(0);
  Ints perm = Count(x->type.rank());
  std::reverse(perm.begin(), perm.end());
  if (auto given = c.IntList("perm")) perm = *given;
  Ints sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != Count(x->type.rank())) {
    c.Fail("E1303", StrCat("perm ", ShapeToString(perm), " is not a permutation of the ",
                           x->type.rank(), " dims"));
  }
  c.SetOutput(0, c.Transpose(x, std::move(perm)));
}

// The shape may have 1 where the operand's own dim stays.
// Whether an integer is how many rows a mask chose: the sum of it.
bool IsCountOf(NodeContext& c, const Value* v, const Value* chosen) {
  bool summed = false;
  for (;;) {
    if (c.rows().chosen_by(v) == chosen) return summed;
    const Op* op = v->producer;
    if (op == nullptr || op->operands.size() != 1) return false;
    const bool sum = op->name() == "reduce_sum" && op->out().num_elements() == 1;
    if (!sum && op->name() != "reshape" && op->name() != "cast") return false;
    summed |= sum;
    v = op->operands[0];
  }
}

// Whether a shape that is known only when the model runs is x's own, with as many rows as data
// chose.
bool IsShapeOfRows(NodeContext& c, const Value* x, Value* shape) {
  const ChosenRows::Mark* rows = c.rows().Of(x);
  if (rows == nullptr || shape->type.shape != shardc::Shape{x->type.rank()}) return false;
  std::vector<Value*> pieces = {shape};
  if (shape->producer && shape->producer->name() == "concat") pieces = shape->producer->operands;
  int64_t dim = 0;
  for (Value* piece : pieces) {
    const HostTensor* known = c.ConstantOf(piece);
    if (known == nullptr) {
      if (dim != rows->dim || rows->each != 1 || piece->type.num_elements() != 1 ||
          !IsCountOf(c, piece, rows->chosen)) {
        return false;
      }
    }
    for (int64_t i = 0; known != nullptr && i < known->num_elements(); ++i) {
      const int64_t size = known->AsInt(i);
      if (size != 1 && size != x->type.shape[dim + i]) return false;
    }
    dim += piece->type.num_elements();
  }
  return true;
}

void Expand(NodeContext& c) {
  Value* x = c.input(0);
  if (c.ConstantOf(c.input(1)) == nullptr && IsShapeOfRows(c, x, c.input(1))) {
    return c.SetOutput(0, x);
  }
  c.SetOutput(0, c.BroadcastTo(x, BroadcastShapes("Expand", x->type.shape, ShapeInput(c, 1))));
}

void Concat(NodeContext& c) {
  std::vector<Value*> pieces;
  for (int i = 0; i < c.num_inputs(); ++i) pieces.push_back(c.input(i));
  int64_t axis = Axis(c, c.Int("axis", 0), c.input(0)->type.rank());
  c.SetOutput(0, Joined(c, std::move(pieces), axis));
}

// Dims r0 of x become [1, r0], broadcast to [repeats, r0], merged.
void Tile(NodeContext& c) {
  Value* x = c.input(0);
  Ints repeats = ShapeInput(c, 1);
  const Shape shape = x->type.shape;
  if (repeats.size() != shape.size()) {
    c.Fail("E1303", StrCat(repeats.size(), " repeats for ", shape.size(), " dims"));
  }
  Shape split, wide, merged;
  for (size_t d = 0; d < shape.size(); ++d) {
    split.insert(split.end(), {1, shape[d]});
    wide.insert(wide.end(), {repeats[d], shape[d]});
    int64_t& size = merged.emplace_back();
    if (__builtin_mul_overflow(repeats[d], shape[d], &size)) {
      c.Fail("E1303", StrCat("a dim of size ", shape[d], " repeated ", repeats[d], " times"));
    }
  }
  c.SetOutput(0, c.Reshape(c.BroadcastTo(c.Reshape(x, split), wide), merged));
}

// Whole numbers from start to limit in steps of delta. Differences of any two are exact without a
// sign.
double CountOf(int64_t start, int64_t limit, int64_t delta) {
  if (delta > 0 ? start >= limit : start <= limit) return 0;
  const auto from = static_cast<uint64_t>(start), to = static_cast<uint64_t>(limit),
             by = static_cast<uint64_t>(delta);
  const uint64_t span = delta > 0 ? to - from : from - to;
  return static_cast<double>((span - 1) / (delta > 0 ? by : -by) + 1);
}

double CountOf(double start, double limit, double delta) {
  return std::max(std::ceil((limit - start) / delta), 0.0);
}

void Range(NodeContext& c) {
  DType type = c.input(0)->type.dtype;
  auto make = [&](auto start, auto limit, auto delta, auto element) {
    if (delta == 0) c.Fail("E1303", "the step of Range is 0");
    const double count = CountOf(start, limit, delta);
    constexpr double kLargest = 1e9;
    if (!(count <= kLargest)) c.Fail("E1303", StrCat("Range has ", count, " elements"));
    HostTensor t(type, {static_cast<int64_t>(count)});
    for (int64_t i = 0; i < t.num_elements(); ++i) element(t, i);
    c.SetOutput(0, c.Constant(std::move(t)));
  };
  if (IsInteger(type)) {
    const int64_t start = c.ConstantInt(0), delta = c.ConstantInt(2);
    make(start, c.ConstantInt(1), delta, [&](HostTensor& t, int64_t i) {
      const auto v = static_cast<int64_t>(static_cast<uint64_t>(start) +
                                          static_cast<uint64_t>(i) * static_cast<uint64_t>(delta));
      if (type == DType::kI64) {
        t.data<int64_t>()[i] = v;
      } else {
        t.SetDouble(i, static_cast<double>(v));
      }
    });
  } else {
    const double start = c.ConstantScalar(0), delta = c.ConstantScalar(2);
    make(start, c.ConstantScalar(1), delta,
         [&](HostTensor& t, int64_t i) { t.SetDouble(i, start + static_cast<double>(i) * delta); });
  }
}

void EyeLike(NodeContext& c) {
  const TensorType& like = c.input(0)->type;
  if (like.rank() != 2) c.Fail("E1303", "EyeLike needs a matrix");
  DType type = c.HasAttr("dtype") ? HeldType(c, c.Int("dtype", 1)) : like.dtype;
  const int64_t columns = like.shape[1];
  // Beyond the matrix k means nothing more, and could overflow.
  const int64_t k = std::clamp(c.Int("k", 0), -like.shape[0], columns);
  HostTensor eye(type, like.shape);
  for (int64_t i = 0; i < like.shape[0]; ++i) {
    if (i + k >= 0 && i + k < columns) eye.SetDouble(i * columns + i + k, 1);
  }
  c.SetOutput(0, c.Constant(std::move(eye)), c.Int("dtype", c.NarrowType(0)));
}

}  // namespace

void AddShapeConverters(ConverterTable& table) {
  table.insert({{"Shape", ShapeOf},
                {"Size", Size},
                {"Constant", Constant},
                {"ConstantOfShape", ConstantOfShape},
                {"Reshape", Reshape},
                {"Flatten", Flatten},
                {"Squeeze", Squeeze},
                {"Unsqueeze", Unsqueeze},
                {"Transpose", Transpose},
                {"Expand", Expand},
                {"Concat", Concat},
                {"Tile", Tile},
                {"Range", Range},
                {"EyeLike", EyeLike}});
  AddIndexConverters(table);
  AddScatterConverters(table);
}

}  // namespace shardc::onnx_import
