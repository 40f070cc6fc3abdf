// What the converters share: axes, element types, arithmetic on values.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/onnx/converter.h"

namespace shardc::onnx_import {

// Parts of the shape and neural tables, in files of their own.
void AddIndexConverters(ConverterTable& table);    // Slice, Split, Gather, TopK, Pad, ...
void AddScatterConverters(ConverterTable& table);  // ScatterND, ScatterElements, NonZero
void AddRandomConverters(ConverterTable& table);   // RandomUniform, RandomNormal, Bernoulli
void AddEinsumConverter(ConverterTable& table);
void AddDftConverter(ConverterTable& table);
void AddRecurrentConverters(ConverterTable& table);  // RNN, GRU, LSTM
void AddAttentionConverters(ConverterTable& table);  // Attention, RotaryEmbedding
void AddLinearAttentionConverter(ConverterTable& table);
void AddConvConverter(ConverterTable& table);       // and CausalConvWithState
void AddPoolConverters(ConverterTable& table);      // and BatchNormalization
void AddResizeConverters(ConverterTable& table);    // Resize, Upsample, DepthToSpace, SpaceToDepth
void AddNormConverters(ConverterTable& table);      // GroupNormalization, LpNormalization, ...
void AddQuantizeConverters(ConverterTable& table);  // QuantizeLinear, MatMulInteger, ...
void AddFusedConverters(ConverterTable& table);     // of ONNX Runtime
void AddFusedAttentionConverters(ConverterTable& table);  // Attention, ... of ONNX Runtime

// Advice for what its fusions have no other form of.
inline constexpr char kUnoptimized[] =
    "compile the model as it was before ONNX Runtime optimized it";

// More positions than these are not written out one by one.
inline constexpr int64_t kMaxWritten = int64_t{1} << 28;

// The axis in [0, rank); E1303 when there is none.
int Axis(const NodeContext& c, int64_t axis, int rank);
// The same for a list, in its order; E1303 when one is given twice.
Ints Axes(const NodeContext& c, const Ints& axes, int rank);
// 0, 1, ..., n - 1.
Ints Count(int64_t n);
// The i64 constant [0, 1, ..., n - 1] along dim `axis` of `rank` dims.
Value* Iota(NodeContext& c, int64_t n, int axis, int rank);
// Input i as integers, or the attribute that older opsets have instead; nothing when both are
// absent.
std::optional<Ints> IntsOf(const NodeContext& c, int i, std::string_view attribute);
// What holds the elements of an ONNX type; E1301 when nothing does.
DType HeldType(const NodeContext& c, int64_t onnx_type);

// Positions that name each of n equally often, k > 1 times: i at i * k and the k - 1 places behind
// it, or, in turns, at i, i + n and so on.
struct Repeats {
  int64_t times;
  bool in_turns;
};
std::optional<Repeats> RepeatsOf(const Ints& positions, int64_t n);

inline Value* Add(NodeContext& c, Value* a, Value* b) { return c.Make("add", {a, b}); }
inline Value* Sub(NodeContext& c, Value* a, Value* b) { return c.Make("sub", {a, b}); }
inline Value* Mul(NodeContext& c, Value* a, Value* b) { return c.Make("mul", {a, b}); }
inline Value* Div(NodeContext& c, Value* a, Value* b) { return c.Make("div", {a, b}); }
inline Value* Where(NodeContext& c, Value* condition, Value* a, Value* b) {
  return c.Make("where", {condition, a, b});
}
// A scalar of v's type.
inline Value* Like(NodeContext& c, Value* v, double value) {
  return c.Scalar(v->type.dtype, value);
}
Value* Times(NodeContext& c, Value* v, double factor);  // v itself for 1
Value* Plus(NodeContext& c, Value* v, double term);     // v itself for 0
inline Value* IsPositive(NodeContext& c, Value* v) { return c.Make("greater", {v, Like(c, v, 0)}); }
inline Value* IsNegative(NodeContext& c, Value* v) { return c.Make("less", {v, Like(c, v, 0)}); }
inline Value* Clamped(NodeContext& c, Value* v, double low, double high) {
  return c.Make("min", {c.Make("max", {v, Like(c, v, low)}), Like(c, v, high)});
}
// E1303, naming v so, where it does not broadcast to this shape, or would make it larger.
void CheckOnto(const NodeContext& c, const Value* v, const Shape& shape, const std::string& what);
// Input i, which broadcasts to this shape.
Value* InputOnto(NodeContext& c, int i, const Shape& shape);
Value* Reduce(NodeContext& c, std::string_view op, Value* v, Ints axes, bool keepdims);
// One behind the other along the axis.
inline Value* Joined(NodeContext& c, std::vector<Value*> pieces, int64_t axis) {
  return c.Make("concat", std::move(pieces), {{"axis", axis}});
}
// Taken apart along the axis.
inline std::vector<Value*> Pieces(NodeContext& c, Value* v, int64_t axis, Ints sizes) {
  return c.MakeAll("split", {v}, {{"axis", axis}, {"sizes", std::move(sizes)}});
}
// What stands at these positions along the axis.
inline Value* LookUp(NodeContext& c, Value* v, Value* positions, int64_t axis = 0) {
  return c.Make("gather", {v, positions}, {{"axis", axis}});
}
// Elements [from, to) of one dim; E1303 where v has no such dim.
Value* SliceDim(NodeContext& c, Value* v, int axis, int64_t from, int64_t to);
// Where in x (of this shape) the elements lie that indices[i, j, ...] name along the axis, all
// other dims' positions being those of the index itself: tuples for gather_nd. They leave out the
// dims that the indices cover whole, from the first to one before the axis at most.
struct Positions {
  Value* tuples;
  int batch_dims;
};
Positions PositionsAlong(NodeContext& c, const Shape& x, Value* indices, int axis);
// a times b as MatMul has it; each may have one dim.
Value* MatMulOf(NodeContext& c, Value* a, Value* b);
// What a Gemm node computes.
Value* GemmOf(NodeContext& c);
// What a Conv node computes.
Value* ConvOf(NodeContext& c);
// log(softmax(x)) over the axis, computed without overflow.
Value* LogSoftmax(NodeContext& c, Value* x, int axis);

// The entry of a table of names.
template <typename Table>
std::string_view NameIn(const Table& names, std::string_view op_type) {
  for (const std::pair<std::string_view, std::string_view>& entry : names) {
    if (entry.first == op_type) return entry.second;
  }
  SHARDC_CHECK(false, op_type);
}

}  // namespace shardc::onnx_import
