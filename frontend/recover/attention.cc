// matmul(softmax(matmul(q, k^T) with scale and mask), v) -> attention.
#include <algorithm>
#include <limits>
#include <utility>

#include "frontend/recover/attention_heads.h"
#include "frontend/recover/attention_mask.h"
#include "frontend/recover/attention_softmax.h"
#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

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

// o = sum(exp(s) v) / (sum(exp(s)) + exp(sink)): the attention without it, times a share of each
// row that its log-sum-exp tells.
Value* WithSink(Builder& b, Op* attention, Value* sink) {
  Value *o = attention->result(), *lse = attention->results[1];
  lse = b.Reshape(lse, sink->type.shape);
  Value* share = b.Make("sigmoid", {b.Sub(lse, b.Cast(sink, lse->type.dtype))});
  return b.Mul(o, b.Cast(share, o->type.dtype));
}

// The probabilities that a product has as its rows, maybe with heads and queries in one dim; null:
// none.
Value* ProbabilitiesOf(const Op* product) {
  Value* p = product->operands[0];
  Op* merged = ProducedBy(p, "reshape");
  const bool in_one =
      merged && merged->in(0).rank() >= 3 && merged->in(0).shape.back() == p->type.shape.back();
  if (!in_one) return p;
  return CountUses(p) == 1 ? merged->operands[0] : nullptr;
}

// An attention as it was found in the graph.
struct Found {
  Probabilities p;
  Op* scores = nullptr;         // the product of q and k
  std::vector<MaskStep> steps;  // from it on
  HeadDims dims;
};

std::optional<Found> Find(Builder& b, const Op* values) {
  if (!IsProduct(values) || values->operands.size() != 2 || values->in(1).rank() < 3) return {};
  Value* p = ProbabilitiesOf(values);
  std::optional<Probabilities> of = p ? FindProbabilities(p) : std::nullopt;
  if (!of) return {};
  // The gradient of the log-sum-exp takes up to 8 columns more, and kernels no more than 256.
  if (of->sink && values->out().shape.back() > 248) return {};
  std::vector<MaskStep> steps;
  Op* scores = FindScores(b, of->scores, steps);
  if (scores == nullptr || scores->operands.size() > 2) return {};
  if (of->again.value && !OnlyMaskedBy(steps, of->again)) return {};
  std::optional<HeadDims> dims = HeadDims::Find(scores, values, p->type.shape, steps);
  if (!dims) return {};
  if (dims->queries_before_group() && (of->dropout || of->sink)) return {};
  for (MaskStep& step : steps) {
    if (step.value == nullptr) continue;
    step.value = dims->Mask(b, step.value);
    if (step.value == nullptr) return {};
  }
  std::reverse(steps.begin(), steps.end());
  return Found{*of, scores, std::move(steps), std::move(*dims)};
}

Value* RecoverScoresSoftmaxValues(Builder& b, Op* op) {
  const std::optional<Found> found = Find(b, op);
  if (!found) return nullptr;
  const auto& [p, scores, steps, dims] = *found;
  double scale = 1;
  Value* q = dims.Queries(b, Unscaled(b, scores->operands[0], scale));
  Value* k = Unscaled(b, scores->operands[1], scale);
  k = dims.Keys(b, k, !MultipliesByTransposed(scores));
  Value* v = dims.Keys(b, op->operands[1], MultipliesByTransposed(op));
  ShareType(b, q, k, v);
  std::optional<RecoveredMask> mask = RecoverMask(b, {p.softmax->out().dtype, dims.scores()}, steps,
                                                  p.guard, p.sink || p.again.value);
  if (!mask) return nullptr;
  if (mask->replaced) q = b.Make("where", {mask->replaced, b.Scalar(q->type.dtype, 0), q});
  std::vector<Value*> operands = {q, k, v};
  if (mask->mask) operands.push_back(mask->mask);
  Attributes attrs = {
      {"scale", scale * mask->scale}, {"causal", mask->causal}, {"layout", std::string("bhsd")}};
  if (p.dropout != nullptr) {
    // The probabilities' elements are in the order of [b, h, s, t], whatever their dims.
    operands.push_back(p.dropout->operands[1]);
    for (const auto& [name, value] : p.dropout->attrs.entries()) attrs.Set(name, value);
  }
  Op* attention = b.Create("attention", std::move(operands), std::move(attrs));
  Value* o = p.sink ? WithSink(b, attention, p.sink) : attention->result();
  if (mask->unseeing) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    o = b.Make("where", {mask->unseeing, b.Scalar(o->type.dtype, kNan), o});
  }
  return b.Reshape(b.Cast(dims.AsTheModel(b, o), op->out().dtype), op->out().shape);
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
