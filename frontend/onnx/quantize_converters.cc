// Small integers with scales: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear,
// MatMulInteger. What they do to weights dequantize_weights.h has undone.
#include <onnx/onnx_pb.h>

#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/narrow.h"

namespace shardc::onnx_import {
namespace {

using onnx::TensorProto;

// A scale or a zero point, as what broadcasts to x: one number, one for each index of the axis, or
// one for each block along it.
Value* Onto(NodeContext& c, Value* part, const Shape& x, int64_t block) {
  if (part == nullptr) return nullptr;
  const int64_t given = c.Int("axis", 1);  // without effect on one number
  if (block == 0 && part->type.num_elements() == 1) return c.Reshape(part, {});
  const auto axis = static_cast<size_t>(Axis(c, given, static_cast<int>(x.size())));
  if (block == 0) {
    if (part->type.shape != Shape{x[axis]}) {
      c.Fail("E1303", StrCat("has scales ", ShapeToString(part->type.shape), " for dim ", axis,
                             " of ", ShapeToString(x)));
    }
    Shape one(x.size(), 1);
    one[axis] = x[axis];
    return c.Reshape(part, one);
  }
  Shape blocks = x;
  blocks[axis] = x[axis] / block + (x[axis] % block != 0);
  if (part->type.shape != blocks) {
    c.Fail("E1303", StrCat("has scales ", ShapeToString(part->type.shape), " for blocks of ", block,
                           " along dim ", axis, " of ", ShapeToString(x)));
  }
  Ints of = Count(x[axis]);
  for (int64_t& i : of) i /= block;
  return LookUp(c, part, c.Constant(HostTensor::Of<int64_t>({x[axis]}, of)),
                static_cast<int64_t>(axis));
}

int64_t BlockSize(const NodeContext& c) {
  const int64_t block = c.Int("block_size", 0);
  if (block < 0) c.Fail("E1303", StrCat("has blocks of ", block));
  return block;
}

// Halves have no room for what is computed of 16-bit integers.
DType Wide(DType type) { return IsHalf(type) ? DType::kF32 : type; }

Value* Detached(NodeContext& c, Value* v) {
  return c.Make("sub", {v, Like(c, v, 0)}, {{"detached", true}});
}

struct Codes {
  Value* integers;
  Value* floats;  // less the zero point
};

// x / scale + zero, rounded to the nearest integer of the type. Its gradient is that of x / scale
// where that is in range, and 0 elsewhere, as PyTorch's fake_quantize_per_tensor_affine has it.
Codes Rounded(NodeContext& c, Value* x, Value* scale, Value* zero, int64_t type) {
  Value* exact = Div(c, x, scale);
  Value* rounded = c.Make("round", {exact});
  const double least = ExtremeOf(c, type, false), most = ExtremeOf(c, type, true);
  Value *low = Like(c, x, least), *high = Like(c, x, most);
  Value* shift = zero == nullptr ? nullptr : c.Cast(zero, x->type.dtype);
  if (shift != nullptr) low = Sub(c, low, shift), high = Sub(c, high, shift);
  Value* inside =
      c.Make("and", {c.Make("less_equal", {low, rounded}), c.Make("less_equal", {rounded, high})});
  Value* passed = Where(c, inside, exact, Like(c, x, 0));
  Value* code = c.Make("min", {c.Make("max", {rounded, low}), high});
  // The sum is the code itself: the difference of a number and its nearest integer is exact.
  Value* floats = Add(c, passed, c.Make("sub", {code, passed}, {{"detached", true}}));
  Value* shifted = shift == nullptr ? floats : Add(c, floats, shift);
  return {c.Cast(shifted, DType::kI32), floats};
}

void QuantizeLinear(NodeContext& c) {
  Value *x = c.input(0), *scale = c.input(1), *zero = c.InputOrNull(2);
  const int64_t given = c.Int("output_dtype", 0);
  const int64_t type = zero != nullptr ? c.NarrowType(2)
                       : given != 0    ? given
                                       : int64_t{TensorProto::UINT8};
  if (!IsNarrow(type) || HeldType(c, type) != DType::kI32) {
    c.Fail("E1301", "rounds to another type than integers of up to 16 bits");
  }
  if (zero != nullptr && given != 0 && given != type)
    c.Fail("E1303", "has an output_dtype that is not the zero point's type");
  const int64_t precision = c.Int("precision", 0);
  const DType computed = Wide(precision == 0 ? scale->type.dtype : HeldType(c, precision));
  const int64_t block = BlockSize(c);
  const Shape& shape = x->type.shape;
  zero = Onto(c, zero, shape, block);
  const Codes codes =
      Rounded(c, c.Cast(x, computed), c.Cast(Onto(c, scale, shape, block), computed), zero, type);
  c.SetSteps(codes.integers, {codes.floats, zero});
  c.SetOutput(0, codes.integers, type);
}

bool Same(const NodeContext& c, Value* a, Value* b) {
  if (a == b) return true;
  const HostTensor *first = a ? c.ConstantOf(a) : nullptr, *second = b ? c.ConstantOf(b) : nullptr;
  return first != nullptr && second != nullptr && *first == *second;
}

void DequantizeLinear(NodeContext& c) {
  Value *x = c.input(0), *scale = c.input(1), *zero = c.InputOrNull(2);
  const int64_t given = c.Int("output_dtype", 0);
  const DType type = given == 0 ? scale->type.dtype : HeldType(c, given);
  if (!IsFloat(type)) c.Fail("E1303", StrCat("has results of type ", DTypeName(type)));
  if (x->type.dtype != DType::kI32 || (zero != nullptr && zero->type.dtype != DType::kI32))
    c.Fail("E1301", "scales another type than integers of up to 32 bits");
  const DType computed = Wide(type);
  const int64_t block = BlockSize(c);
  const Shape& shape = x->type.shape;
  const Steps steps = c.StepsOf(x);
  zero = Onto(c, zero, shape, block);
  Value* floats = steps.floats != nullptr && Same(c, steps.zero, zero) ? steps.floats
                  : zero == nullptr                                    ? x
                                                                       : Sub(c, x, zero);
  floats = c.Cast(floats, computed);
  scale = c.Cast(Onto(c, scale, shape, block), computed);
  c.SetOutput(0, c.Cast(Mul(c, floats, scale), type));
}

// Its scale and zero point, which are the range of x, have no gradient.
void DynamicQuantizeLinear(NodeContext& c) {
  Value* x = c.input(0);
  Ints all = Count(x->type.rank());
  Value* zeros = Like(c, x, 0);
  // Of a maximum ranks can have a part each.
  Value* least = c.Make("neg", {Reduce(c, "reduce_max", c.Make("neg", {x}), all, false)});
  least = c.Make("min", {least, zeros});
  Value* most = c.Make("max", {Reduce(c, "reduce_max", x, all, false), zeros});
  Value* range = Detached(c, Sub(c, most, least));
  // Of zeros alone the scale is 1, as ONNX Runtime has it.
  Value* flat = c.Make("equal", {range, zeros});
  Value* scale = Where(c, flat, Like(c, x, 1), Times(c, range, 1.0 / 255));
  Value* zero = Detached(c, c.Make("round", {Div(c, Sub(c, zeros, least), scale)}));
  zero = c.Cast(Clamped(c, zero, 0, 255), DType::kI32);
  const Codes codes = Rounded(c, x, scale, zero, TensorProto::UINT8);
  c.SetSteps(codes.integers, {codes.floats, zero});
  c.SetOutput(0, codes.integers, TensorProto::UINT8);
  c.SetOutput(1, scale);
  c.SetOutput(2, zero, TensorProto::UINT8);
}

// Less its zero point: one number, one for each row (of the first operand) or column (of the
// second), or one for each of all rows or columns.
Value* LessZero(NodeContext& c, int operand, int i) {
  Value *v = c.input(operand), *zero = c.InputOrNull(i);
  if (v->type.dtype != DType::kI32) c.Fail("E1303", "multiplies integers of 8 bits");
  if (zero == nullptr) return v;
  if (zero->type.num_elements() == 1) return Sub(c, v, c.Reshape(zero, {}));
  if (zero->type.rank() == 1 && operand == 0)
    zero = c.Reshape(zero, {zero->type.num_elements(), 1});
  CheckOnto(c, zero, v->type.shape, "zero point");
  return Sub(c, v, zero);
}

void MatMulInteger(NodeContext& c) {
  Value* a = c.Cast(LessZero(c, 0, 2), DType::kF64);  // whose sums are exact
  Value* b = c.Cast(LessZero(c, 1, 3), DType::kF64);
  c.SetOutput(0, c.Cast(MatMulOf(c, a, b), DType::kI32), TensorProto::INT32);
}

}  // namespace

void AddQuantizeConverters(ConverterTable& table) {
  table.insert({{"DequantizeLinear", DequantizeLinear},
                {"DynamicQuantizeLinear", DynamicQuantizeLinear},
                {"MatMulInteger", MatMulInteger},
                {"QuantizeLinear", QuantizeLinear},
                {"com.microsoft::DequantizeLinear", DequantizeLinear},
                {"com.microsoft::QuantizeLinear", QuantizeLinear}});
}

}  // namespace shardc::onnx_import
