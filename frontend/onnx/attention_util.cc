#include "frontend/onnx/attention_util.h"

#include "frontend/recover/match.h"

namespace shardc::onnx_import {
namespace {

// [b, heads, s, d] of which each head serves `times` neighbouring queries.
Value* RepeatHeads(NodeContext& c, Value* x, int64_t times) {
  if (times == 1) return x;
  const Shape shape = x->type.shape;
  x = c.Reshape(x, {shape[0], shape[1], 1, shape[2], shape[3]});
  x = c.BroadcastTo(x, {shape[0], shape[1], times, shape[2], shape[3]});
  return c.Reshape(x, {shape[0], shape[1] * times, shape[2], shape[3]});
}

// Where the mask leaves a query a key, [..., s, 1]; null where that is known to be everywhere.
Value* SeesKeys(NodeContext& c, Value* mask) {
  if (mask == nullptr || mask->type.rank() == 0) return nullptr;
  const bool condition = mask->type.dtype == DType::kBool;
  Value* most = Reduce(c, "reduce_max", condition ? c.Cast(mask, DType::kI32) : mask,
                       {mask->type.rank() - 1}, true);
  Value* sees = c.Make("greater", {most, Like(c, most, condition ? 0 : kNegativeInfinity)});
  const HostTensor* known = c.ConstantOf(sees);
  for (int64_t i = 0; known && i < known->num_elements(); ++i) {
    if (!known->data<bool>()[i]) return sees;
  }
  return known ? nullptr : sees;
}

// The attention op bounds no scores, and each of its keys has a value: what it has not, written
// out.
Value* WrittenOutAttention(NodeContext& c, AttentionOf a) {
  if (!a.heads_first) {
    for (Value** x : {&a.q, &a.k, &a.v}) *x = SwapHeads(c, *x);
  }
  const int64_t times = a.q->type.shape[1] / a.k->type.shape[1];
  Value* k = RepeatHeads(c, a.k, times);
  Value* scores = c.Make("matmul", {a.q, c.Transpose(k, {0, 1, 3, 2})});
  scores = Times(c, scores, a.cap > 0 ? a.scale / a.cap : a.scale);
  if (a.cap > 0) scores = Times(c, c.Make("tanh", {scores}), a.cap);
  // A query without a key sees all of them first, and then none: o = 0, without an infinity less
  // itself on the way there or back.
  Value* sees = SeesKeys(c, a.mask);
  if (sees && a.mask->type.dtype == DType::kBool) {
    a.mask = c.Make("or", {a.mask, c.Make("not", {sees})});
  } else if (sees) {
    a.mask = Where(c, sees, a.mask, Like(c, a.mask, 0));
  }
  if (a.mask && a.mask->type.dtype == DType::kBool) {
    scores = Where(c, a.mask, scores, Like(c, scores, kNegativeInfinity));
  } else if (a.mask) {
    scores = Add(c, scores, c.Cast(a.mask, scores->type.dtype));
  }
  const Shape shape = scores->type.shape;
  if (a.sink) {
    Value* sink =
        c.BroadcastTo(c.Reshape(a.sink, {1, shape[1], 1, 1}), {shape[0], shape[1], shape[2], 1});
    scores = Joined(c, {scores, c.Cast(sink, scores->type.dtype)}, 3);
  }
  Value* p = c.Make("softmax", {scores}, {{"axis", int64_t{3}}});
  if (a.sink) p = SliceDim(c, p, 3, 0, shape[3]);
  if (sees) p = Mul(c, p, c.Cast(sees, p->type.dtype));
  Value* o = c.Make("matmul", {p, RepeatHeads(c, a.v, times)});
  return a.heads_first ? o : SwapHeads(c, o);
}

// A table for x as [b, s, 1, r / 2] or [b, 1, s, r / 2].
Value* RotaryTable(NodeContext& c, Value* table, const Shape& x, int heads_dim, int64_t columns) {
  const Shape& has = table->type.shape;
  const int64_t b = x[0], s = x[heads_dim == 1 ? 2 : 1];
  if (has.size() != 3 || (has[0] != 1 && has[0] != b) || has[1] != s || has[2] < columns) {
    c.Fail("E1303", StrCat("the cos and sin of ", c.op_type(), " have shape ", ShapeToString(has),
                           " but need [", b, ", ", s, ", ", columns, "]"));
  }
  // Tables for the whole head serve a part of it too.
  table = SliceDim(c, table, 2, 0, columns);
  Shape shape = table->type.shape;
  shape.insert(shape.begin() + heads_dim, 1);
  return c.Reshape(table, std::move(shape));
}

}  // namespace

Value* SplitHeads(NodeContext& c, Value* x, int64_t heads, std::string_view attribute) {
  if (x->type.rank() != 3) {
    c.Fail("E1303",
           StrCat("an operand of ", c.op_type(), " has shape ", ShapeToString(x->type.shape),
                  "; it has to be [batch, sequence, ", "features]"));
  }
  int64_t features = x->type.shape.back();
  if (heads < 1 || features % heads != 0) {
    c.Fail("E1303", StrCat(features, " features do not split into ", heads, " heads (attribute ",
                           attribute, ")"));
  }
  return c.Reshape(x, {x->type.shape[0], x->type.shape[1], heads, features / heads});
}

Value* MergeHeads(NodeContext& c, Value* x) {
  const Shape& shape = x->type.shape;
  return c.Reshape(x, {shape[0], shape[1], shape[2] * shape[3]});
}

Value* SwapHeads(NodeContext& c, Value* x) { return c.Transpose(x, {0, 2, 1, 3}); }

std::vector<Value*> SplitLast(NodeContext& c, Value* x, Ints sizes) {
  return Pieces(c, x, x->type.rank() - 1, std::move(sizes));
}

Value* BandMask(NodeContext& c, int64_t s, int64_t t, Band band, int64_t past) {
  HostTensor keep(DType::kBool, {s, t});
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < t; ++j) {
      const int64_t behind = j - i - past;
      keep.data<bool>()[i * t + j] =
          (band.after < 0 || behind <= band.after) && (band.before < 0 || -behind <= band.before);
    }
  }
  return c.Constant(std::move(keep));
}

Value* BandMaskOf(NodeContext& c, Value* lengths, int64_t s, int64_t t, Band band) {
  lengths = c.Reshape(c.Cast(lengths, DType::kI64), {lengths->type.num_elements(), 1, 1, 1});
  Value* keys = Iota(c, t, 3, 4);
  Value* keep = c.Make("less", {keys, lengths});
  if (band.whole()) return keep;
  Value* queries = Add(c, Iota(c, s, 2, 4), Plus(c, lengths, -static_cast<double>(s)));
  Value* behind = Sub(c, keys, queries);
  auto at_most = [&](int64_t most, Value* v) {
    const auto bound = static_cast<double>(most);
    if (most >= 0) keep = c.Make("and", {keep, c.Make("less_equal", {v, Like(c, v, bound)})});
  };
  at_most(band.after, behind);
  at_most(band.before, c.Make("neg", {behind}));
  return keep;
}

Value* BothMasks(NodeContext& c, Value* keep, Value* mask) {
  if (mask == nullptr) return keep;
  if (mask->type.dtype == DType::kBool) return c.Make("and", {keep, mask});
  return Where(c, keep, mask, Like(c, mask, kNegativeInfinity));
}

Value* MakeAttention(NodeContext& c, AttentionOf a) {
  const int heads_dim = a.heads_first ? 1 : 2, sequence = a.heads_first ? 2 : 1;
  const int64_t heads = a.q->type.shape[heads_dim], kv_heads = a.k->type.shape[heads_dim];
  if (kv_heads < 1 || heads % kv_heads != 0) {
    c.Fail("E1303", StrCat("the ", heads, " query heads of ", c.op_type(),
                           " are not a multiple of the ", kv_heads, " key/value heads"));
  }
  const int64_t s = a.q->type.shape[sequence], t = a.k->type.shape[sequence];
  if (a.mask) CheckOnto(c, a.mask, {a.q->type.shape[0], heads, s, t}, "its mask");
  // The op gives its mask no gradient.
  const bool trained =
      a.mask && a.mask->type.dtype != DType::kBool && recover::DependsOnParam(a.mask);
  const bool written_out = a.cap > 0 || a.sink || trained;
  // The op's own `causal` aligns the ends.
  if (a.causal && (written_out || s != t - a.past)) {
    a.mask = BothMasks(c, BandMask(c, s, t, {.after = 0}, a.past), a.mask);
    a.causal = false;
  }
  if (written_out) return WrittenOutAttention(c, a);
  std::vector<Value*> operands = {a.q, a.k, a.v};
  if (a.mask) operands.push_back(a.mask);
  return c.MakeAll("attention", std::move(operands),
                   {{"scale", a.scale},
                    {"causal", a.causal},
                    {"layout", std::string(a.heads_first ? "bhsd" : "bshd")}})[0];
}

Value* Rotate(NodeContext& c, Value* x, const Rotation& r, bool heads_first) {
  const int64_t size = x->type.shape[3];
  if (r.rotated < 0 || r.rotated > size || r.rotated % 2 != 0) {
    c.Fail("E1303", StrCat("rotary_embedding_dim ", r.rotated, " does not fit heads of ", size));
  }
  for (const Value* table : {r.cos, r.sin}) {
    if (table->type.dtype != x->type.dtype) {
      c.Fail("E1303",
             StrCat("the cos and sin of ", c.op_type(), " are ", DTypeName(table->type.dtype),
                    ", what they turn is ", DTypeName(x->type.dtype)));
    }
  }
  const int heads_dim = heads_first ? 1 : 2;
  Value* cos = RotaryTable(c, r.cos, x->type.shape, heads_dim, r.rotated / 2);
  Value* sin = RotaryTable(c, r.sin, x->type.shape, heads_dim, r.rotated / 2);
  Attributes attrs;
  if (r.interleaved) attrs.Set("interleaved", true);
  return c.Make("rotary", {x, cos, sin}, std::move(attrs));
}

int64_t PastOf(NodeContext& c, int i) {
  if (!c.has_input(i) || c.input(i)->type.num_elements() == 0) return 0;
  const Shape& shape = c.input(i)->type.shape;
  if (shape.size() != 4) {
    c.Fail("E1303", StrCat("the past keys or values of ", c.op_type(), " have shape ",
                           ShapeToString(shape), ", not [batch, heads, past, head size]"));
  }
  return shape[2];
}

Value* CacheOf(NodeContext& c, int i, const Shape& now) {
  Value* past = c.input(i);
  const Shape& before = past->type.shape;
  if (before.size() != 4 || before[0] != now[0] || before[1] != now[1] || before[3] != now[3]) {
    c.Fail("E1303",
           StrCat("the past keys or values of ", c.op_type(), " have shape ", ShapeToString(before),
                  ", not [", now[0], ", ", now[1], ", past, ", now[3], "]"));
  }
  return past;
}

Value* AfterPast(NodeContext& c, int i, Value* x, bool heads_first) {
  if (PastOf(c, i) == 0) return x;
  Shape shape = x->type.shape;
  if (!heads_first) std::swap(shape[1], shape[2]);
  Value* past = CacheOf(c, i, shape);
  if (!heads_first) past = SwapHeads(c, past);
  return Joined(c, {past, x}, heads_first ? 2 : 1);
}

}  // namespace shardc::onnx_import
