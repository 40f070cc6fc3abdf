#include "ir/ops/infer_util.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/place_in_whole.h"
#include "ir/shape_limit.h"

namespace shardc {
namespace {

[[noreturn]] void WrongDType(std::string_view op, const TensorType& type, std::string_view what,
                             std::string_view wants) {
  InferError(op, StrCat(what, " has type ", DTypeName(type.dtype), ", but must be ", wants));
}

}  // namespace

void CheckShape(std::string_view op, DType dtype, const Shape& shape) {
  for (int64_t n : shape) {
    if (n < 0) InferError(op, StrCat("shape ", ShapeToString(shape), " has a negative dim"));
  }
  if (TooLarge(dtype, shape)) {
    InferError(op, StrCat("a tensor of shape ", ShapeToString(shape), " is too large"));
  }
}

void RequireFloat(std::string_view op, const TensorType& type, std::string_view what) {
  if (!IsFloat(type.dtype)) WrongDType(op, type, what, "a float type");
}

void RequireNumeric(std::string_view op, const TensorType& type, std::string_view what) {
  if (type.dtype == DType::kBool) WrongDType(op, type, what, "a number type");
}

void RequireInteger(std::string_view op, const TensorType& type, std::string_view what) {
  if (!IsInteger(type.dtype)) WrongDType(op, type, what, "i32 or i64");
}

void RequireBool(std::string_view op, const TensorType& type, std::string_view what) {
  if (type.dtype != DType::kBool) WrongDType(op, type, what, "bool");
}

DType OutType(std::string_view op, const Attributes& attrs, DType type, std::string_view attr) {
  if (!attrs.Has(attr) || attrs.String(attr).empty()) return type;
  auto out = ParseDType(attrs.String(attr));
  if (!out || !IsFloat(*out)) {
    InferError(op, StrCat(attr, " is '", attrs.String(attr), "', which is no float type"));
  }
  return *out;
}

DType StatisticType(DType type) {
  return type == DType::kBF16 || type == DType::kF16 ? DType::kF32 : type;
}

void RequireSameDType(std::string_view op, const InferArgs& args, size_t from, size_t to) {
  for (size_t i = from + 1; i < to; ++i) {
    if (args[i].dtype != args[from].dtype) {
      InferError(op, StrCat("operand ", i, " has type ", DTypeName(args[i].dtype), ", but operand ",
                            from, " has ", DTypeName(args[from].dtype)));
    }
  }
}

void RequireSameShape(std::string_view op, const Shape& a, const Shape& b, std::string_view what) {
  if (a != b) {
    InferError(op, StrCat(what, " must have equal shapes, not ", ShapeToString(a), " and ",
                          ShapeToString(b)));
  }
}

void RequireShape(std::string_view op, const TensorType& type, const Shape& shape,
                  std::string_view operand) {
  if (type.shape != shape) {
    InferError(op, StrCat(operand, " has shape ", ShapeToString(type.shape), " but must have ",
                          ShapeToString(shape)));
  }
}

void RequireDType(std::string_view op, const TensorType& type, DType dtype,
                  std::string_view operand) {
  if (type.dtype != dtype) {
    InferError(op, StrCat(operand, " is ", DTypeName(type.dtype), " but must be ", DTypeName(dtype),
                          " as the first operand"));
  }
}

void RequireTensor(std::string_view op, const TensorType& type, DType dtype, const Shape& shape,
                   std::string_view operand) {
  RequireDType(op, type, dtype, operand);
  RequireShape(op, type, shape, operand);
}

void RequireNarrowTensor(std::string_view op, const TensorType& type, DType dtype,
                         const Shape& shape, std::string_view operand) {
  if (dtype != DType::kF32 || !IsHalf(type.dtype)) RequireDType(op, type, dtype, operand);
  RequireShape(op, type, shape, operand);
}

Shape WithoutLast(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

std::vector<int> NormalizeAxes(std::string_view op, const Ints& axes, int rank) {
  std::vector<int> out;
  for (int64_t a : axes) out.push_back(NormalizeAxis(op, a, rank));
  std::sort(out.begin(), out.end());
  auto twice = std::adjacent_find(out.begin(), out.end());
  if (twice != out.end()) InferError(op, StrCat("axis ", *twice, " is given twice"));
  return out;
}

std::vector<bool> AxisMask(const Ints& axes, int rank) {
  std::vector<bool> mask(rank);
  for (int64_t a : axes) mask[a < 0 ? a + rank : a] = true;
  return mask;
}

std::vector<DimFactors> AddDims(ShardingRule& rule, const Shape& shape, FactorKind kind) {
  std::vector<DimFactors> dims(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 1) dims[d].factors = {rule.AddFactor(shape[d], kind)};
  }
  return dims;
}

void CheckOrigin(std::string_view op, const Attributes& attrs, const TensorType& part,
                 std::string_view what) {
  if (const size_t n = OriginOf(attrs, part.rank()).size(); n != part.shape.size()) {
    InferError(op, StrCat("origin has ", n, " entries for ", what, " of shape ",
                          ShapeToString(part.shape)));
  }
}

Attributes WithOriginMoved(const Attributes& attrs, const Shape& by) {
  Shape origin = OriginOf(attrs, static_cast<int>(by.size()));
  for (size_t d = 0; d < by.size(); ++d) origin[d] += by[d];
  Attributes moved = attrs;
  moved.Set("origin", std::move(origin));
  return moved;
}

Attributes WithOriginOf(const Op& op, Attributes attrs) {
  if (const Attribute* origin = op.attrs.Find("origin")) attrs.Set("origin", *origin);
  return attrs;
}

int64_t NoFlops(const Op&) { return 0; }

Value* OperandIfSame(Builder&, const Op& op) {
  return op.in(0).SameTensor(op.out()) ? op.operands[0] : nullptr;
}

}  // namespace shardc
