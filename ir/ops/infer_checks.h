// What inference asks of operands whose dtype and shape follow from the first one.
#pragma once

#include <string_view>

#include "ir/op_def.h"
#include "ir/ops/infer_util.h"

namespace shardc {

inline void RequireShape(std::string_view op, const TensorType& type, const Shape& shape,
                         std::string_view operand) {
  if (type.shape != shape) {
    InferError(op, StrCat(operand, " has shape ", ShapeToString(type.shape), " but must have ",
                          ShapeToString(shape)));
  }
}

inline void RequireDType(std::string_view op, const TensorType& type, DType dtype,
                         std::string_view operand) {
  if (type.dtype != dtype) {
    InferError(op, StrCat(operand, " is ", DTypeName(type.dtype), " but must be ", DTypeName(dtype),
                          " as the first operand"));
  }
}

// dtype and shape.
inline void RequireTensor(std::string_view op, const TensorType& type, DType dtype,
                          const Shape& shape, std::string_view operand) {
  RequireDType(op, type, dtype, operand);
  RequireShape(op, type, shape, operand);
}

// The same of an operand that may be a half where `dtype` is f32 (OpDef::narrow_operands).
inline void RequireNarrowTensor(std::string_view op, const TensorType& type, DType dtype,
                                const Shape& shape, std::string_view operand) {
  if (dtype != DType::kF32 || !IsHalf(type.dtype)) RequireDType(op, type, dtype, operand);
  RequireShape(op, type, shape, operand);
}

inline Shape WithoutLast(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

}  // namespace shardc
