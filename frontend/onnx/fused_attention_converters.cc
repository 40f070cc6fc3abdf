// What ONNX Runtime fuses attention into (domain com.microsoft), written with the same ops as the
// attention of ONNX itself. The formulas are those of onnxruntime/contrib_ops/cpu/bert.
#include <algorithm>
#include <cmath>
#include <string>

#include "frontend/onnx/attention_util.h"
#include "frontend/onnx/write_cache.h"

namespace shardc::onnx_import {
namespace {

void Refuse(NodeContext& c, const std::string& what) {
  c.Fail("E1301", StrCat(c.op_type(), " with ", what, " is not supported"), kUnoptimized);
}

// 0 stands for the default.
double ScaleOf(NodeContext& c, int64_t head_size) {
  double scale = c.Float("scale", 0);
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_size));
}

// Output i, the keys or values [b, t, heads, d] of the cache, as [b, heads, t, d].
void SetPresent(NodeContext& c, int i, Value* x) {
  if (c.OutputWanted(i)) c.SetOutput(i, SwapHeads(c, x));
}

struct Scores {
  int64_t batch, queries, keys;
};

void RefuseMask(NodeContext& c, const Value* mask, const Scores& s) {
  c.Fail("E1303", StrCat("its mask has shape ", ShapeToString(mask->type.shape), ", which fits no ",
                         s.queries, " queries and ", s.keys, " keys in a batch of ", s.batch));
}

// Keys [start, end) of every sequence: `mask` holds the ends, and then the starts where it has
// twice as many elements.
Value* KeepWithin(NodeContext& c, Value* mask, const Scores& s) {
  const Shape column = {s.batch, 1, 1, 1};
  Value* positions = c.Cast(Iota(c, s.keys, 3, 4), mask->type.dtype);
  Value* end = c.Reshape(SliceDim(c, mask, 0, 0, s.batch), column);
  Value* keep = c.Make("less", {positions, end});
  if (mask->type.shape[0] == s.batch) return keep;
  Value* start = c.Reshape(SliceDim(c, mask, 0, s.batch, 2 * s.batch), column);
  return c.Make("and", {keep, c.Make("greater_equal", {positions, start})});
}

// Input i, integers, as a condition that broadcasts to [b, heads, s, t]: the lengths of sequences
// padded on the right, ends and starts, or 1 for every key (and query) that is not masked.
Value* KeepOf(NodeContext& c, int i, const Scores& s) {
  Value* mask = c.input(i);
  const Shape shape = mask->type.shape;
  switch (shape.size()) {
    case 1:
      if (shape[0] != s.batch && shape[0] != 2 * s.batch) RefuseMask(c, mask, s);
      return KeepWithin(c, mask, s);
    case 2:
      if (shape != Shape{s.batch, s.keys}) RefuseMask(c, mask, s);
      mask = c.Reshape(mask, {s.batch, 1, 1, s.keys});
      break;
    case 3:
      if (shape != Shape{s.batch, s.queries, s.keys}) RefuseMask(c, mask, s);
      mask = c.Reshape(mask, {s.batch, 1, s.queries, s.keys});
      break;
    case 4:  // up to the longest sequence
      if (shape[2] < s.queries || shape[3] < s.keys) RefuseMask(c, mask, s);
      mask = SliceDim(c, SliceDim(c, mask, 2, 0, s.queries), 3, 0, s.keys);
      break;
    default:
      RefuseMask(c, mask, s);
  }
  return c.Make("greater", {mask, Like(c, mask, 0)});
}

// What is added to the scores: for the mask of one input, and another input as it is; null for
// neither.
Value* BiasOf(NodeContext& c, int mask, int bias, DType type, const Scores& s) {
  Value* sum = c.InputOrNull(bias);
  if (!c.has_input(mask)) return sum;
  Value* masked = c.Scalar(type, c.Float("mask_filter_value", -10000.0f));
  Value* filter = Where(c, KeepOf(c, mask, s), c.Scalar(type, 0), masked);
  return sum ? Add(c, sum, filter) : filter;
}

Scores ScoresOf(const Value* q, const Value* k) {
  return {q->type.shape[0], q->type.shape[1], k->type.shape[1]};
}

// Keys (0) or values (1) x [b, s, heads, d] behind those of input 4, [2, b, heads, past, d].
Value* AfterPacked(NodeContext& c, int64_t which, Value* x) {
  if (!c.has_input(4) || c.input(4)->type.num_elements() == 0) return x;
  const Shape now = x->type.shape, shape = c.input(4)->type.shape;
  if (shape.size() != 5 || shape != Shape{2, now[0], now[2], shape[3], now[3]}) {
    c.Fail("E1303",
           StrCat("the past keys and values of ", c.op_type(), " have shape ", ShapeToString(shape),
                  ", not [2, ", now[0], ", ", now[2], ", past, ", now[3], "]"));
  }
  Value* past =
      c.Reshape(SliceDim(c, c.input(4), 0, which, which + 1), {now[0], now[2], shape[3], now[3]});
  return Joined(c, {SwapHeads(c, past), x}, 1);
}

// Inputs: x, weights and bias of q, k and v side by side, mask, past, what is added to the scores.
void Attention(NodeContext& c) {
  if (c.Flag("past_present_share_buffer", false)) Refuse(c, "past_present_share_buffer");
  if (c.Flag("do_rotary", false)) Refuse(c, "do_rotary");
  const int64_t heads = c.Int("num_heads", 0);
  Value* x = c.Make("matmul", {c.input(0), c.input(1)});
  if (c.has_input(2)) x = Add(c, x, InputOnto(c, 2, x->type.shape));
  const int64_t width = x->type.shape.back();
  Ints sizes = c.IntList("qkv_hidden_sizes").value_or(Ints(3, width / 3));
  const bool fit =
      std::all_of(sizes.begin(), sizes.end(), [width](int64_t n) { return n >= 1 && n <= width; });
  if (!fit || sizes.size() != 3 || sizes[0] + sizes[1] + sizes[2] != width ||
      sizes[0] != sizes[1]) {
    c.Fail("E1303", StrCat("weights of ", width, " columns are no q, k and v"));
  }
  std::vector<Value*> qkv = SplitLast(c, x, sizes);
  for (Value*& part : qkv) part = SplitHeads(c, part, heads, "num_heads");
  AttentionOf a{qkv[0], AfterPacked(c, 0, qkv[1]), AfterPacked(c, 1, qkv[2])};
  a.past = a.k->type.shape[1] - a.q->type.shape[1];
  a.mask = BiasOf(c, 3, 5, x->type.dtype, ScoresOf(a.q, a.k));
  a.scale = ScaleOf(c, sizes[0] / heads);
  a.causal = c.Flag("unidirectional", false);
  c.SetOutput(0, MergeHeads(c, MakeAttention(c, a)));
  if (!c.OutputWanted(1)) return;
  if (sizes[1] != sizes[2]) Refuse(c, "a cache of keys and values of different sizes");
  Value *keys = SwapHeads(c, a.k), *values = SwapHeads(c, a.v);
  Shape one = keys->type.shape;
  one.insert(one.begin(), 1);
  c.SetOutput(1, Joined(c, {c.Reshape(keys, one), c.Reshape(values, one)}, 0));
}

// [b, s, heads, n, d] as n tensors [b, s, heads, d].
std::vector<Value*> Unpacked(NodeContext& c, Value* x, int64_t n) {
  const Shape shape = x->type.shape;
  if (shape.size() != 5 || shape[3] != n || shape[2] != c.Int("num_heads", 0)) {
    c.Fail("E1303", StrCat("an operand of ", c.op_type(), " has shape ", ShapeToString(shape),
                           "; it has to be [batch, sequence, num_heads, ", n, ", head size]"));
  }
  std::vector<Value*> parts = Pieces(c, x, 3, Ints(n, 1));
  for (Value*& part : parts) part = c.Reshape(part, {shape[0], shape[1], shape[2], shape[4]});
  return parts;
}

// q, k and v as [b, s, heads, d], from inputs 0 to 2 in any of their forms.
std::vector<Value*> MultiHeadOperands(NodeContext& c) {
  const int64_t heads = c.Int("num_heads", 0);
  Value* query = c.input(0);
  if (!c.has_input(1)) return Unpacked(c, query, 3);
  Value* q = SplitHeads(c, query, heads, "num_heads");
  Value* key = c.input(1);
  if (!c.has_input(2)) {
    std::vector<Value*> packed = Unpacked(c, key, 2);
    return {q, packed[0], packed[1]};
  }
  if (key->type.rank() == 4 && c.input(2)->type.rank() == 4)
    return {q, SwapHeads(c, key), SwapHeads(c, c.input(2))};
  return {q, SplitHeads(c, key, heads, "num_heads"), SplitHeads(c, c.input(2), heads, "num_heads")};
}

// Adds the parts of input i, the biases of q, k and v side by side.
void AddBiases(NodeContext& c, int i, std::vector<Value*>& qkv) {
  if (!c.has_input(i)) return;
  Value* bias = c.input(i);
  Ints sizes;
  int64_t sum = 0;
  for (const Value* x : qkv) {
    sizes.push_back(x->type.shape[2] * x->type.shape[3]);
    sum += sizes.back();
  }
  if (bias->type.shape != Shape{sum}) {
    c.Fail("E1303",
           StrCat("the bias has shape ", ShapeToString(bias->type.shape), ", not [", sum, "]"));
  }
  std::vector<Value*> parts = SplitLast(c, bias, sizes);
  for (size_t k = 0; k < qkv.size(); ++k) {
    const Shape shape = qkv[k]->type.shape;
    qkv[k] = c.Reshape(Add(c, MergeHeads(c, qkv[k]), parts[k]), shape);
  }
}

void MultiHeadAttention(NodeContext& c) {
  if (c.has_input(9)) Refuse(c, "cache_indirection");
  std::vector<Value*> qkv = MultiHeadOperands(c);
  AddBiases(c, 3, qkv);
  AttentionOf a{qkv[0], AfterPast(c, 6, qkv[1], false), AfterPast(c, 7, qkv[2], false)};
  a.past = PastOf(c, 6);
  a.mask = BiasOf(c, 4, 5, a.q->type.dtype, ScoresOf(a.q, a.k));
  a.scale = ScaleOf(c, a.q->type.shape[3]);
  a.causal = c.Flag("unidirectional", false);
  c.SetOutput(0, MergeHeads(c, MakeAttention(c, a)));
  SetPresent(c, 1, a.k);
  SetPresent(c, 2, a.v);
}

// The columns of a table of cos or sin.
int64_t ColumnsOf(NodeContext& c, const Value* table) {
  if (table->type.rank() != 2) {
    c.Fail("E1303", StrCat("the cos and sin of ", c.op_type(), " have shape ",
                           ShapeToString(table->type.shape), "; they have to be tables"));
  }
  return table->type.shape[1];
}

// Rows of a table [positions, columns] as [b or 1, s, columns]: at `positions` [b, s], counted from
// the only element of `positions`, or from `first` when it is null.
Value* RowsAt(NodeContext& c, Value* table, Value* positions, int64_t s, int64_t first = 0) {
  const int64_t columns = ColumnsOf(c, table);
  if (positions != nullptr && positions->type.num_elements() == 1 && s != 1) {
    const HostTensor* known = c.ConstantOf(positions);
    if (known == nullptr || known->AsInt(0) != 0) {
      positions = Add(c, c.Cast(c.Reshape(positions, {1, 1}), DType::kI64), Iota(c, s, 1, 2));
    } else {
      positions = nullptr, first = 0;
    }
  }
  if (positions != nullptr) {
    if (positions->type.rank() < 2) positions = c.Reshape(positions, {1, s});
    return LookUp(c, table, positions);
  }
  if (table->type.shape[0] < first + s) {
    c.Fail("E1303", StrCat("the cos and sin of ", c.op_type(), " hold ", table->type.shape[0],
                           " positions, the sequence has ", first + s));
  }
  return c.Reshape(SliceDim(c, table, 0, first, first + s), {1, s, columns});
}

void RotaryEmbedding(NodeContext& c) {
  if (c.Flag("is_packed_batching", false)) Refuse(c, "is_packed_batching");
  if (c.Float("scale", 1) != 1) Refuse(c, "a scale");
  Value *input = c.input(0), *cos = c.input(2), *sin = c.input(3);
  const int rank = input->type.rank();
  if (rank != 3 && rank != 4) c.Fail("E1303", "RotaryEmbedding needs three or four dims");
  int64_t rotated = c.Int("rotary_embedding_dim", 0), heads = c.Int("num_heads", 0);
  if (rotated == 0) {  // whole heads, as many as the tables' width says
    rotated = 2 * ColumnsOf(c, cos);
    if (rank == 3 && rotated > 0) heads = input->type.shape[2] / rotated;
  }
  Value* x = rank == 3 ? SplitHeads(c, input, heads, "num_heads") : input;
  const int64_t s = x->type.shape[rank == 3 ? 1 : 2];
  Rotation r = {RowsAt(c, cos, c.input(1), s), RowsAt(c, sin, c.input(1), s), rotated,
                c.Flag("interleaved", false)};
  c.SetOutput(0, c.Reshape(Rotate(c, x, r, rank == 4), input->type.shape));
}

Value* FirstOf(NodeContext& c, Value* x) {
  for (int d = 0; d < x->type.rank(); ++d) x = SliceDim(c, x, d, 0, 1);
  return x;
}

// Which tokens the sequences of GroupQueryAttention have. The new ones stand behind those of the
// past, in a cache that may have more places.
struct Tokens {
  int64_t total;             // of the longest sequence, with the new ones
  int64_t past;              // of each before the new ones, where `starts` is null
  Value* starts = nullptr;   // [batch], the same where it is known only when the model runs
  Value* lengths = nullptr;  // [batch], with the new ones
};

void NotePadding(NodeContext& c) {
  Strings& notes = c.builder().graph().notes;
  const std::string note =
      "GroupQueryAttention takes padding on the right (seqlens_k) for tokens: no token sees it, "
      "but what is computed for it differs from ONNX Runtime";
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
}

// From inputs 5 and 6, lengths less 1 and the longest length.
Tokens TokensOf(NodeContext& c, int64_t batch, int64_t s, bool causal) {
  const int64_t total = c.ConstantInt(6), places = PastOf(c, 3);
  Value* last = c.input(5);
  const HostTensor* known = c.ConstantOf(last);
  // Unless the model knows better, all that there can be are tokens.
  if (total < s || (known != nullptr && total > places + s)) {
    c.Fail("E1301",
           StrCat("total_sequence_length is ", total, " for a past of ", places, " and ", s,
                  " new tokens"),
           "it counts the tokens of the past and the new ones: bind the length of all tokens to "
           "their sum, or to less for a cache that is filled in part");
  }
  Tokens tokens{total, total - s};
  bool whole = known != nullptr;
  for (int64_t i = 0; whole && i < known->num_elements(); ++i) whole = known->AsInt(i) == total - 1;
  if (whole) return tokens;
  if (total > s) {
    if (last->type.num_elements() != batch) {
      c.Fail("E1303", StrCat("seqlens_k has shape ", ShapeToString(last->type.shape),
                             " for a batch of ", batch));
    }
    tokens.lengths = Plus(c, c.Cast(c.Reshape(last, {batch}), DType::kI64), 1);
    tokens.starts = Plus(c, tokens.lengths, -static_cast<double>(s));
    return tokens;
  }
  // A prompt is padded behind its tokens.
  if (known != nullptr) Refuse(c, "a prompt with sequences of different lengths");
  // Tokens of a causal model see nothing of it.
  if (!causal) Refuse(c, "padding and causal=0");
  NotePadding(c);
  return tokens;
}

// Input i, a cache like x [b, heads, s, d], of at least so many places.
Value* CacheOfPlaces(NodeContext& c, int i, Value* x, int64_t at_least) {
  const int64_t places = PastOf(c, i);
  Value* cache = places > 0 ? CacheOf(c, i, x->type.shape) : nullptr;
  if (places >= at_least) return cache;
  Shape more = x->type.shape;
  more[2] = at_least - places;
  Value* none = c.BroadcastTo(Like(c, x, 0), std::move(more));
  return cache ? Joined(c, {cache, none}, 2) : none;
}

// Keys or values [b, s, kv heads, d] behind those of a cache, input i: those that are attended to,
// [b, total, kv heads, d], and the cache with all, [b, kv heads, places, d].
struct Cached {
  Value *seen, *present;
};
Cached BehindPast(NodeContext& c, int i, Value* x, const Tokens& tokens) {
  const int64_t places = PastOf(c, i);
  if (places == 0 && !tokens.starts) return {x, SwapHeads(c, x)};
  x = SwapHeads(c, x);
  if (tokens.starts) {
    Value* present = WriteCache(c, CacheOfPlaces(c, i, x, tokens.total), x, tokens.starts, 2);
    return {SwapHeads(c, SliceDim(c, present, 2, 0, tokens.total)), present};
  }
  Value* cache = CacheOf(c, i, x->type.shape);
  Value* past = SliceDim(c, cache, 2, 0, tokens.past);
  Value* rest = SliceDim(c, cache, 2, std::min(tokens.total, places), places);
  Value* seen = Joined(c, {past, x}, 2);
  return {SwapHeads(c, seen), Joined(c, {seen, rest}, 2)};
}

void RefuseQuantized(NodeContext& c) {
  for (const char* name : {"k_quant_type", "v_quant_type"}) {
    if (c.String(name, "NONE") != "NONE") Refuse(c, "a quantized cache");
  }
}

// q, k and v as [b, s, heads, d], from inputs 0 to 2; alone, input 0 holds all three.
std::vector<Value*> GroupQueryOperands(NodeContext& c, int64_t heads, int64_t kv_heads) {
  if (heads < 1 || kv_heads < 1) {
    c.Fail("E1303", StrCat("num_heads is ", heads, " and kv_num_heads ", kv_heads));
  }
  std::vector<Value*> qkv = {c.input(0), c.InputOrNull(1), c.InputOrNull(2)};
  if (!qkv[1] && !qkv[2]) {
    const Shape& shape = qkv[0]->type.shape;
    const int64_t width = shape.empty() ? 0 : shape.back();
    // Compared first: of any two numbers the sum may be none.
    const bool few = heads <= width && kv_heads <= width;
    const int64_t size = few ? width / (heads + 2 * kv_heads) : 0;
    if (!few || size * (heads + 2 * kv_heads) != width) {
      c.Fail("E1303",
             StrCat(width, " features are no q, k and v of ", heads, " and ", kv_heads, " heads"));
    }
    qkv = SplitLast(c, qkv[0], {heads * size, kv_heads * size, kv_heads * size});
  }
  if (!qkv[1] || !qkv[2]) c.Fail("E1302", "has only one of key and value");
  return {SplitHeads(c, qkv[0], heads, "num_heads"),
          SplitHeads(c, qkv[1], kv_heads, "kv_num_heads"),
          SplitHeads(c, qkv[2], kv_heads, "kv_num_heads")};
}

// Every head of q and k by itself.
void NormHeads(NodeContext& c, Value*& q, Value*& k) {
  const float eps = c.Float("qk_norm_epsilon", 1e-6f);
  const double q_eps = c.Float("q_norm_epsilon", eps), k_eps = c.Float("k_norm_epsilon", eps);
  if (!c.has_input(14)) return;
  q = c.MakeAll("rms_norm", {q, c.input(14)}, {{"eps", q_eps}})[0];
  k = c.MakeAll("rms_norm", {k, c.input(15)}, {{"eps", k_eps}})[0];
}

// q and k at their places; of several tokens' positions in input 9, ONNX Runtime reads the first
// and counts on.
void RotateAt(NodeContext& c, Value*& q, Value*& k, const Tokens& tokens) {
  Value *cos = c.InputOrNull(7), *sin = c.InputOrNull(8), *positions = c.InputOrNull(9);
  if (!c.Flag("do_rotary", false)) return;
  if (!cos || !sin) c.Fail("E1302", "has do_rotary, and no cos_cache and sin_cache");
  const int64_t s = q->type.shape[1];
  if (positions && s > 1) positions = FirstOf(c, positions);
  if (!positions && tokens.starts)
    positions = Add(c, c.Reshape(tokens.starts, {q->type.shape[0], 1}), Iota(c, s, 1, 2));
  const Rotation r = {RowsAt(c, cos, positions, s, tokens.past),
                      RowsAt(c, sin, positions, s, tokens.past), 2 * ColumnsOf(c, cos),
                      c.Flag("rotary_interleaved", false)};
  q = Rotate(c, q, r, false);
  k = Rotate(c, k, r, false);
}

// What each head's softmax also divides by, as the score of a key that has no value; or null.
Value* SinkOf(NodeContext& c, int64_t heads, DType type) {
  if (!c.has_input(11)) {
    return c.Int("smooth_softmax", 0) > 0 ? c.BroadcastTo(c.Scalar(type, 0), {heads}) : nullptr;
  }
  if (c.input(11)->type.shape != Shape{heads}) {
    c.Fail("E1303", StrCat("head_sink has shape ", ShapeToString(c.input(11)->type.shape),
                           ", not [", heads, "]"));
  }
  return c.input(11);
}

void GroupQueryAttention(NodeContext& c) {
  RefuseQuantized(c);
  const int64_t heads = c.Int("num_heads", 0), kv_heads = c.Int("kv_num_heads", 0);
  std::vector<Value*> qkv = GroupQueryOperands(c, heads, kv_heads);
  AttentionOf a{qkv[0], qkv[1], qkv[2]};
  a.causal = c.Flag("causal", true);
  const int64_t s = a.q->type.shape[1], window = c.Int("local_window_size", -1);
  if (a.k->type.shape[1] != s) Refuse(c, "more keys than queries");
  const Tokens tokens = TokensOf(c, a.q->type.shape[0], s, a.causal);
  NormHeads(c, a.q, a.k);
  RotateAt(c, a.q, a.k, tokens);
  const Cached keys = BehindPast(c, 3, a.k, tokens), values = BehindPast(c, 4, a.v, tokens);
  a.k = keys.seen, a.v = values.seen, a.past = tokens.past;
  a.mask = c.InputOrNull(10);
  Band band;
  if (window > 0 && window < tokens.total) band = {.before = window - 1, .after = 0};
  if (tokens.starts) {
    if (a.causal) band.after = 0;
    a.mask = BothMasks(c, BandMaskOf(c, tokens.lengths, s, tokens.total, band), a.mask);
    a.causal = false;
  } else if (!band.whole()) {
    a.mask = BothMasks(c, BandMask(c, s, tokens.total, band, a.past), a.mask);
  }
  a.scale = ScaleOf(c, a.q->type.shape[3]);
  a.cap = c.Float("softcap", 0);
  a.sink = SinkOf(c, heads, a.q->type.dtype);
  c.SetOutput(0, MergeHeads(c, MakeAttention(c, a)));
  if (c.Flag("sliding_window_cache", false)) return;  // its present is cut
  if (c.OutputWanted(1)) c.SetOutput(1, keys.present);
  if (c.OutputWanted(2)) c.SetOutput(2, values.present);
}

}  // namespace

void AddFusedAttentionConverters(ConverterTable& table) {
  table.insert({{"com.microsoft::Attention", Attention},
                {"com.microsoft::MultiHeadAttention", MultiHeadAttention},
                {"com.microsoft::GroupQueryAttention", GroupQueryAttention},
                {"com.microsoft::RotaryEmbedding", RotaryEmbedding}});
}

}  // namespace shardc::onnx_import
