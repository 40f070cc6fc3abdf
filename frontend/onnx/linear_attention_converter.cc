// LinearAttention (opset 27): attention whose past is a state S[d_k, d_v] of each head,
//   S_t = exp(g_t) S_{t-1} + k_t u_t^T,  o_t = scale S_t^T q_t,
// where u_t is v_t or, by a delta rule, beta_t (v_t - (exp(g_t) S_{t-1})^T k_t).
//
// Tokens are computed in chunks, by products of matrices, and the state goes from chunk to chunk
// (Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over Sequence Length;
// decays as in Yang et al. 2024, Gated Delta Networks). With G_i the sum of a chunk's g up to token
// i, and S the state before the chunk,
//   o_i = scale (exp(G_i) S^T q_i + sum over j <= i of exp(G_i - G_j) (q_i . k_j) u_j).
// By a delta rule the u solve (I + L) u = beta (V - exp(G) K S), L_ij = beta_i exp(G_i - G_j) (k_i
// . k_j) for j < i, else 0.
#include <algorithm>
#include <cmath>
#include <string>

#include "frontend/onnx/attention_util.h"

namespace shardc::onnx_import {
namespace {

// Where each feature has a decay, exp(G_i - G_j) is computed of all pairs in a chunk: as a product
// of exp(G_i) and exp(-G_j) it overflows.
constexpr int64_t kFeatureChunk = 16;
constexpr int64_t kLargestChunk = 128, kMaxChunks = 1024;

// Of b sequences, in n chunks of `chunk` tokens, with heads of keys and values that have a group of
// queries each.
struct Sizes {
  int64_t b, tokens, heads, group, n, chunk;
};

// Where not said otherwise values are [b, heads, n, r, chunk, d], r the group for queries, else 1.
enum Dim { kHeads = 1, kChunks = 2, kGroup = 3, kTokens = 4 };

// x[b, tokens, heads * r * d]. Tokens that the last chunk lacks are zeros, which change no state.
Value* InChunks(NodeContext& c, const Sizes& s, Value* x, int64_t heads, int64_t r, int64_t d) {
  if (const int64_t missing = s.n * s.chunk - s.tokens; missing > 0) {
    x = c.Make("pad", {x}, {{"low", Ints(3, 0)}, {"high", Ints{0, missing, 0}}, {"value", 0.0}});
  }
  return c.Transpose(c.Reshape(x, {s.b, s.n, s.chunk, heads, r, d}), {0, 3, 1, 4, 2, 5});
}

// [b, heads, n, r * chunk, d].
Value* Rows(NodeContext& c, Value* x) {
  const Shape& s = x->type.shape;
  return c.Reshape(x, {s[0], s[1], s[2], s[3] * s[4], s[5]});
}

// [chunk, chunk], true where keep(row, column).
template <typename Keep>
Value* Mask(NodeContext& c, int64_t chunk, const Keep& keep) {
  HostTensor mask(DType::kBool, {chunk, chunk});
  for (int64_t i = 0; i < chunk * chunk; ++i) mask.data<bool>()[i] = keep(i / chunk, i % chunk);
  return c.Constant(std::move(mask));
}

// What the sums G of g[..., d_k or 1] do; nothing where g is null.
class Decays {
 public:
  Decays(NodeContext& c, Value* g) : c_(c) {
    if (!g) return;
    sums_ = c.Make("cumsum", {g}, {{"axis", kTokens}, {"exclusive", false}, {"reverse", false}});
    const int64_t chunk = g->type.shape[kTokens];
    last_ = SliceDim(c, sums_, kTokens, chunk - 1, chunk);
  }

  // Of what a chunk's tokens see of the state before it: exp(G_i) x_i.
  Value* Before(Value* x) const { return sums_ ? Mul(c_, x, Exp(sums_)) : x; }
  // Of what they leave in the state behind it: exp(G_last - G_i) x_i.
  Value* Behind(Value* x) const { return sums_ ? Mul(c_, x, Exp(Sub(c_, last_, sums_))) : x; }
  // What a chunk leaves of the state before it, [b, heads, n, d_k or 1, 1]; null for all.
  Value* Left() const {
    if (!sums_) return nullptr;
    const Shape& s = last_->type.shape;
    return c_.Reshape(Exp(last_), {s[0], s[1], s[2], s[5], 1});
  }

  // exp(G_i - G_j) (x_i . k_j) where `keep`, else 0: [b, heads, n, r, chunk, chunk].
  Value* Scores(Value* x, Value* k, Value* keep) const {
    if (sums_ && sums_->type.shape.back() > 1) {
      const Ints swap = {0, 1, 2, kTokens, kGroup, 5};
      Value* seen = Mul(c_, k, Between(keep));
      return c_.Transpose(c_.Make("matmul_nt", {c_.Transpose(x, swap), seen}), swap);
    }
    Shape shape = x->type.shape;
    shape.back() = k->type.shape[kTokens];
    Value* scores = c_.Reshape(c_.Make("matmul_nt", {Rows(c_, x), Rows(c_, k)}), shape);
    if (!sums_) return Where(c_, keep, scores, Like(c_, scores, 0));
    shape[kGroup] = 1;
    return Mul(c_, scores, c_.Reshape(Between(keep), shape));
  }

 private:
  Value* Exp(Value* x) const { return c_.Make("exp", {x}); }

  // exp(G_i - G_j) where `keep`, else 0: [b, heads, n, i, j, d_k or 1].
  Value* Between(Value* keep) const {
    Shape rows = sums_->type.shape, pairs = keep->type.shape;
    std::swap(rows[kGroup], rows[kTokens]);
    pairs.push_back(1);
    Value* difference = Sub(c_, c_.Reshape(sums_, rows), sums_);
    return Exp(
        Where(c_, c_.Reshape(keep, pairs), difference, Like(c_, difference, kNegativeInfinity)));
  }

  NodeContext& c_;
  Value *sums_ = nullptr, *last_ = nullptr;
};

// The inverse of I + lower[..., m, m], which has nothing on the diagonal or above. First of blocks
// of two rows, then of four, and so on: in that of [[A, 0], [C, B]], -B^-1 C A^-1 stands for C. A
// series of powers of `lower` would cancel where keys are alike.
Value* InverseOf(NodeContext& c, Value* lower) {
  const int64_t m = lower->type.shape.back();
  HostTensor identity(lower->type.dtype, {m, m});
  for (int64_t i = 0; i < m * m; ++i) identity.SetDouble(i, i % (m + 1) == 0 ? 1 : 0);
  Value* inverse = c.BroadcastTo(c.Constant(std::move(identity)), lower->type.shape);
  for (int64_t size = 1; size < m; size *= 2) {
    Value* below = Mask(
        c, m, [&](int64_t i, int64_t j) { return i / size == j / size + 1 && j / size % 2 == 0; });
    Value* blocks = Where(c, below, lower, Like(c, lower, 0));
    if (size > 1) blocks = c.Make("matmul", {inverse, c.Make("matmul", {blocks, inverse})});
    inverse = Sub(c, inverse, blocks);
  }
  return inverse;
}

struct Layer {
  Sizes sizes;
  Value *q, *k, *v;
  Value* beta;   // [b, heads or 1, n, 1, chunk, 1]; null without a delta rule
  Value* decay;  // [..., d_k or 1], or null
};

// x[b, heads, n, ...] of each chunk.
std::vector<Value*> OfChunks(NodeContext& c, Value* x) {
  std::vector<Value*> pieces = Pieces(c, x, kChunks, Ints(x->type.shape[kChunks], 1));
  Shape shape = x->type.shape;
  shape.erase(shape.begin() + kChunks);
  for (Value*& piece : pieces) piece = c.Reshape(piece, shape);
  return pieces;
}

struct Outcome {
  Value *o, *state;  // as q, but for d_v; [b, heads, d_k, d_v]
};

// `state`: [b, heads, d_k, d_v]; null for zeros.
Outcome Run(NodeContext& c, const Layer& layer, Value* state) {
  const Sizes& s = layer.sizes;
  const Decays decays(c, layer.decay);
  auto upto = [](int64_t i, int64_t j) { return j <= i; };
  auto below = [](int64_t i, int64_t j) { return j < i; };
  auto add = [&](Value* a, Value* b) { return a ? Add(c, a, b) : b; };

  Value *u = Rows(c, layer.v), *taken = nullptr;  // u is this less what is taken of the state
  if (layer.beta) {
    Value* lower = decays.Scores(layer.k, layer.k, Mask(c, s.chunk, below));
    Value* solved = InverseOf(c, Rows(c, Mul(c, lower, layer.beta)));
    u = c.Make("matmul", {solved, Rows(c, Mul(c, layer.v, layer.beta))});
    taken = c.Make("matmul", {solved, Rows(c, decays.Before(Mul(c, layer.k, layer.beta)))});
  }
  const auto us = OfChunks(c, u);
  const auto takens = taken ? OfChunks(c, taken) : std::vector<Value*>();
  const auto scores = OfChunks(c, Rows(c, decays.Scores(layer.q, layer.k, Mask(c, s.chunk, upto))));
  const auto queries = OfChunks(c, Rows(c, decays.Before(layer.q)));
  const auto keys =
      OfChunks(c, c.Transpose(Rows(c, decays.Behind(layer.k)), {0, kHeads, kChunks, 4, 3}));
  const auto left = layer.decay ? OfChunks(c, decays.Left()) : std::vector<Value*>();

  std::vector<Value*> outputs;
  for (int64_t i = 0; i < s.n; ++i) {
    u = us[i];
    Value* seen = nullptr;
    if (state) {
      if (taken) u = Sub(c, u, c.Make("matmul", {takens[i], state}));
      seen = c.Make("matmul", {queries[i], state});
      if (layer.decay) state = Mul(c, state, left[i]);
    }
    Value* o = add(seen, c.Make("matmul", {scores[i], u}));
    state = add(state, c.Make("matmul", {keys[i], u}));
    outputs.push_back(c.Reshape(o, {s.b, s.heads, 1, s.group, s.chunk, o->type.shape.back()}));
  }
  return {Joined(c, std::move(outputs), kChunks), state};
}

int64_t Heads(NodeContext& c, const char* attribute) {
  const int64_t heads = c.Int(attribute, 0);
  if (heads < 1) c.Fail("E1303", StrCat("LinearAttention has ", heads, " heads (", attribute, ")"));
  return heads;
}

// Input i, [b, tokens, features], as what is computed with.
Value* Operand(NodeContext& c, int i, const Shape& q) {
  Value* x = c.input(i);
  const Shape& s = x->type.shape;
  if (s.size() != 3 || s[0] != q[0] || s[1] != q[1]) {
    c.Fail("E1303", StrCat("input ", i, " of LinearAttention has shape ", ShapeToString(s),
                           "; it has to be [", q[0], ", ", q[1], ", features]"));
  }
  return IsHalf(x->type.dtype) ? c.Cast(x, DType::kF32) : x;
}

// Of input i, which the rule has or has not: whether it is there.
bool Given(NodeContext& c, int i, const char* name, bool has, const std::string& rule) {
  if (c.has_input(i) != has) {
    c.Fail("E1303", StrCat("update_rule \"", rule, "\" of LinearAttention ",
                           has ? "needs" : "has no", " input ", name));
  }
  return has;
}

// How many features of each head the last of x's dims has: one of two numbers.
int64_t FeaturesOf(NodeContext& c, Value* x, const char* name, int64_t heads, int64_t features) {
  const int64_t all = x->type.shape.back();
  if (all != heads && all != heads * features) {
    c.Fail("E1303", StrCat("input ", name, " of LinearAttention has ", all, " features for ", heads,
                           " heads; it has to have ", heads, " or ", heads * features));
  }
  return all / heads;
}

struct Rule {
  std::string name;
  bool gated, delta;
};

Rule RuleOf(NodeContext& c) {
  Rule rule{.name = c.String("update_rule", "gated_delta"), .gated = false, .delta = false};
  rule.gated = rule.name == "gated" || rule.name == "gated_delta";
  rule.delta = rule.name == "delta" || rule.name == "gated_delta";
  if (!rule.gated && !rule.delta && rule.name != "linear") {
    c.Fail("E1303", StrCat("LinearAttention has no update_rule \"", rule.name, "\""));
  }
  return rule;
}

// q[b, tokens, features] for each head of keys and values, of which ONNX Runtime's nodes may have
// several for one of the queries.
Value* Queries(NodeContext& c, Value* q, int64_t q_heads, int64_t heads) {
  q = SplitHeads(c, q, q_heads, "q_num_heads");
  if (q_heads % heads != 0 && heads % q_heads != 0) {
    c.Fail("E1303", StrCat(q_heads, " heads of queries are no multiple of the ", heads,
                           " of keys and values"));
  }
  Shape shape = q->type.shape;
  if (q_heads < heads) {
    shape.insert(shape.begin() + 3, 1);
    q = c.Reshape(q, shape);
    shape[3] = heads / q_heads;
    q = c.BroadcastTo(q, shape);
  }
  return c.Reshape(q, {shape[0], shape[1], std::max(q_heads, heads) * shape.back()});
}

// In how many chunks, of how many tokens.
std::pair<int64_t, int64_t> Chunks(NodeContext& c, int64_t tokens, bool by_features) {
  if (tokens == 0) c.Fail("E1301", "LinearAttention of no tokens is not supported");
  const int64_t largest = by_features ? kFeatureChunk : kLargestChunk;
  const int64_t chunk = std::clamp<int64_t>(c.Int("chunk_size", 64), 1, largest);
  const int64_t n = (tokens + chunk - 1) / chunk;
  if (n > kMaxChunks) {
    c.Fail("E1301", StrCat("LinearAttention over ", tokens, " tokens in chunks of ", chunk,
                           " is not supported, but for ", kMaxChunks, " chunks at most"));
  }
  return {n, (tokens + n - 1) / n};
}

Value* PastState(NodeContext& c, const Shape& shape, DType dtype) {
  Value* past = c.InputOrNull(3);
  if (!past) return nullptr;
  if (past->type.shape != shape) {
    c.Fail("E1303",
           StrCat("past_state of LinearAttention has shape ", ShapeToString(past->type.shape),
                  "; it has to be ", ShapeToString(shape)));
  }
  return c.Cast(past, dtype);
}

void LinearAttention(NodeContext& c) {
  const Rule rule = RuleOf(c);
  const int64_t q_heads = Heads(c, "q_num_heads"), heads = Heads(c, "kv_num_heads");
  if (c.Int("state_window", 0) != 0) {
    c.Fail("E1301", "LinearAttention with a window of states is not supported");
  }
  const DType dtype = c.input(0)->type.dtype;
  if (c.input(0)->type.rank() != 3) {
    c.Fail("E1303", "the queries of LinearAttention are not [batch, sequence, features]");
  }
  const Shape shape = c.input(0)->type.shape;
  Value *k = Operand(c, 1, shape), *v = Operand(c, 2, shape);
  Value* q = Queries(c, Operand(c, 0, shape), q_heads, heads);
  const int64_t d_k = shape[2] / q_heads, group = std::max<int64_t>(q_heads / heads, 1);
  const int64_t d_v = SplitHeads(c, v, heads, "kv_num_heads")->type.shape[3];
  if (k->type.shape[2] != heads * d_k) {
    c.Fail("E1303", StrCat("the keys of LinearAttention have ", k->type.shape[2], " features; ",
                           heads, " heads of as many as the queries' are ", heads * d_k));
  }
  Value* g = Given(c, 4, "decay", rule.gated, rule.name) ? Operand(c, 4, shape) : nullptr;
  Value* beta = Given(c, 5, "beta", rule.delta, rule.name) ? Operand(c, 5, shape) : nullptr;
  const int64_t decays = g ? FeaturesOf(c, g, "decay", heads, d_k) : 1;
  const int64_t betas = beta && beta->type.shape.back() == 1 ? 1 : heads;
  if (beta) FeaturesOf(c, beta, "beta", betas, 1);
  double scale = c.Float("scale", 0);
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(d_k));

  const auto [n, chunk] = Chunks(c, shape[1], decays > 1);
  const Sizes s{shape[0], shape[1], heads, group, n, chunk};
  const Layer layer{.sizes = s,
                    .q = InChunks(c, s, Times(c, q, scale), heads, group, d_k),
                    .k = InChunks(c, s, k, heads, 1, d_k),
                    .v = InChunks(c, s, v, heads, 1, d_v),
                    .beta = beta ? InChunks(c, s, beta, betas, 1, 1) : nullptr,
                    .decay = g ? InChunks(c, s, g, heads, 1, decays) : nullptr};
  const auto [o, state] = Run(c, layer, PastState(c, {s.b, heads, d_k, d_v}, q->type.dtype));
  Value* tokens = c.Transpose(o, {0, kChunks, kTokens, kHeads, kGroup, 5});
  tokens = c.Reshape(tokens, {s.b, n * chunk, heads * group * d_v});
  c.SetOutput(0, c.Cast(SliceDim(c, tokens, 1, 0, s.tokens), dtype));
  c.SetOutput(1, c.Cast(state, c.has_input(3) ? c.input(3)->type.dtype : dtype));
}

}  // namespace

void AddLinearAttentionConverter(ConverterTable& table) {
  table.insert(
      {{"LinearAttention", LinearAttention}, {"com.microsoft::LinearAttention", LinearAttention}});
}

}  // namespace shardc::onnx_import
