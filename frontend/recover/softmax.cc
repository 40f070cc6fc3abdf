// exp(x) / sum(exp(x)) -> softmax, also of x less its maximum, and of what is kept of a softmax.
#include <limits>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// The axis along which v is the reduction of x by `op`, kept as a dim of 1; -1 where it is none.
int ReducedAxis(const Value* v, std::string_view op, const Value* x) {
  const Shape& shape = x->type.shape;
  if (Op* reshape = ProducedBy(v, "reshape")) v = reshape->operands[0];
  Op* reduce = ProducedBy(v, op);
  if (reduce == nullptr || reduce->operands[0] != x) return -1;
  const Ints& axes = reduce->attrs.IntList("axes");
  if (axes.size() != 1) return -1;
  return static_cast<int>((axes[0] + std::ssize(shape)) % std::ssize(shape));
}

bool KeepsAxis(const Value* v, const Value* x, int axis) {
  Shape kept = x->type.shape;
  if (axis < 0) return false;
  kept[axis] = 1;
  return v->type.shape == kept;
}

// e / s or e * (1 / s).
std::pair<Value*, Value*> Quotient(const Op* op) {
  if (op->name() == "div") return {op->operands[0], op->operands[1]};
  for (int i = 0; op->name() == "mul" && i < 2; ++i) {
    if (Op* inverse = ProducedBy(op->operands[1 - i], "reciprocal"))
      return {op->operands[i], inverse->operands[0]};
  }
  return {};
}

Value* RecoverQuotient(Builder& b, Op* op) {
  const auto [e, sum] = Quotient(op);
  Op* exp = e ? ProducedBy(e, "exp") : nullptr;
  if (exp == nullptr) return nullptr;
  const int axis = ReducedAxis(sum, "reduce_sum", e);
  if (!KeepsAxis(sum, e, axis)) return nullptr;
  return b.Make("softmax", {exp->operands[0]}, {{"axis", int64_t{axis}}});
}

// Softmax finds the maximum itself.
Value* DropMaximum(Builder& b, Op* op) {
  Op* less = op->name() == "softmax" ? ProducedBy(op->operands[0], "sub") : nullptr;
  if (less == nullptr) return nullptr;
  Value *x = less->operands[0], *most = less->operands[1];
  const int axis = ReducedAxis(most, "reduce_max", x);
  if (!KeepsAxis(most, x, axis) || axis != AxisOf(op->attrs, x->type.rank())) return nullptr;
  return b.Make("softmax", {x}, op->attrs);
}

// p = where(keep, softmax(x), 0).
struct Kept {
  explicit Kept(const Value* p) {
    Op* where = ProducedBy(p, "where");
    Op* of = where && IsSplat(where->operands[2], 0) ? ProducedBy(where->operands[1], "softmax")
                                                     : nullptr;
    if (of == nullptr || of->out().shape != p->type.shape) return;
    keep = where->operands[0];
    x = of->operands[0];
    axis = AxisOf(of->attrs, p->type.rank());
  }
  Value *keep = nullptr, *x = nullptr;
  int64_t axis = -1;
};

// The sum of which the condition is that it is positive, else null.
Value* PositiveSum(const Value* condition) {
  Op* greater = ProducedBy(condition, "greater");
  return greater && IsSplat(greater->operands[1], 0) ? greater->operands[0] : nullptr;
}

// p / sum(p) of what is kept of a softmax -> the softmax of the scores that are kept; where the
// model takes another divisor than a sum that is 0, rows of which nothing is kept are zeros.
Value* RecoverRenormalized(Builder& b, Op* op) {
  if (op->name() != "div") return nullptr;
  Value *p = op->operands[0], *sum = op->operands[1];
  const Kept kept(p);
  if (kept.keep == nullptr || op->out().shape != p->type.shape) return nullptr;
  Op* where = ProducedBy(sum, "where");
  const bool guarded = where && SplatOf(where->operands[2]).value_or(0) != 0 &&
                       PositiveSum(where->operands[0]) == where->operands[1];
  if (guarded) sum = where->operands[1];
  if (ReducedAxis(sum, "reduce_sum", p) != kept.axis ||
      !KeepsAxis(sum, p, static_cast<int>(kept.axis))) {
    return nullptr;
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Value* scores = b.Make("where", {kept.keep, kept.x, b.Scalar(p->type.dtype, -kInfinity)});
  Value* y = b.Make("softmax", {scores}, {{"axis", kept.axis}});
  if (!guarded) return y;
  return b.Make("where", {b.Make("is_nan", {y}), b.Scalar(p->type.dtype, 0), y});
}

// where(sum(p) > 0, y, 0) of a y that is zero there already.
Value* DropSecondGuard(Builder&, Op* op) {
  if (op->name() != "where" || !IsSplat(op->operands[2], 0)) return nullptr;
  Value *sum = PositiveSum(op->operands[0]), *y = op->operands[1];
  if (Op* reshape = sum ? ProducedBy(sum, "reshape") : nullptr) sum = reshape->operands[0];
  Op* reduce = sum ? ProducedBy(sum, "reduce_sum") : nullptr;
  Op *guard = ProducedBy(y, "where"),
     *is_nan = guard ? ProducedBy(guard->operands[0], "is_nan") : nullptr;
  if (!reduce || !is_nan || !IsSplat(guard->operands[1], 0)) return nullptr;
  const Kept kept(reduce->operands[0]);
  Op* softmax = ProducedBy(guard->operands[2], "softmax");
  Op* scores = softmax && is_nan->operands[0] == softmax->result()
                   ? ProducedBy(softmax->operands[0], "where")
                   : nullptr;
  const bool same =
      scores && kept.keep == scores->operands[0] && kept.x == scores->operands[1] &&
      AxisOf(softmax->attrs, y->type.rank()) == kept.axis &&
      ReducedAxis(PositiveSum(op->operands[0]), "reduce_sum", reduce->operands[0]) == kept.axis &&
      KeepsAxis(PositiveSum(op->operands[0]), y, static_cast<int>(kept.axis));
  return same && y->type.shape == op->out().shape ? y : nullptr;
}

}  // namespace

bool RecoverSoftmax(Graph& graph) {
  return ApplyRules(graph, {RecoverQuotient, DropMaximum, RecoverRenormalized, DropSecondGuard});
}

}  // namespace shardc::recover
