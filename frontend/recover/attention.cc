// matmul(softmax(matmul(q, k^T) with scale and mask), v) -> attention.
#include <algorithm>
#include <limits>
#include <numeric>

#include "frontend/recover/attention_mask.h"
#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// The cast whose result v is, if it is from one float type to another, and wider or narrower.
Op* FloatCast(const Value* v, bool widens) {
  Op* cast = ProducedBy(v, "cast");
  if (cast == nullptr || !IsFloat(v->type.dtype) || !IsFloat(cast->in(0).dtype)) return nullptr;
  int64_t from = DTypeSize(cast->in(0).dtype), to = DTypeSize(v->type.dtype);
  return (widens ? from < to : from > to) ? cast : nullptr;
}

// Walks from the softmax's operand back to the score matmul; `steps` come in that order. The scores
// may have been reshaped once (`regrouped`), their keys staying the last dim; before that only
// scalars scale them.
Op* FindScores(Builder& b, Value* v, std::vector<MaskStep>& steps, bool regrouped = false,
               int depth = 12) {
  Op* op = v->producer;
  if (op == nullptr || depth == 0) return nullptr;
  if (IsProduct(op)) return op;
  if (op->name() == "reshape") {
    const Shape &from = op->in(0).shape, &to = op->out().shape;
    if (regrouped || from.empty() || to.empty() || from.back() != to.back()) return nullptr;
    return FindScores(b, op->operands[0], steps, true, depth - 1);
  }
  // Models in half precision mask or normalise in a wider type.
  if (Op* cast = FloatCast(v, true))
    return FindScores(b, cast->operands[0], steps, regrouped, depth - 1);
  auto follow = [&](Value* next, MaskStep step) -> Op* {
    if (next->type.shape != v->type.shape || (regrouped && step.value)) return nullptr;
    steps.push_back(step);
    Op* found = FindScores(b, next, steps, regrouped, depth - 1);
    if (found == nullptr) steps.pop_back();
    return found;
  };
  if (auto scaled = ScaledBy(v)) {
    return follow(scaled->first, {MaskStep::kScale, nullptr, false, scaled->second});
  }
  if (op->name() == "add") {
    for (int i = 0; i < 2; ++i) {
      if (Op* found = follow(op->operands[i], {MaskStep::kAdd, op->operands[1 - i]})) return found;
    }
  }
  if (op->name() == "sub") {
    return follow(op->operands[0], {MaskStep::kAdd, b.Neg(op->operands[1])});
  }
  if (op->name() == "max") {
    for (int i = 0; i < 2; ++i) {
      std::optional<double> floor = SplatOf(op->operands[1 - i]);
      if (!floor) continue;
      return follow(op->operands[i], {MaskStep::kFloor, nullptr, false, *floor});
    }
  }
  if (op->name() == "where") {
    for (int i = 1; i <= 2; ++i) {
      std::optional<double> fill = SplatOf(op->operands[3 - i]);
      if (!fill) continue;
      MaskStep step = {MaskStep::kKeep, op->operands[0], i == 2, *fill};
      if (Op* found = follow(op->operands[i], step)) return found;
    }
  }
  return nullptr;
}

// v without the scalars that multiply it, also those before a transpose, reshape or repetition.
Value* Unscaled(Builder& b, Value* v, double& scale) {
  if (auto scaled = ScaledBy(v)) {
    scale *= scaled->second;
    return Unscaled(b, scaled->first, scale);
  }
  Op* op = v->producer;
  if (op == nullptr || !OneOf(op->name(), {"transpose", "reshape", "broadcast_to"})) return v;
  Value* inner = Unscaled(b, op->operands[0], scale);
  if (inner == op->operands[0]) return v;
  return b.Make(op->name(), {inner}, op->attrs);
}

// v in the type that it was widened from, also before a transpose or reshape; null when it was not.
Value* Unwidened(Builder& b, Value* v, DType dtype) {
  if (v->type.dtype == dtype) return v;
  if (Op* cast = FloatCast(v, true)) return Unwidened(b, cast->operands[0], dtype);
  Op* op = v->producer;
  if (op == nullptr || (op->name() != "transpose" && op->name() != "reshape")) return nullptr;
  Value* inner = Unwidened(b, op->operands[0], dtype);
  return inner ? b.Make(op->name(), {inner}, op->attrs) : nullptr;
}

// q, k and v in one type: the one that q and k were widened from when it is that of v, because an
// attention rounds nothing in between that the model does not round; else one that holds all three.
void ShareType(Builder& b, Value*& q, Value*& k, Value*& v) {
  const DType of_v = v->type.dtype, of_q = q->type.dtype;
  if (of_q == of_v) return;
  Value *narrow_q = Unwidened(b, q, of_v), *narrow_k = Unwidened(b, k, of_v);
  if (narrow_q && narrow_k) {
    q = narrow_q;
    k = narrow_k;
    return;
  }
  DType wide = DTypeSize(of_q) > DTypeSize(of_v) ? of_q : of_v;
  if (DTypeSize(of_q) == DTypeSize(of_v)) wide = DType::kF32;  // the two halves
  q = b.Cast(q, wide);
  k = b.Cast(k, wide);
  v = b.Cast(v, wide);
}

// Whether the condition, or its opposite, is that the row of scores is not all -infinity, as
// PyTorch's _safe_softmax asks.
bool SeesAKey(const Value* condition, bool holds, const Value* scores) {
  auto unless_not = [](const Value* v, bool& positive) {
    for (Op* negation; (negation = ProducedBy(v, "not")) != nullptr; positive = !positive) {
      v = negation->operands[0];
    }
    return v;
  };
  condition = unless_not(condition, holds);
  Op* flag = ProducedBy(condition, "cast");
  Op* reduce = flag ? flag->operands[0]->producer : nullptr;
  // Any score that is not -infinity, or not all of those that are.
  if (reduce == nullptr || reduce->name() != (holds ? "reduce_max" : "reduce_min")) return false;
  const Ints& axes = reduce->attrs.IntList("axes");
  const bool kept = reduce->attrs.Bool("keepdims");
  if (!kept || axes.size() != 1 || !IsLastAxis(axes[0], reduce->in(0).rank())) return false;
  Op* number = ProducedBy(reduce->operands[0], "cast");
  const Value* of_score = number ? unless_not(number->operands[0], holds) : nullptr;
  Op* equal = !holds ? ProducedBy(of_score, "equal") : nullptr;
  return equal && equal->operands[0] == scores &&
         IsSplat(equal->operands[1], -std::numeric_limits<double>::infinity());
}

// What is done to probabilities between a softmax and their use.
struct AfterSoftmax {
  bool guard = false;  // NaNs, of rows of scores that are all -infinity, are replaced by zeros
  MaskStep again;      // kKeep: those of other keys are replaced by zeros, as Keras does
  Op* dropout = nullptr;
};

// The softmax whose result p is, maybe rounded.
Op* FindSoftmax(Value* p, AfterSoftmax& after) {
  auto unrounded = [](Value* v) {
    Op* cast = FloatCast(v, false);
    return cast ? cast->operands[0] : v;
  };
  // The probabilities must not be wanted elsewhere: they would be computed twice.
  if (CountUses(p) != 1) return nullptr;
  p = unrounded(p);
  after.dropout = ProducedBy(p, "dropout");
  if (after.dropout != nullptr) {
    if (CountUses(p) != 1 || after.dropout->attrs.Has("whole")) return nullptr;
    p = after.dropout->operands[0];
    if (CountUses(p) != 1) return nullptr;
    p = unrounded(p);
  }
  if (CountUses(p) != 1) return nullptr;
  if (Op* where = ProducedBy(p, "where")) {
    const int zeros = IsSplat(where->operands[1], 0) ? 1 : 2;
    Value *guarded = where->operands[3 - zeros], *condition = where->operands[0];
    if (!IsSplat(where->operands[zeros], 0)) return nullptr;
    Op* is_nan = zeros == 1 ? ProducedBy(condition, "is_nan") : nullptr;
    const bool of_nan = is_nan && is_nan->operands[0] == guarded;
    if (CountUses(guarded) != (of_nan ? 2 : 1)) return nullptr;
    p = unrounded(guarded);
    if (p != guarded && CountUses(p) != 1) return nullptr;
    Op* softmax = ProducedBy(p, "softmax");
    after.guard = of_nan || (softmax && SeesAKey(condition, zeros == 2, softmax->operands[0]));
    if (!after.guard) after.again = {MaskStep::kKeep, condition, zeros == 1, 0};
  }
  Op* softmax = ProducedBy(p, "softmax");
  if (softmax == nullptr) return nullptr;
  return IsLastAxis(softmax->attrs.Int("axis"), p->type.rank()) ? softmax : nullptr;
}

// Whether the same keys are kept.
bool SameCondition(const MaskStep& a, const MaskStep& b) {
  if (a.negated != b.negated) return false;
  if (a.value == b.value) return true;
  const HostTensor *x = ConstantOf(a.value), *y = ConstantOf(b.value);
  return x && y && x->shape() == y->shape() &&
         std::equal(x->raw(), x->raw() + x->bytes(), y->raw());
}

// Whether probabilities that are zero for the other keys `again` are those of the scores that
// `steps` mask, but for rows that see no key: these are zero.
bool OnlyMaskedBy(const std::vector<MaskStep>& steps, const MaskStep& again) {
  bool found = false;
  for (const MaskStep& step : steps) {
    if (step.kind == MaskStep::kScale) continue;
    if (step.kind != MaskStep::kKeep || !SameCondition(step, again)) return false;
    found = true;
  }
  return found;
}

// The dims of an attention: of the softmax's [b, h, s, t], [n, s, t] as [n, 1, s, t], or of grouped
// heads [b, g, h / g, s, t].
Shape DimsOf(const Shape& softmax) {
  const Shape& s = softmax;
  if (s.size() == 3) return {s[0], 1, s[1], s[2]};
  if (s.size() == 5) return {s[0], s[1] * s[2], s[3], s[4]};
  return s;
}

// How many heads `each` has when the matmul multiplies the rows [b, h, s] with it: every head of it
// is for h / heads neighbours of them, or s rows. 0: they are not grouped so.
int64_t HeadsOf(const Op* matmul, const Shape& dims) {
  const Shape &rows = matmul->in(0).shape, &each = matmul->in(1).shape;
  if (rows.size() != each.size()) return 0;
  int64_t groups = 1;
  size_t d = 0;
  for (; d + 2 < each.size() && each[d] == rows[d]; ++d) groups *= each[d];
  for (; d + 2 < each.size(); ++d) {
    if (each[d] != 1) return 0;
  }
  const int64_t b = dims[0], h = dims[1], s = dims[2];
  if (b * h * s != NumElements(Shape(rows.begin(), rows.end() - 1)) || groups % b != 0) return 0;
  const int64_t heads = groups / b;
  return h % heads == 0 ? heads : 0;
}

// What masks scores [b, g, h / g, s, t], for [b, h, s, t]; null when it differs within a group and
// not between groups, or the reverse.
Value* WithGroupsMerged(Builder& b, Value* v, const Shape& softmax) {
  const Shape& shape = v->type.shape;
  const size_t rank = shape.size();
  if (rank < 3) return v;
  const int64_t within = shape[rank - 3], groups = rank >= 4 ? shape[rank - 4] : 1;
  const bool all = within == softmax[2] && groups == softmax[1];
  if (!all && (within != 1 || groups != 1)) return nullptr;
  Shape merged(shape.begin(), shape.end() - std::min<size_t>(rank, 4));
  merged.insert(merged.end(), {groups * within, shape[rank - 2], shape[rank - 1]});
  return b.Reshape(v, std::move(merged));
}

// Whether the dims of a softmax are [b, g, s, h / g, t], as of einsum("btkgh,bskh->btkgs"): a mask
// differs between queries, and not within a group. Without one, where q's dims are [b, s, g, h / g,
// d] before a transpose. Where keys differ along the third dim, as between rows of an axial
// attention, it is none of queries.
bool QueriesBeforeGroup(const Op* scores, const std::vector<MaskStep>& steps,
                        const Shape& softmax) {
  if (HeadsOf(scores, DimsOf(softmax)) > softmax[1]) return false;
  bool masked = false;
  for (const MaskStep& step : steps) {
    if (step.value == nullptr || step.value->type.rank() < 3) continue;
    const Shape& shape = step.value->type.shape;
    const int64_t third = shape[shape.size() - 3], second = shape[shape.size() - 2];
    if (third != 1 && second == 1) return softmax[2] != 1;
    masked |= third != 1 || second != 1;
  }
  if (masked) return false;
  const Value* q = scores->operands[0];
  while (ScaledBy(q) || ProducedBy(q, "reshape")) {
    q = ScaledBy(q) ? ScaledBy(q)->first : q->producer->operands[0];
  }
  return IsPerm(ProducedBy(q, "transpose"), {0, 2, 1, 3, 4}) && q->type.shape[1] == softmax[1] &&
         q->type.shape[2] == softmax[2];
}

// [.., s, h / g, t] -> [.., h / g, s, t], or the reverse.
Value* WithQueriesAfterGroup(Builder& b, Value* v) {
  const int64_t rank = v->type.rank();
  if (rank < 2) return v;
  if (rank == 2) v = b.Reshape(v, {1, v->type.shape[0], v->type.shape[1]});
  Ints perm(v->type.rank());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 2], perm[perm.size() - 3]);
  return b.Transpose(v, std::move(perm));
}

// What stands behind the scores of all keys in one more, [b, h, s, 1], of which p has no
// probability: a sink. Then `softmax` is of both, and the scores are returned; else null.
struct Sink {
  Value *scores = nullptr, *sink = nullptr;
};
Sink FindSink(const Value* p, const Op* softmax) {
  Op* both = ProducedBy(softmax->operands[0], "concat");
  if (both == nullptr || both->operands.size() != 2 || both->out().rank() != 4) return {};
  if (!IsLastAxis(both->attrs.Int("axis"), 4) || both->in(1).shape[3] != 1) return {};
  return p->type.shape == both->in(0).shape ? Sink{both->operands[0], both->operands[1]} : Sink();
}

// The probabilities that p, which leaves out the last of each row, is made of.
Value* BeforeSink(Value* p) {
  Op* op = p->producer;
  if (op == nullptr || p->index != 0 || !OneOf(op->name(), {"slice", "split"})) return p;
  const Shape &whole = op->in(0).shape, &part = p->type.shape;
  if (whole.empty() || part.back() + 1 != whole.back()) return p;
  if (!std::equal(part.begin(), part.end() - 1, whole.begin())) return p;
  auto all = [&](const char* attr, int64_t n) {
    return std::ranges::all_of(op->attrs.IntList(attr), [n](int64_t each) { return each == n; });
  };
  const bool last = op->name() == "split" ? op->results.size() == 2 && op->result(1)->users.empty()
                                          : all("starts", 0) && all("steps", 1);
  return last && CountUses(p) == 1 ? op->operands[0] : p;
}

// o = sum(exp(s) v) / (sum(exp(s)) + exp(sink)): the attention without it, times a share of each
// row that its log-sum-exp tells.
Value* WithSink(Builder& b, Op* attention, Value* sink) {
  Value *o = attention->result(), *lse = attention->results[1];
  lse = b.Reshape(lse, sink->type.shape);
  Value* share = b.Make("sigmoid", {b.Sub(lse, b.Cast(sink, lse->type.dtype))});
  return b.Mul(o, b.Cast(share, o->type.dtype));
}

Value* RecoverScoresSoftmaxValues(Builder& b, Op* op) {
  if (!IsProduct(op) || op->operands.size() != 2 || op->in(1).rank() < 3) return nullptr;
  // The probabilities, maybe with heads and queries as the rows of one matrix.
  Value* p = op->operands[0];
  if (Op* merged = ProducedBy(p, "reshape");
      merged && merged->in(0).rank() >= 3 && merged->in(0).shape.back() == p->type.shape.back()) {
    if (CountUses(p) != 1) return nullptr;
    p = merged->operands[0];
  }
  AfterSoftmax after;
  Value* all = BeforeSink(p);
  Op* softmax = FindSoftmax(all, after);
  if (softmax == nullptr) return nullptr;
  Op* dropout = after.dropout;
  const Sink with = all != p ? FindSink(p, softmax) : Sink();
  if (all != p && (with.sink == nullptr || dropout || after.again.value)) return nullptr;
  // The gradient of the log-sum-exp takes up to 8 columns more, and kernels no more than 256.
  if (with.sink && op->out().shape.back() > 248) return nullptr;
  Shape softmax_shape = p->type.shape;
  const size_t rank = softmax_shape.size();
  if (rank < 3 || rank > 5) return nullptr;
  std::vector<MaskStep> steps;
  Op* scores = FindScores(b, with.sink ? with.scores : softmax->operands[0], steps);
  if (scores == nullptr || scores->operands.size() > 2) return nullptr;
  if (after.again.value && !OnlyMaskedBy(steps, after.again)) return nullptr;
  const bool queries_first = rank == 5 && QueriesBeforeGroup(scores, steps, softmax_shape);
  if (queries_first) {
    if (dropout || with.sink) return nullptr;
    std::swap(softmax_shape[2], softmax_shape[3]);
  }
  for (MaskStep& step : steps) {
    if (step.value == nullptr) continue;
    if (rank == 3 && step.value->type.rank() == 3 && step.value->type.shape[0] != 1) return nullptr;
    if (queries_first) step.value = WithQueriesAfterGroup(b, step.value);
    if (rank == 5) step.value = WithGroupsMerged(b, step.value, softmax_shape);
    if (step.value == nullptr) return nullptr;
  }
  std::reverse(steps.begin(), steps.end());

  const Shape dims = DimsOf(softmax_shape);
  const int64_t heads = HeadsOf(scores, dims);
  if (heads == 0 || HeadsOf(op, dims) != heads) return nullptr;
  double scale = 1;
  Value* q = Unscaled(b, scores->operands[0], scale);
  Value* k = Unscaled(b, scores->operands[1], scale);
  Value* v = op->operands[1];
  auto last = [](const Value* x, int from_end) { return *(x->type.shape.end() - from_end); };
  const int64_t depth = last(q, 1);
  if (queries_first) {
    const Shape& apart = p->type.shape;
    q = b.Reshape(q, {apart[0], apart[1], apart[2], apart[3], depth});
    q = WithQueriesAfterGroup(b, q);
  }
  q = b.Reshape(q, {dims[0], dims[1], dims[2], depth});
  k = b.Reshape(k, {dims[0], heads, last(k, 2), last(k, 1)});
  if (scores->name() == "matmul") k = b.Transpose(k, {0, 1, 3, 2});
  v = b.Reshape(v, {dims[0], heads, last(v, 2), last(v, 1)});
  if (op->name() == "matmul_nt") v = b.Transpose(v, {0, 1, 3, 2});
  ShareType(b, q, k, v);
  TensorType type(softmax->out().dtype, dims);
  std::optional<RecoveredMask> mask =
      RecoverMask(b, type, steps, after.guard, with.sink || after.again.value);
  if (!mask) return nullptr;
  if (mask->replaced) q = b.Make("where", {mask->replaced, b.Scalar(q->type.dtype, 0), q});
  std::vector<Value*> operands = {q, k, v};
  if (mask->mask) operands.push_back(mask->mask);
  Attributes attrs = {
      {"scale", scale * mask->scale}, {"causal", mask->causal}, {"layout", std::string("bhsd")}};
  if (dropout != nullptr) {
    // The probabilities' elements are in the order of [b, h, s, t], whatever their dims.
    operands.push_back(dropout->operands[1]);
    for (const auto& [name, value] : dropout->attrs.entries()) attrs.Set(name, value);
  }
  Op* attention = b.Create("attention", std::move(operands), std::move(attrs));
  Value* o = with.sink ? WithSink(b, attention, with.sink) : attention->result();
  if (mask->unseeing) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    o = b.Make("where", {mask->unseeing, b.Scalar(o->type.dtype, kNan), o});
  }
  if (queries_first) {
    const Shape& s = softmax_shape;
    o = WithQueriesAfterGroup(b, b.Reshape(o, {s[0], s[1], s[2], s[3], last(o, 1)}));
  }
  return b.Reshape(b.Cast(o, op->out().dtype), op->out().shape);
}

// An attention of the model's own (ONNX has one) whose mask holds a triangle.
Value* RecoverCausal(Builder& b, Op* op) {
  if (op->name() != "attention" || op->operands.size() - Drops(*op) < 4 ||
      op->attrs.Bool("causal") || !OnlyFirstResultRead(*op)) {
    return nullptr;
  }
  int sequence = op->attrs.String("layout") == "bshd" ? 1 : 2;
  const Shape &q = op->in(0).shape, &k = op->in(1).shape;
  TensorType scores(op->in(0).dtype, {q[0], q[3 - sequence], q[sequence], k[sequence]});
  Value* mask = op->operands[3];
  MaskStep step = {MaskStep::kAdd, mask};
  if (mask->type.dtype == DType::kBool) {
    step = {MaskStep::kKeep, mask, false, -std::numeric_limits<double>::infinity()};
  }
  // A row that sees no key is zero by the op's own definition: as if guarded.
  std::optional<RecoveredMask> found = RecoverMask(b, scores, {step}, true);
  if (!found || (found->mask != nullptr && !found->causal)) return nullptr;
  std::vector<Value*> operands(op->operands.begin(), op->operands.begin() + 3);
  if (found->mask) operands.push_back(found->mask);
  operands.insert(operands.end(), op->operands.begin() + 4, op->operands.end());
  Attributes attrs = op->attrs;
  attrs.Set("causal", found->causal);
  return b.Create("attention", std::move(operands), std::move(attrs))->result();
}

}  // namespace

bool RecoverAttention(Graph& graph) {
  bool changed = ApplyRules(graph, {RecoverScoresSoftmaxValues});
  Simplify(graph);
  changed |= ApplyRules(graph, {RecoverCausal});
  return ChooseAttentionLayout(graph) || changed;
}

}  // namespace shardc::recover
