#include "frontend/onnx/narrow.h"

#include <onnx/onnx_pb.h>

#include <algorithm>

#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/stored_elements.h"

namespace shardc::onnx_import {
namespace {

using onnx::TensorProto;

struct Range {
  int bits;
  bool is_signed;
};

Range RangeOf(int64_t onnx_type) {
  switch (onnx_type) {
    case TensorProto::INT8:
      return {8, true};
    case TensorProto::UINT8:
      return {8, false};
    case TensorProto::INT16:
      return {16, true};
    case TensorProto::UINT16:
      return {16, false};
    case TensorProto::UINT32:
      return {32, false};
    case kInt4:
      return {4, true};
    case kUint4:
      return {4, false};
    case kInt2:
      return {2, true};
    case kUint2:
      return {2, false};
    default:
      return {64, false};
  }
}

// The others only arrange, choose or compare.
bool Computes(std::string_view op) {
  constexpr std::string_view kOps[] = {"Abs",
                                       "Add",
                                       "Cast",
                                       "CastLike",
                                       "CumSum",
                                       "Div",
                                       "Einsum",
                                       "Gemm",
                                       "Mean",
                                       "MatMul",
                                       "Mod",
                                       "Mul",
                                       "Neg",
                                       "Pow",
                                       "Sub",
                                       "Sum",
                                       "ScatterElements",
                                       "ScatterND"};
  return op.starts_with("Reduce") ||
         std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

HostTensor WrappedElements(const NodeContext& c, HostTensor t, Range range) {
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    const int64_t x = t.AsInt(i);
    if (range.bits == 64) {
      if (x < 0) c.Fail("E1306", StrCat("makes the uint64 ", x, ", which is below 0"));
      continue;
    }
    const int64_t count = int64_t{1} << range.bits, low = range.is_signed ? -count / 2 : 0;
    const int64_t rest = (x - low) % count;
    t.SetDouble(i, static_cast<double>((rest < 0 ? rest + count : rest) + low));
  }
  return t;
}

}  // namespace

bool IsNarrow(int64_t onnx_type) {
  constexpr int64_t kNarrow[] = {TensorProto::INT8,
                                 TensorProto::UINT8,
                                 TensorProto::INT16,
                                 TensorProto::UINT16,
                                 TensorProto::UINT32,
                                 TensorProto::UINT64,
                                 kInt4,
                                 kUint4,
                                 kInt2,
                                 kUint2};
  return std::find(std::begin(kNarrow), std::end(kNarrow), onnx_type) != std::end(kNarrow);
}

double ExtremeOf(const NodeContext& c, int64_t narrow_type, bool largest) {
  const Range range = RangeOf(narrow_type);
  if (range.bits == 64) {
    if (largest) c.Fail("E1306", "makes the largest uint64, which is no int64");
    return 0;
  }
  const auto count = static_cast<double>(int64_t{1} << range.bits);
  const double low = range.is_signed ? -count / 2 : 0;
  return largest ? low + count - 1 : low;
}

int TypedLike(std::string_view op, int i) {
  constexpr std::string_view kOwnType[] = {
      "ArgMax",          "ArgMin",  "Cast",           "CastLike", "Constant",
      "ConstantOfShape", "NonZero", "SequenceLength", "Shape",    "Size"};
  if (std::find(std::begin(kOwnType), std::end(kOwnType), op) != std::end(kOwnType)) return -1;
  if (op == "TopK" && i == 1) return -1;
  return op == "OneHot" ? 2 : op == "Where" ? 1 : 0;
}

Value* Wrapped(NodeContext& c, Value* v, int64_t onnx_type) {
  const Range range = RangeOf(onnx_type);
  if (const HostTensor* known = c.ConstantOf(v)) {
    HostTensor wrapped = WrappedElements(c, *known, range);
    return wrapped == *known ? v : c.Constant(std::move(wrapped));
  }
  const Op* made = v->producer;
  const bool of_flags = made && made->name() == "cast" && made->in(0).dtype == DType::kBool;
  if (of_flags || !Computes(c.op_type())) return v;
  if (range.bits == 64) {
    c.Fail("E1301", "uint64 that is computed from input data is not supported", "use int64");
  }
  const auto count = static_cast<double>(int64_t{1} << range.bits);
  v = c.Make("mod", {v, Like(c, v, count)});
  if (!range.is_signed) return v;
  return Where(c, c.Make("less", {v, Like(c, v, count / 2)}), v, Plus(c, v, -count));
}

}  // namespace shardc::onnx_import
