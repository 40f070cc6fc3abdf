// exp(x) / sum(exp(x)) -> softmax, also of x less its maximum.
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

}  // namespace

bool RecoverSoftmax(Graph& graph) { return ApplyRules(graph, {RecoverQuotient, DropMaximum}); }

}  // namespace shardc::recover
