// The logarithm of a softmax, of which one element a row is looked up, or the logarithm of the sum
// less that element: what a loss inside of a model is. As cross_entropy it needs no gathered logits
// where the classes are cut.
#include <algorithm>
#include <limits>

#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::min();  // no label is ignored

// Reshapes leave the rows in their order.
int64_t LastLargerDim(const Shape& shape) {
  const auto dim = std::find_if(shape.rbegin(), shape.rend(), [](int64_t d) { return d > 1; });
  return dim == shape.rend() ? 1 : *dim;
}

// The same for values of which the rows, of more than one element, stay what they are, but for dims
// of size 1 behind them.
Value* UnshapedRows(Value* v) {
  const int64_t columns = LastLargerDim(v->type.shape);
  while (columns > 1 && KeepsOrder(v->producer) &&
         LastLargerDim(v->producer->in(0).shape) == columns) {
    v = v->producer->operands[0];
  }
  return v;
}

// Whether the elements along the dim are the rows: it is larger, the dims behind it are of size 1.
bool IsRowDim(int64_t dim, const Shape& shape) {
  const auto at = dim < 0 ? dim + std::ssize(shape) : dim;
  return shape[at] > 1 &&
         std::all_of(shape.begin() + at + 1, shape.end(), [](int64_t d) { return d == 1; });
}

// What takes this off x takes the same off every element of a row.
bool IsOneARow(const Value* v, const Value* x) {
  Shape shape = x->type.shape;
  const auto row = std::find_if(shape.rbegin(), shape.rend(), [](int64_t d) { return d > 1; });
  if (row == shape.rend()) return false;
  *row = 1;
  return v->type.shape == shape;
}

// The x, as UnshapedRows has it, of log(sum(exp(x))) over the last dim, also as m + log(sum(exp(x -
// m))), with the dim kept or without it.
Value* LogSumExpOf(Value* v) {
  v = Unshaped(v);
  Op* add = ProducedBy(v, "add");
  for (int i = 0; add && i < 2; ++i) {
    Value *log = add->operands[i], *m = add->operands[1 - i];
    Value* shifted = log->type.shape == m->type.shape ? LogSumExpOf(log) : nullptr;
    Op* sub = shifted ? ProducedBy(shifted, "sub") : nullptr;
    if (sub && IsOneARow(sub->operands[1], shifted) && Unshaped(sub->operands[1]) == Unshaped(m))
      return UnshapedRows(sub->operands[0]);
  }
  Op* log = ProducedBy(v, "log");
  Op* sum = log ? ProducedBy(Unshaped(log->operands[0]), "reduce_sum") : nullptr;
  if (sum == nullptr) return nullptr;
  const Ints& axes = sum->attrs.IntList("axes");
  if (axes.size() != 1 || !IsRowDim(axes[0], sum->in(0).shape)) return nullptr;
  Op* exp = ProducedBy(UnshapedRows(sum->operands[0]), "exp");
  return exp ? UnshapedRows(exp->operands[0]) : nullptr;
}

// The logits, which a softmax does not tell from what is left when something is taken off a row.
Value* WithoutShift(Value* x) {
  Op* sub = ProducedBy(x, "sub");
  const bool shifted = sub && IsOneARow(sub->operands[1], sub->operands[0]);
  return shifted ? UnshapedRows(sub->operands[0]) : x;
}

// The x of log(softmax(x)) over the last dim, also as x - log(sum(exp(x))).
Value* LogSoftmaxOf(Value* v) {
  v = UnshapedRows(v);
  if (Op* log = ProducedBy(v, "log")) {
    Op* softmax = ProducedBy(log->operands[0], "softmax");
    const bool last = softmax && IsRowDim(softmax->attrs.Int("axis"), v->type.shape);
    return last ? softmax->operands[0] : nullptr;
  }
  Op* sub = ProducedBy(v, "sub");
  if (sub == nullptr || !IsOneARow(sub->operands[1], v)) return nullptr;
  Value* x = UnshapedRows(sub->operands[0]);
  return LogSumExpOf(sub->operands[1]) == x ? WithoutShift(x) : nullptr;
}

// Whether one element of each row of its operand is what the op looks up.
bool LooksUpOneARow(const Op* op) {
  if (op->name() != "gather_nd" || ConstantOf(op->operands[1])) return false;
  const int rank = op->in(0).rank();
  if (rank < 1 || op->in(0).shape.back() < 2 || op->attrs.Int("batch_dims", 0) != rank - 1)
    return false;
  return op->in(1).num_elements() * op->in(0).shape.back() == op->in(0).num_elements();
}

// In the type of the logits; of halves a cross_entropy is f32.
Value* PlainCrossEntropy(Builder& b, Value* logits, Value* labels) {
  Op* op = b.Create("cross_entropy", {logits, labels}, {{"ignore_index", kNone}});
  return b.Cast(op->result(), logits->type.dtype);
}

Value* CrossEntropy(Builder& b, Value* logits, Value* indices) {
  Shape shape = logits->type.shape;
  while (shape.size() > 1 && shape.back() == 1) shape.pop_back();
  logits = b.Reshape(logits, shape);
  // Indices count from the end where they are negative, and none is ignored.
  Value* labels = b.Reshape(indices, Shape(shape.begin(), shape.end() - 1));
  const DType dtype = labels->type.dtype;
  Value* negative = b.Make("less", {labels, b.Scalar(dtype, 0)});
  Value* wrapped = b.Add(labels, b.Scalar(dtype, static_cast<double>(shape.back())));
  labels = b.Make("where", {negative, wrapped, labels});
  return PlainCrossEntropy(b, logits, labels);
}

Value* LookUpToCrossEntropy(Builder& b, Op* op) {
  Value* logits = LooksUpOneARow(op) ? LogSoftmaxOf(op->operands[0]) : nullptr;
  if (logits == nullptr) return nullptr;
  return b.Reshape(b.Neg(CrossEntropy(b, logits, op->operands[1])), op->out().shape);
}

// sum(one_hot(label) * log(softmax(x))) -> -cross_entropy(x, label), and zero for a label that is
// no class.
Value* OneHotToCrossEntropy(Builder& b, Op* op) {
  if (op->name() != "reduce_sum" || op->in(0).rank() == 0) return nullptr;
  const Ints& axes = op->attrs.IntList("axes");
  const Shape& shape = op->in(0).shape;
  Op* product = ProducedBy(op->operands[0], "mul");
  if (!product || axes.size() != 1 || !IsLastAxis(axes[0], std::ssize(shape)) || shape.back() < 2)
    return nullptr;
  for (int i = 0; i < 2; ++i) {
    if (product->in(0).shape != shape || product->in(1).shape != shape) continue;
    Value* ids = IdsOfOneHot(product->operands[i], shape.back());
    Value* logits = ids ? LogSoftmaxOf(product->operands[1 - i]) : nullptr;
    if (logits == nullptr || logits->type.num_elements() != NumElements(shape)) continue;
    const Shape rows(shape.begin(), shape.end() - 1);
    const auto [inside, is_inside] = WithinTable(b, ids, shape.back(), op->out().dtype);
    Value* loss = PlainCrossEntropy(b, b.Reshape(logits, shape), b.Reshape(inside, rows));
    return b.Reshape(b.Neg(b.Mul(loss, b.Reshape(is_inside, rows))), op->out().shape);
  }
  return nullptr;
}

// log(sum(exp(x))) - x[label], or less it.
Value* DifferenceToCrossEntropy(Builder& b, Op* op) {
  if (op->name() != "sub" || op->in(0).shape != op->in(1).shape) return nullptr;
  for (int i = 0; i < 2; ++i) {
    Op* look_up = Unshaped(op->operands[1 - i])->producer;
    if (look_up == nullptr || !LooksUpOneARow(look_up)) continue;
    Value* x = UnshapedRows(look_up->operands[0]);
    if (LogSumExpOf(op->operands[i]) != x) continue;
    Value* loss = CrossEntropy(b, WithoutShift(x), look_up->operands[1]);
    return b.Reshape(i == 0 ? loss : b.Neg(loss), op->out().shape);
  }
  return nullptr;
}

// The loss of some of the rows, as of all tokens but the last -> the same of all rows, and of those
// the some: the logits are not copied, and stay cut along the sequence.
Value* SliceAfterLoss(Builder& b, Op* op) {
  if (op->name() != "cross_entropy" || !OnlyFirstResultRead(*op)) return nullptr;
  Op* slice = ProducedBy(UnshapedRows(op->operands[0]), "slice");
  if (slice == nullptr) return nullptr;
  const TensorType &all = slice->in(0), &some = slice->out();
  Ints starts = slice->attrs.IntList("starts"), limits = slice->attrs.IntList("limits");
  Ints steps = slice->attrs.IntList("steps");
  // Of few rows all of them are more work.
  if (2 * some.num_elements() < all.num_elements() || all.shape.back() != some.shape.back() ||
      std::ranges::any_of(steps, [](int64_t step) { return step != 1; })) {
    return nullptr;
  }
  for (Ints* dims : {&starts, &limits, &steps}) dims->pop_back();
  Ints high = limits;
  for (size_t d = 0; d < high.size(); ++d) high[d] = all.shape[d] - limits[d];
  const int64_t ignored = op->attrs.Int("ignore_index");
  const double any = ignored == kNone ? 0 : static_cast<double>(ignored);
  const Shape rows(some.shape.begin(), some.shape.end() - 1);
  Value* labels = b.Make("pad", {b.Reshape(op->operands[1], rows)},
                         {{"low", starts}, {"high", std::move(high)}, {"value", any}});
  Value* loss = b.Create("cross_entropy", {slice->operands[0], labels}, op->attrs)->result();
  Value* part = b.Make("slice", {loss}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
  return b.Reshape(part, op->out().shape);
}

}  // namespace

bool RecoverCrossEntropy(Graph& graph) {
  return ApplyRules(graph, {LookUpToCrossEntropy, OneHotToCrossEntropy, DifferenceToCrossEntropy,
                            SliceAfterLoss});
}

}  // namespace shardc::recover
