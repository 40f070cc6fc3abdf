// Attention and RotaryEmbedding, from opset 23 on.
#include <cmath>
#include <limits>
#include <string>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

int64_t HeadSize(NodeContext& c, const Value* x, int64_t heads, std::string_view attribute) {
  int64_t hidden = x->type.shape.back();
  if (heads < 1 || hidden % heads != 0) {
    c.Fail("E1303", StrCat(hidden, " features do not split into ", heads, " heads (attribute ",
                           attribute, ")"));
  }
  return hidden / heads;
}

// [b, s, heads * d] -> [b, s, heads, d].
Value* SplitHeads(NodeContext& c, Value* x, std::string_view attribute) {
  int64_t heads = c.Int(attribute, 0), size = HeadSize(c, x, heads, attribute);
  return c.Reshape(x, {x->type.shape[0], x->type.shape[1], heads, size});
}

// Query i sees keys j <= i; for as many queries as keys the op's own `causal` says so.
Value* CausalMask(NodeContext& c, int64_t s, int64_t t) {
  HostTensor keep(DType::kBool, {s, t});
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < t; ++j) keep.data<bool>()[i * t + j] = j <= i;
  }
  return c.Constant(std::move(keep));
}

Value* BothMasks(NodeContext& c, Value* keep, Value* mask) {
  if (mask == nullptr) return keep;
  if (mask->type.dtype == DType::kBool) return c.Make("and", {keep, mask});
  return Where(c, keep, mask, Like(c, mask, -std::numeric_limits<double>::infinity()));
}

void RefuseUnsupported(NodeContext& c) {
  if (c.has_input(4) || c.has_input(5)) {
    c.Fail("E1301", "Attention with past keys and values is not supported",
           "export the model without a cache (use_cache=False)");
  }
  if (c.has_input(6)) {
    c.Fail("E1301", "Attention with nonpad_kv_seqlen, a padded cache, is not supported",
           "export the model without a cache (use_cache=False)");
  }
  constexpr const char* kOutputs[] = {"present_key", "present_value", "qk_matmul_output"};
  for (int i = 1; i < c.num_outputs() && i < 4; ++i) {
    if (c.OutputWanted(i)) {
      c.Fail("E1301", StrCat("Attention's output ", kOutputs[i - 1], " is not supported"));
    }
  }
}

// [b, heads, s, d] of which each head serves `times` neighbouring queries.
Value* RepeatHeads(NodeContext& c, Value* x, int64_t times) {
  if (times == 1) return x;
  const Shape shape = x->type.shape;
  x = c.Reshape(x, {shape[0], shape[1], 1, shape[2], shape[3]});
  x = c.BroadcastTo(x, {shape[0], shape[1], times, shape[2], shape[3]});
  return c.Reshape(x, {shape[0], shape[1] * times, shape[2], shape[3]});
}

struct AttentionOf {
  Value *q, *k, *v, *mask;
  double scale;
  bool causal, heads_first;  // as the op's attributes
};

// The attention op bounds no scores: cap * tanh(scores / cap) before the mask, written out.
Value* SoftcappedAttention(NodeContext& c, AttentionOf a, double cap) {
  const Ints heads_first = {0, 2, 1, 3};
  if (!a.heads_first) {
    for (Value** x : {&a.q, &a.k, &a.v}) *x = c.Transpose(*x, heads_first);
  }
  const int64_t heads = a.q->type.shape[1], kv_heads = a.k->type.shape[1];
  if (kv_heads < 1 || heads % kv_heads != 0) {
    c.Fail("E1303", StrCat("the ", heads, " query heads of Attention are not a multiple of the ",
                           kv_heads, " key/value heads"));
  }
  Value* k = RepeatHeads(c, a.k, heads / kv_heads);
  Value* scores = c.Make("matmul", {a.q, c.Transpose(k, {0, 1, 3, 2})});
  scores = Times(c, c.Make("tanh", {Times(c, scores, a.scale / cap)}), cap);
  if (a.causal)
    a.mask = BothMasks(c, CausalMask(c, scores->type.shape[2], scores->type.shape[3]), a.mask);
  if (a.mask && a.mask->type.dtype == DType::kBool) {
    scores = Where(c, a.mask, scores, Like(c, scores, -std::numeric_limits<double>::infinity()));
  } else if (a.mask) {
    scores = Add(c, scores, a.mask);
  }
  Value* p = c.Make("softmax", {scores}, {{"axis", int64_t{3}}});
  Value* o = c.Make("matmul", {p, RepeatHeads(c, a.v, heads / kv_heads)});
  return a.heads_first ? o : c.Transpose(o, heads_first);
}

void Attention(NodeContext& c) {
  RefuseUnsupported(c);
  Value *q = c.input(0), *k = c.input(1), *v = c.input(2), *mask = c.InputOrNull(3);
  int rank = q->type.rank();
  if ((rank != 3 && rank != 4) || k->type.rank() != rank || v->type.rank() != rank) {
    c.Fail("E1303", "Attention needs q, k and v of three or of four dims");
  }
  if (rank == 3) {
    q = SplitHeads(c, q, "q_num_heads");
    k = SplitHeads(c, k, "kv_num_heads");
    v = SplitHeads(c, v, "kv_num_heads");
  }
  int sequence = rank == 3 ? 1 : 2;
  int64_t s = q->type.shape[sequence], t = k->type.shape[sequence];
  bool causal = c.Int("is_causal", 0) != 0;
  if (causal && s != t) {
    mask = BothMasks(c, CausalMask(c, s, t), mask);
    causal = false;
  }
  double scale = c.Float("scale", 1 / std::sqrt(static_cast<double>(q->type.shape[3])));
  double cap = c.Float("softcap", 0);
  Value* o = nullptr;
  if (cap > 0) {
    o = SoftcappedAttention(c, {q, k, v, mask, scale, causal, rank == 4}, cap);
  } else {
    std::vector<Value*> operands = {q, k, v};
    if (mask) operands.push_back(mask);
    o = c.MakeAll("attention", std::move(operands),
                  {{"scale", scale},
                   {"causal", causal},
                   {"layout", std::string(rank == 3 ? "bshd" : "bhsd")}})[0];
  }
  const Shape& shape = o->type.shape;
  c.SetOutput(0, rank == 4 ? o : c.Reshape(o, {shape[0], shape[1], shape[2] * shape[3]}));
}

std::vector<Value*> SplitLast(NodeContext& c, Value* x, Ints sizes) {
  int64_t axis = x->type.rank() - 1;
  return c.MakeAll("split", {x}, {{"axis", axis}, {"sizes", std::move(sizes)}});
}

// The two halves of x's last dim, or its even and odd elements.
std::pair<Value*, Value*> RotaryParts(NodeContext& c, Value* x, bool interleaved) {
  int64_t n = x->type.shape.back();
  if (!interleaved) {
    std::vector<Value*> halves = SplitLast(c, x, {n / 2, n / 2});
    return {halves[0], halves[1]};
  }
  Shape pairs = x->type.shape, single = pairs;
  pairs.back() = n / 2;
  pairs.push_back(2);
  single.back() = n / 2;
  std::vector<Value*> parts = SplitLast(c, c.Reshape(x, pairs), {1, 1});
  return {c.Reshape(parts[0], single), c.Reshape(parts[1], single)};
}

Value* JoinRotaryParts(NodeContext& c, Value* first, Value* second, bool interleaved) {
  int64_t axis = first->type.rank() - 1;
  if (!interleaved) return c.Make("concat", {first, second}, {{"axis", axis}});
  Shape column = first->type.shape, joined = column;
  column.push_back(1);
  joined.back() *= 2;
  Value* pairs =
      c.Make("concat", {c.Reshape(first, column), c.Reshape(second, column)}, {{"axis", axis + 1}});
  return c.Reshape(pairs, std::move(joined));
}

// Input i, cos or sin, as [b, s, 1, r / 2] or [b, 1, s, r / 2].
Value* RotaryTable(NodeContext& c, int i, int heads_dim, int64_t columns) {
  Value* table = c.input(i);
  if (c.has_input(3)) {
    table = c.Make("gather", {table, c.input(3)}, {{"axis", int64_t{0}}});
  }
  if (table->type.rank() != 3 || table->type.shape[2] < columns) {
    c.Fail("E1303",
           StrCat("the cos and sin of RotaryEmbedding have shape ",
                  ShapeToString(table->type.shape), " but need [batch, sequence, ", columns, "]"));
  }
  // Tables for the whole head serve a part of it too.
  table = SliceDim(c, table, 2, 0, columns);
  Shape shape = table->type.shape;
  shape.insert(shape.begin() + heads_dim, 1);
  return c.Reshape(table, std::move(shape));
}

void RotaryEmbedding(NodeContext& c) {
  Value* input = c.input(0);
  int rank = input->type.rank();
  if (rank != 3 && rank != 4) c.Fail("E1303", "RotaryEmbedding needs three or four dims");
  Value* x = rank == 3 ? SplitHeads(c, input, "num_heads") : input;
  int heads_dim = rank == 3 ? 2 : 1;
  int64_t size = x->type.shape[3], rotated = c.Int("rotary_embedding_dim", 0);
  if (rotated == 0) rotated = size;
  if (rotated < 0 || rotated > size || rotated % 2 != 0) {
    c.Fail("E1303", StrCat("rotary_embedding_dim ", rotated, " does not fit heads of ", size));
  }
  bool interleaved = c.Int("interleaved", 0) != 0;
  Value* cos = RotaryTable(c, 1, heads_dim, rotated / 2);
  Value* sin = RotaryTable(c, 2, heads_dim, rotated / 2);
  Value* rest = nullptr;
  if (rotated < size) {
    std::vector<Value*> parts = SplitLast(c, x, {rotated, size - rotated});
    x = parts[0], rest = parts[1];
  }
  auto [first, second] = RotaryParts(c, x, interleaved);
  Value* real = Sub(c, Mul(c, cos, first), Mul(c, sin, second));
  Value* imaginary = Add(c, Mul(c, sin, first), Mul(c, cos, second));
  Value* y = JoinRotaryParts(c, real, imaginary, interleaved);
  if (rest) y = c.Make("concat", {y, rest}, {{"axis", int64_t{3}}});
  c.SetOutput(0, c.Reshape(y, input->type.shape));
}

}  // namespace

void AddAttentionConverters(ConverterTable& table) {
  table.insert({{"Attention", Attention}, {"RotaryEmbedding", RotaryEmbedding}});
}

}  // namespace shardc::onnx_import
