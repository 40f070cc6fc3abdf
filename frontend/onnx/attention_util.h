// What the attention and rotary nodes of ONNX and of ONNX Runtime have in common.
#pragma once

#include <limits>
#include <string_view>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {

// What a mask adds to the score of a key that is not seen.
inline constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

// [b, s, heads * d] -> [b, s, heads, d]; E1303, naming the attribute, when the heads do not fit.
Value* SplitHeads(NodeContext& c, Value* x, int64_t heads, std::string_view attribute);
// [b, s, heads, d] -> [b, s, heads * d].
Value* MergeHeads(NodeContext& c, Value* x);
// [b, s, heads, d] <-> [b, heads, s, d].
Value* SwapHeads(NodeContext& c, Value* x);
// x's last dim in parts.
std::vector<Value*> SplitLast(NodeContext& c, Value* x, Ints sizes);

// The keys that a query sees: at most `before` in front of its own place and `after` behind it (-1:
// all).
struct Band {
  int64_t before = -1, after = -1;
  bool whole() const { return before < 0 && after < 0; }
};
// [s, t], true where the query at i + past sees key j.
Value* BandMask(NodeContext& c, int64_t s, int64_t t, Band band, int64_t past = 0);
// [b, 1, s, t] for sequences padded on the right: of `lengths`[b] keys the last are the queries'.
Value* BandMaskOf(NodeContext& c, Value* lengths, int64_t s, int64_t t, Band band);
// A condition and a mask of either kind (null: none) as one mask.
Value* BothMasks(NodeContext& c, Value* keep, Value* mask);

struct AttentionOf {
  Value *q, *k, *v;       // [b, heads, s, d] when heads_first, else [b, s, heads, d]
  Value* mask = nullptr;  // float: added to the scaled scores, bool: keeps where true; or null
  double scale = 1;
  double cap = 0;       // above 0: scores are cap * tanh(scores / cap) before the mask
  bool causal = false;  // query i sees keys j <= i + past
  int64_t past = 0;     // keys that are of tokens before the first query's
  bool heads_first = false;
  Value* sink = nullptr;  // [heads]: the score of a key of each head that has no value; or null
};
// In the layout of q.
Value* MakeAttention(NodeContext& c, AttentionOf a);

struct Rotation {
  Value *cos, *sin;  // [b or 1, s, columns], columns at least half of `rotated`
  int64_t rotated;   // features of each head that are rotated; the others stay
  bool interleaved;  // neighbours are a pair, else the two halves are
};
// x is [b, heads, s, d] when heads_first, else [b, s, heads, d].
Value* Rotate(NodeContext& c, Value* x, const Rotation& r, bool heads_first);

// How many tokens the past of input i, [b, heads, past, d], holds; E1303 for another form.
int64_t PastOf(NodeContext& c, int i);
// Input i, a cache of keys or values of the shape `like` [b, heads, s, d] but for their number;
// E1303 for another.
Value* CacheOf(NodeContext& c, int i, const Shape& like);
// Keys or values x behind those of a cache, input i, [b, heads, past, d]; x alone without one.
Value* AfterPast(NodeContext& c, int i, Value* x, bool heads_first);

}  // namespace shardc::onnx_import
