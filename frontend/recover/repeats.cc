// Rows that stand several times in a tensor are computed with once: what is made of them is
// repeated instead. As of tokens that are looked up for each of their experts.
#include <algorithm>
#include <optional>

#include "frontend/recover/patterns.h"
#include "ir/dropout.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// Rows that are `times` as many along a dim of a value, behind dims of size 1: each so often, or
// all of them in turns.
struct Repeat {
  Value* rows = nullptr;  // in any shape
  int dim = 0;
  int64_t n = 0, times = 0;
  bool in_turns = false;
  bool Like(const Repeat& o) const {
    return n == o.n && times == o.times && in_turns == o.in_turns;
  }
  // [n, times] or [times, n].
  Shape Apart(int64_t times_now) const {
    return in_turns ? Shape{times_now, n} : Shape{n, times_now};
  }
  int64_t axis() const { return in_turns ? 0 : 1; }
};

int64_t Elements(const Shape& shape, size_t from, size_t to) {
  return NumElements(
      Shape(shape.begin() + static_cast<int64_t>(from), shape.begin() + static_cast<int64_t>(to)));
}

// The first dim that is not of size 1; the last one where there is none.
int FirstDim(const Shape& shape) {
  const auto it = std::ranges::find_if(shape, [](int64_t n) { return n != 1; });
  return std::min(static_cast<int>(it - shape.begin()), static_cast<int>(shape.size()) - 1);
}

std::optional<Repeat> RepeatOf(const Value* v) {
  const Op* op = v->producer;
  while (KeepsOrder(op)) op = op->operands[0]->producer;
  if (op == nullptr || op->name() != "broadcast_to" || v->type.rank() < 1) return std::nullopt;
  const Shape &from = op->in(0).shape, &to = op->out().shape, &shape = v->type.shape;
  if (from.size() != to.size() || v->type.num_elements() == 0) return std::nullopt;
  const auto at = std::ranges::mismatch(from, to);
  if (at.in1 == from.end() || !std::equal(at.in1 + 1, from.end(), at.in2 + 1)) return std::nullopt;
  const auto d = static_cast<size_t>(at.in1 - from.begin());
  const int64_t outer = Elements(to, 0, d), inner = Elements(to, d + 1, to.size());
  Value* rows = op->operands[0];
  while (KeepsOrder(rows->producer)) rows = rows->producer->operands[0];
  Repeat repeat{rows, FirstDim(shape), outer, to[d], false};
  const auto dim = static_cast<size_t>(repeat.dim);
  const int64_t row = Elements(shape, dim + 1, shape.size());
  if (shape[dim] == outer * to[d] && inner == row) return repeat;
  repeat.n = shape[dim] / to[d];
  repeat.in_turns = true;
  if (outer != 1 || shape[dim] != repeat.n * to[d] || inner != repeat.n * row) return std::nullopt;
  return repeat;
}

// Of a value in which they are repeated.
Value* Rows(Builder& b, const Repeat& repeat, const Value* repeated) {
  Shape shape = repeated->type.shape;
  shape[repeat.dim] = repeat.n;
  return b.Reshape(repeat.rows, shape);
}

// The rows along the dim, behind dims of size 1.
Value* Repeated(Builder& b, Value* rows, int dim, const Repeat& as) {
  Shape all = rows->type.shape;
  const Shape row(all.begin() + dim + 1, all.end());
  all[dim] = as.n * as.times;
  auto apart = [&](int64_t times) {
    Shape shape = as.Apart(times);
    shape.insert(shape.end(), row.begin(), row.end());
    return shape;
  };
  return b.Reshape(b.BroadcastTo(b.Reshape(rows, apart(1)), apart(as.times)), all);
}

// The factor that alone makes up the dim; -1 where none does.
int FactorAlone(const ShardingRule& rule, const DimFactors& dim) {
  if (dim.factors.size() != 1 || !dim.segments.empty()) return -1;
  return rule.factors[dim.factors[0]].kind == FactorKind::kPlain ? dim.factors[0] : -1;
}

// op(repeated(x)) -> repeated(op(x)), where all that has rows repeats them alike.
Value* ComputeOnce(Builder& b, Op* op) {
  if (op->results.size() != 1 || !op->def->rule || op->def->resized || IsRandom(*op))
    return nullptr;
  if (op->attrs.Has("shape") || op->def->side_effect || KeepsOrder(op)) return nullptr;
  std::optional<Repeat> repeat;
  size_t first = 0;
  while (first < op->operands.size() && !(repeat = RepeatOf(op->operands[first]))) ++first;
  if (!repeat) return nullptr;
  const ShardingRule rule = op->def->rule(*op);
  const int rows = FactorAlone(rule, rule.operands[first][repeat->dim]);
  const int at = rows < 0 ? -1 : DimOfFactor(rule.results[0], rows);
  const Shape& out = op->out().shape;
  if (at < 0 || FactorAlone(rule, rule.results[0][at]) != rows || Elements(out, 0, at) != 1) {
    return nullptr;
  }
  std::vector<Value*> operands = op->operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    const int dim = DimOfFactor(rule.operands[i], rows);
    if (dim < 0) continue;
    const std::optional<Repeat> as = RepeatOf(operands[i]);
    if (!as || as->dim != dim || !as->Like(*repeat)) return nullptr;
    operands[i] = Rows(b, *as, operands[i]);
  }
  Value* once = b.Make(op->name(), std::move(operands), op->attrs);
  return Repeated(b, once, at, *repeat);
}

// The value in this shape: of elementwise ops, what they are made of is. So no dim is left that is
// the product of rows and times, which could not be cut by rows.
Value* InShape(Builder& b, Value* v, const Shape& shape) {
  const Op* op = v->producer;
  const bool apart = op && op->def->elementwise && op->results.size() == 1 &&
                     std::ranges::all_of(op->operands, [&](const Value* x) {
                       return x->type.shape == v->type.shape || x->type.num_elements() == 1;
                     });
  if (!apart) return b.Reshape(v, shape);
  std::vector<Value*> operands;
  for (Value* x : op->operands) {
    operands.push_back(x->type.num_elements() == 1 ? b.Reshape(x, {}) : InShape(b, x, shape));
  }
  return b.Make(op->name(), std::move(operands), op->attrs);
}

// The sum over all times of what one row is multiplied with: the row times the sum of that.
Value* SumOnce(Builder& b, Op* op) {
  if (op->name() != "reduce_sum" || op->attrs.Has("out") || op->in(0).rank() < 2) return nullptr;
  const Op* product = op->operands[0]->producer;
  while (KeepsOrder(product)) product = product->operands[0]->producer;
  if (product == nullptr || product->name() != "mul") return nullptr;
  for (const int i : {0, 1}) {
    const std::optional<Repeat> repeat = RepeatOf(product->operands[i]);
    Value* factor = product->operands[1 - i];
    if (!repeat || product->in(i).shape != product->out().shape) continue;
    const int64_t row = product->out().num_elements() / (repeat->n * repeat->times);
    const Shape& summed = op->in(0).shape;
    const int beside = product->out().rank() - repeat->dim - 1;
    // One number for each row.
    if (factor->type.num_elements() != repeat->n * repeat->times || row == 1 ||
        factor->type.rank() <= beside ||
        factor->type.shape[factor->type.rank() - 1 - beside] != repeat->n * repeat->times ||
        Shape(summed.begin(), summed.begin() + 2) != repeat->Apart(repeat->times) ||
        op->attrs.IntList("axes") != Ints{repeat->axis()}) {
      continue;
    }
    Value* sum = b.ReduceSum(InShape(b, factor, repeat->Apart(repeat->times)), {repeat->axis()});
    Value* once = b.Reshape(repeat->rows, {repeat->n, row});
    return b.Reshape(b.Mul(once, b.Reshape(sum, {repeat->n, 1})), op->out().shape);
  }
  return nullptr;
}

}  // namespace

bool ComputeRepeatsOnce(Graph& graph) { return ApplyRules(graph, {ComputeOnce, SumOnce}); }

}  // namespace shardc::recover
