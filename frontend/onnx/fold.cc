#include "frontend/onnx/fold.h"

#include <algorithm>
#include <limits>

#include "ir/constant.h"
#include "ir/op_def.h"
#include "ir/run_reference.h"

namespace shardc::onnx_import {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 28;
constexpr int64_t kMaxGrownElements = int64_t{1} << 20;
constexpr int64_t kAlwaysElements = int64_t{1} << 12;  // shapes, and what is computed with them

// Element i of the broadcast shape, in an operand.
int64_t IndexIn(const Shape& operand, const Shape& result, int64_t i) {
  int64_t index = 0, stride = 1;
  size_t skipped = result.size() - operand.size();
  for (size_t d = result.size(); d-- > skipped; i /= result[d]) {
    int64_t size = operand[d - skipped];
    if (size != 1) index += i % result[d] * stride;
    stride *= size;
  }
  return index;
}

enum class Arithmetic { kNone, kAdd, kSub, kMul, kDiv };

Arithmetic ArithmeticOf(std::string_view op) {
  if (op == "add") return Arithmetic::kAdd;
  if (op == "sub") return Arithmetic::kSub;
  if (op == "mul") return Arithmetic::kMul;
  if (op == "div" || op == "mod") return Arithmetic::kDiv;
  return Arithmetic::kNone;
}

template <typename T>
bool Overflows(Arithmetic arithmetic, T a, T b) {
  T unused;
  switch (arithmetic) {
    case Arithmetic::kAdd:
      return __builtin_add_overflow(a, b, &unused);
    case Arithmetic::kSub:
      return __builtin_sub_overflow(a, b, &unused);
    case Arithmetic::kMul:
      return __builtin_mul_overflow(a, b, &unused);
    case Arithmetic::kDiv:
      return b == 0 || (b == -1 && a == std::numeric_limits<T>::min());
    case Arithmetic::kNone:
      break;
  }
  return false;
}

bool IsRing(std::string_view op, DType type) {
  const Arithmetic arithmetic = ArithmeticOf(op);
  const bool ring = arithmetic == Arithmetic::kAdd || arithmetic == Arithmetic::kSub ||
                    arithmetic == Arithmetic::kMul;
  return ring && type == DType::kI32;
}

HostTensor AsIntegers(const HostTensor& t, DType to) {
  HostTensor out(to, t.shape());
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    if (to == DType::kI64) {
      out.data<int64_t>()[i] = t.AsInt(i);
    } else {
      out.data<int32_t>()[i] = static_cast<int32_t>(t.AsInt(i));
    }
  }
  return out;
}

// Sums and products of 32-bit integers wrap, as in ONNX Runtime; those of 64 bits, which shapes are
// made of, must not.
std::vector<HostTensor> RunWrapping(const OpDef& def, const Attributes& attrs, const HostTensor& a,
                                    const HostTensor& b, const TensorType& result) {
  const HostTensor wide_a = AsIntegers(a, DType::kI64), wide_b = AsIntegers(b, DType::kI64);
  const std::vector<const HostTensor*> operands = {&wide_a, &wide_b};
  const std::vector<TensorType> wide = {TensorType(DType::kI64, result.shape)};
  return {AsIntegers(RunReference(def, attrs, operands, wide)[0], DType::kI32)};
}

void CheckIntegers(std::string_view op, const HostTensor& a, const HostTensor& b,
                   const Shape& result) {
  Arithmetic arithmetic = ArithmeticOf(op);
  if (arithmetic == Arithmetic::kNone || !IsInteger(a.dtype())) return;
  for (int64_t i = 0; i < NumElements(result); ++i) {
    int64_t x = a.AsInt(IndexIn(a.shape(), result, i)), y = b.AsInt(IndexIn(b.shape(), result, i));
    bool bad = a.dtype() == DType::kI64 ? Overflows<int64_t>(arithmetic, x, y)
                                        : Overflows<int32_t>(arithmetic, static_cast<int32_t>(x),
                                                             static_cast<int32_t>(y));
    if (bad) {
      throw Diagnostic("E1306", ExitCode::kBadModel, "",
                       StrCat(op, " of the constants ", x, " and ", y, " (", DTypeName(a.dtype()),
                              ") ", y == 0 ? "divides by zero" : "overflows"));
    }
  }
}

bool WorthKeeping(const std::vector<TensorType>& results, const std::vector<Value*>& operands,
                  int64_t bytes_left) {
  int64_t from = 0, bytes = 0;
  for (const Value* v : operands) from += v->type.num_elements();
  for (const TensorType& type : results) {
    int64_t elements = type.num_elements();
    if (elements > kMaxElements) return false;
    bytes += type.bytes();
    if (elements > kAlwaysElements && bytes > bytes_left) return false;
    if (IsFloat(type.dtype) && elements > kMaxGrownElements && elements > 2 * from) return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<HostTensor>> Fold(std::string_view name,
                                            const std::vector<Value*>& operands,
                                            const Attributes& attrs, int64_t& bytes_left,
                                            bool may_wrap) {
  const OpDef& def = GetOpDef(name);
  if (!def.reference || operands.empty() || !def.Takes(operands.size())) return std::nullopt;
  std::vector<const HostTensor*> constants;
  for (const Value* v : operands) {
    constants.push_back(ConstantOf(v));
    if (constants.back() == nullptr) return std::nullopt;
  }
  std::vector<TensorType> result_types = InferResults(def, operands, attrs);
  if (!WorthKeeping(result_types, operands, bytes_left)) return std::nullopt;
  const bool wraps = may_wrap && IsRing(name, constants[0]->dtype());
  if (operands.size() == 2 && !wraps) {
    CheckIntegers(name, *constants[0], *constants[1], result_types[0].shape);
  }
  for (const TensorType& type : result_types) bytes_left -= type.bytes();
  if (wraps) return RunWrapping(def, attrs, *constants[0], *constants[1], result_types[0]);
  return RunReference(def, attrs, constants, result_types);
}

std::optional<std::vector<HostTensor>> EmptyResults(std::string_view op,
                                                    const std::vector<Value*>& operands,
                                                    const Attributes& attrs) {
  auto empty = [](const auto& type) { return type.num_elements() == 0; };
  const OpDef& def = GetOpDef(op);
  if (!def.infer || operands.empty() || !def.Takes(operands.size())) return std::nullopt;
  std::vector<TensorType> results = InferResults(def, operands, attrs);
  if (results.empty() || !std::all_of(results.begin(), results.end(), empty)) return std::nullopt;
  std::vector<HostTensor> tensors;
  for (const TensorType& type : results) tensors.emplace_back(type.dtype, type.shape);
  return tensors;
}

void DropEmptyPieces(std::string_view op, std::vector<Value*>& operands, const Attributes& attrs) {
  if (op != "concat") return;
  auto empty = [](const Value* v) { return v->type.num_elements() == 0; };
  if (std::all_of(operands.begin(), operands.end(), empty)) return;
  const int64_t axis = attrs.Int("axis");
  std::erase_if(operands, [&](const Value* v) {
    const bool adds = axis < v->type.rank() && v->type.shape[axis] > 0;
    return empty(v) && !adds;
  });
}

}  // namespace shardc::onnx_import
