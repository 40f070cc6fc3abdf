// What families share: checks for OpDef::infer that throw through InferError, pieces of rules.
#pragma once

#include <string_view>

#include "ir/op_def.h"

namespace shardc {

// Dims are not negative and the size in bytes fits in an int64_t.
void CheckShape(std::string_view op, DType dtype, const Shape& shape);
// `what` names the operand in the message.
void RequireFloat(std::string_view op, const TensorType& type,
                  std::string_view what = "the operand");
void RequireNumeric(std::string_view op, const TensorType& type,
                    std::string_view what = "the operand");
void RequireInteger(std::string_view op, const TensorType& type, std::string_view what);
void RequireBool(std::string_view op, const TensorType& type, std::string_view what);
// The type that the attribute names; `type` without it, or where it is "".
DType OutType(std::string_view op, const Attributes& attrs, DType type,
              std::string_view attr = "out");
// Of a statistic of floats of this type: f32 for the half types, which are too coarse for one.
DType StatisticType(DType type);
// Operands [from, to) have one dtype.
void RequireSameDType(std::string_view op, const InferArgs& args, size_t from, size_t to);
void RequireSameShape(std::string_view op, const Shape& a, const Shape& b, std::string_view what);
// What follows from the first operand.
void RequireShape(std::string_view op, const TensorType& type, const Shape& shape,
                  std::string_view operand);
void RequireDType(std::string_view op, const TensorType& type, DType dtype,
                  std::string_view operand);
// dtype and shape.
void RequireTensor(std::string_view op, const TensorType& type, DType dtype, const Shape& shape,
                   std::string_view operand);
// The same of an operand that may be a half where `dtype` is f32 (OpDef::narrow_operands).
void RequireNarrowTensor(std::string_view op, const TensorType& type, DType dtype,
                         const Shape& shape, std::string_view operand);

Shape WithoutLast(const Shape& shape);

// The axes in [0, rank), sorted. Throws when one is out of range or given twice.
std::vector<int> NormalizeAxes(std::string_view op, const Ints& axes, int rank);
// For each dim whether it is one of the axes; they must be valid.
std::vector<bool> AxisMask(const Ints& axes, int rank);

// A rule where each dim of size > 1 has a factor of its own, made by the caller: AddDims appends
// one factor per dim of `shape` and returns the dims' factors (none for dims of size 1).
std::vector<DimFactors> AddDims(ShardingRule& rule, const Shape& shape,
                                FactorKind kind = FactorKind::kPlain);

// That the attribute "origin" (ir/place_in_whole.h) has an entry for each dim.
void CheckOrigin(std::string_view op, const Attributes& attrs, const TensorType& part,
                 std::string_view what);
// The attributes of a part of the operand, which begins at `by` in it.
Attributes WithOriginMoved(const Attributes& attrs, const Shape& by);
// `attrs` with the origin that the op has, if it has one.
Attributes WithOriginOf(const Op& op, Attributes attrs);

// OpDef::no_gradient of gradients, and of what the fuse pass makes.
inline constexpr std::string_view kSecondDerivative =
    "it is a gradient itself, and second derivatives are not supported";
inline constexpr std::string_view kMadeByFuse =
    "made by the fuse pass, which comes after differentiation";

int64_t NoFlops(const Op& op);  // for OpDef::flops

// For OpDef::simplify of ops with one operand: the operand where it is the same tensor.
Value* OperandIfSame(Builder& builder, const Op& op);

}  // namespace shardc
