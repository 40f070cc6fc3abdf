// Ops that draw: RandomUniform, RandomNormal, the same like a tensor, Bernoulli, Multinomial.
#include <onnx/onnx_pb.h>

#include <bit>
#include <numbers>

#include "frontend/dropout.h"
#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

// In [0, 1), f32.
Value* Uniform(NodeContext& c, const Shape& shape) {
  // A float, of which all bits count.
  const auto seed = static_cast<float>(c.Float("seed", 0));
  return AddUniform(c.builder(), shape, std::bit_cast<uint32_t>(seed));
}

// Box and Muller, "A note on the generation of random normal deviates", 1958.
Value* Normal(NodeContext& c, const Shape& shape) {
  Value *radius = Uniform(c, shape), *angle = Uniform(c, shape);
  radius = c.Make("log", {Sub(c, Like(c, radius, 1), radius)});  // of what is never zero
  radius = c.Make("sqrt", {Times(c, radius, -2)});
  return Mul(c, radius, c.Make("cos", {Times(c, angle, 2 * std::numbers::pi)}));
}

// f32 numbers as ones of the type, those in [0, 1) also as halves that are less than 1.
Value* Rounded(NodeContext& c, Value* v, DType type) {
  if (!IsHalf(type)) return c.Cast(v, type);
  const double steps = type == DType::kF16 ? 2048 : 256;
  return c.Cast(Times(c, c.Make("floor", {Times(c, v, steps)}), 1 / steps), type);
}

// Times `scale`, plus `shift`, in the type that the attribute dtype says, or else `like`.
void SetNumbers(NodeContext& c, const Shape& shape, DType like, bool normal) {
  const int64_t given = c.Int("dtype", 0);
  const DType type = given == 0 ? like : HeldType(c, given);
  if (!IsFloat(type)) {
    c.Fail("E1301", StrCat("draws numbers of type ", DTypeName(type)),
           "draw floats, and cast them");
  }
  const double low = normal ? c.Float("mean", 0) : c.Float("low", 0);
  const double scale = normal ? c.Float("scale", 1) : c.Float("high", 1) - low;
  Value* v = normal ? c.Cast(Normal(c, shape), type) : Rounded(c, Uniform(c, shape), type);
  c.SetOutput(0, Plus(c, Times(c, v, scale), low));
}

template <bool kNormal>
void Numbers(NodeContext& c) {
  const std::optional<Ints> shape = c.IntList("shape");
  if (!shape) c.Fail("E1302", StrCat(c.op_type(), " has no shape"));
  SetNumbers(c, *shape, DType::kF32, kNormal);
}

template <bool kNormal>
void NumbersLike(NodeContext& c) {
  SetNumbers(c, c.input(0)->type.shape, c.input(0)->type.dtype, kNormal);
}

void Bernoulli(NodeContext& c) {
  Value* p = c.input(0);
  // Drawn numbers are multiples of 2^-24: a half would round some of them to 1.
  const DType type = p->type.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  Value* drawn = c.Cast(Uniform(c, p->type.shape), type);
  Value* hit = c.Make("less", {drawn, c.Cast(p, type)});
  const int64_t given = c.Int("dtype", 0);
  if (given == 0) return c.SetOutput(0, c.Cast(hit, p->type.dtype));
  c.SetOutput(0, c.Cast(hit, HeldType(c, given)), given);
}

// Of classes with these logits, as many of a row as asked for: where logit - log(e) is largest, e
// being drawn for each class from the exponential distribution.
void Multinomial(NodeContext& c) {
  Value* logits = c.input(0);
  if (logits->type.rank() != 2) c.Fail("E1303", "the logits of Multinomial have two dims");
  const int64_t rows = logits->type.shape[0], classes = logits->type.shape[1];
  const int64_t samples = c.Int("sample_size", 1);
  Value* drawn = Uniform(c, {rows, samples, classes});
  drawn = c.Make("max", {drawn, Like(c, drawn, 0x1p-25)});  // whose logarithm is finite
  Value* waits = c.Make("neg", {c.Make("log", {drawn})});
  Value* scores =
      Sub(c, c.Cast(c.Reshape(logits, {rows, 1, classes}), DType::kF32), c.Make("log", {waits}));
  Value* first = c.Make("top_k", {scores}, {{"axis", int64_t{2}}, {"k", int64_t{1}}});
  const int64_t type = c.Int("dtype", onnx::TensorProto::INT32);
  c.SetOutput(0, c.Cast(c.Reshape(first, {rows, samples}), HeldType(c, type)), type);
}

}  // namespace

void AddRandomConverters(ConverterTable& table) {
  table.insert({{"Bernoulli", Bernoulli},
                {"Multinomial", Multinomial},
                {"RandomNormal", Numbers<true>},
                {"RandomNormalLike", NumbersLike<true>},
                {"RandomUniform", Numbers<false>},
                {"RandomUniformLike", NumbersLike<false>}});
}

}  // namespace shardc::onnx_import
