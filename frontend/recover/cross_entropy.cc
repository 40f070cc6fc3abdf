// The logarithm of a softmax, of which one element a row is looked up: what a loss inside of a
// model is. As cross_entropy it needs no gathered logits where the classes are cut.
#include <limits>

#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

bool KeepsLastDim(const Op* reduce, int rank) {
  const Ints& axes = reduce->attrs.IntList("axes");
  return axes.size() == 1 && IsLastAxis(axes[0], rank) && reduce->attrs.Bool("keepdims");
}

// The x of log(softmax(x)) over the last dim, also as (x - max) - log(sum(exp(x - max))).
Value* LogSoftmaxOf(const Value* v) {
  const int rank = v->type.rank();
  if (Op* log = ProducedBy(v, "log")) {
    Op* softmax = ProducedBy(log->operands[0], "softmax");
    const bool last = softmax && IsLastAxis(softmax->attrs.Int("axis"), rank);
    return last ? softmax->operands[0] : nullptr;
  }
  Op* sub = ProducedBy(v, "sub");
  Op* log = sub ? ProducedBy(sub->operands[1], "log") : nullptr;
  Op* sum = log ? ProducedBy(log->operands[0], "reduce_sum") : nullptr;
  Op* exp = sum && KeepsLastDim(sum, rank) ? ProducedBy(sum->operands[0], "exp") : nullptr;
  if (exp == nullptr || exp->operands[0] != sub->operands[0]) return nullptr;
  // Any value that is the same along the row may have been taken off before.
  Op* shifted = ProducedBy(sub->operands[0], "sub");
  Op* max = shifted ? ProducedBy(shifted->operands[1], "reduce_max") : nullptr;
  bool stable = max && KeepsLastDim(max, rank) && max->operands[0] == shifted->operands[0];
  return stable ? shifted->operands[0] : sub->operands[0];
}

Value* LookUpToCrossEntropy(Builder& b, Op* op) {
  if (op->name() != "gather_nd" || ConstantOf(op->operands[1])) return nullptr;
  Value *x = op->operands[0], *indices = op->operands[1];
  const int rank = x->type.rank();
  if (rank < 1 || op->attrs.Int("batch_dims", 0) != rank - 1) return nullptr;
  Shape rows(x->type.shape.begin(), x->type.shape.end() - 1);
  if (indices->type.num_elements() != NumElements(rows)) return nullptr;
  Value* logits = LogSoftmaxOf(x);
  if (logits == nullptr) return nullptr;
  // Indices count from the end where they are negative, and none is ignored.
  Value* labels = b.Reshape(indices, rows);
  const DType dtype = labels->type.dtype;
  Value* negative = b.Make("less", {labels, b.Scalar(dtype, 0)});
  Value* wrapped = b.Add(labels, b.Scalar(dtype, static_cast<double>(logits->type.shape.back())));
  labels = b.Make("where", {negative, wrapped, labels});
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
  Value* loss = b.Create("cross_entropy", {logits, labels}, {{"ignore_index", kNone}})->result();
  return b.Reshape(b.Neg(loss), op->out().shape);
}

}  // namespace

bool RecoverCrossEntropy(Graph& graph) { return ApplyRules(graph, {LookUpToCrossEntropy}); }

}  // namespace shardc::recover
