// Lookups whose indices count the batch: x[arange(b), i], which exporters write as tuples (i,
// at[i]) or as positions i * s + at[i] in the flattened dims. With the batch as a dim of the
// lookup's own each example is looked up in itself, so that no rank, and no microbatch, needs the
// others.
#include <algorithm>

#include "frontend/recover/bounds.h"
#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

// Whether v has n positions along the dim, and each of its elements is its position times `step`.
bool Counts(const Value* v, int64_t dim, int64_t n, int64_t step) {
  const Shape& shape = v->type.shape;
  if (dim < 0 || shape[dim] != n) return false;
  if (const Op* broadcast = ProducedBy(v, "broadcast_to")) {
    const Value* x = broadcast->operands[0];
    return Counts(x, dim - (v->type.rank() - x->type.rank()), n, step);
  }
  const HostTensor* data = ConstantOf(v);
  if (data == nullptr || !IsInteger(data->dtype())) return false;
  const int64_t inner = NumElements(Shape(shape.begin() + dim + 1, shape.end()));
  for (int64_t i = 0; i < data->num_elements(); ++i) {
    if (data->AsInt(i) != i / inner % n * step) return false;
  }
  return true;
}

// The columns of tuples [..., k], k > 1, the first of them by itself; empty where they are unknown.
std::vector<Value*> ColumnsOf(const Value* tuples) {
  const Op* concat = ProducedBy(tuples, "concat");
  if (concat == nullptr || !IsLastAxis(concat->attrs.Int("axis"), tuples->type.rank())) return {};
  const std::vector<Value*>& columns = concat->operands;
  if (columns.size() < 2 || columns[0]->type.shape.back() != 1) return {};
  return columns;
}

// (i, at[i]) -> at[i], one batch dim more.
Value* TuplesThatCount(Builder& b, Op* op) {
  const bool scatter = op->name() == "gather_nd_grad";
  if (op->name() != "gather_nd" && !scatter) return nullptr;
  Value* tuples = op->operands[1];
  const Shape& shape = tuples->type.shape;
  const int64_t batch = op->attrs.Int("batch_dims", 0);
  const auto dim = static_cast<size_t>(batch);
  if (shape.back() < 2 || batch + 1 >= tuples->type.rank()) return nullptr;
  const Shape& indexed = scatter ? op->out().shape : op->in(0).shape;
  if (indexed[dim] != shape[dim]) return nullptr;
  std::vector<Value*> columns = ColumnsOf(tuples);
  if (columns.empty() || !Counts(columns[0], batch, shape[dim], 1)) return nullptr;
  columns.erase(columns.begin());
  const int64_t last = tuples->type.rank() - 1;
  Value* rest =
      columns.size() == 1 ? columns[0] : b.Make("concat", std::move(columns), {{"axis", last}});
  Attributes attrs = op->attrs;
  attrs.Set("batch_dims", batch + 1);
  if (scatter) {
    Ints sizes = op->attrs.IntList("sizes");
    sizes.erase(sizes.begin());
    attrs.Set("sizes", std::move(sizes));
  }
  return b.Make(op->name(), {op->operands[0], rest}, std::move(attrs));
}

// Rows i * s + at[i] of b * s, where at[i] is known to lie in [0, s) -> at[i] of the s rows of
// each.
Value* PositionsThatCount(Builder& b, Op* op) {
  if (op->name() != "gather" || !TrainsAllRows(op)) return nullptr;
  Value *x = op->operands[0], *at = op->operands[1];
  const Op* add = ProducedBy(at, "add");
  if (add == nullptr || op->attrs.Int("axis", 0) != 0 || at->type.rank() < 1 || IsParam(x))
    return nullptr;
  const int64_t rows = x->type.shape[0], batch = at->type.shape[0];
  if (batch < 2 || rows % batch != 0) return nullptr;
  const int64_t size = rows / batch;
  for (int i : {0, 1}) {
    const Value* counted = add->operands[i];
    Value* within = add->operands[1 - i];
    if (!Counts(counted, counted->type.rank() - at->type.rank(), batch, size)) continue;
    const Bounds bounds = BoundsOf(within);
    if (bounds.low < 0 || bounds.high >= size) continue;
    Shape apart = x->type.shape, tuples = at->type.shape;
    apart[0] = size;
    apart.insert(apart.begin(), batch);
    within = b.BroadcastTo(within, tuples);
    tuples.push_back(1);
    return b.Make("gather_nd", {b.Reshape(x, apart), b.Reshape(within, tuples)},
                  {{"batch_dims", int64_t{1}}});
  }
  return nullptr;
}

}  // namespace

bool BatchLookups(Graph& graph) { return ApplyRules(graph, {TuplesThatCount, PositionsThatCount}); }

}  // namespace shardc::recover
