#include <algorithm>
#include <numeric>

#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

// What the integers of a constant are once its explicit broadcasts and reshapes are taken off, or
// null.
const HostTensor* ConstantIds(Value* ids) {
  while (Op* broadcast = ProducedBy(ids, "broadcast_to")) ids = broadcast->operands[0];
  const HostTensor* data = ConstantOf(ids);
  return data && IsInteger(data->dtype()) ? data : nullptr;
}

// The first of consecutive ids along the last dim, the same in all rows; nothing if they are not
// so.
std::optional<int64_t> Consecutive(const HostTensor& ids) {
  if (ids.shape().empty() || ids.num_elements() == 0) return std::nullopt;
  int64_t row = ids.shape().back(), first = ids.AsInt(0);
  for (int64_t i = 0; i < ids.num_elements(); ++i) {
    if (ids.AsInt(i) != first + i % row) return std::nullopt;
  }
  return first;
}

// gather(param, [a, a + 1, ...]) -> slice(param): its gradient needs no scatter.
Value* PositionsToSlice(Builder& b, Op* op) {
  if (!IsLookup(op)) return nullptr;
  Value* table = op->operands[0];
  const HostTensor* ids = IsParam(table) ? ConstantIds(op->operands[1]) : nullptr;
  std::optional<int64_t> first = ids ? Consecutive(*ids) : std::nullopt;
  if (!first) return nullptr;
  const Shape& shape = table->type.shape;
  int64_t count = ids->shape().back();
  int64_t start = *first < 0 && *first + count <= 0 ? *first + shape[0] : *first;
  // Ids out of range keep the op, which names the position when it runs.
  if (start < 0 || start + count > shape[0]) return nullptr;
  Value* rows = b.Slice(table, 0, start, start + count);
  const Shape& out = op->out().shape;
  Shape spread(out.size() - rows->type.shape.size(), 1);
  spread.insert(spread.end(), rows->type.shape.begin(), rows->type.shape.end());
  return b.BroadcastTo(b.Reshape(rows, spread), out);
}

// Ids of a model input are never negative in a sensible run; embedding refuses them with a message
// where ONNX's Gather would count from the end.
Value* GatherToEmbedding(Builder& b, Op* op) {
  if (op->name() != "gather" || !IsLookup(op)) return nullptr;
  Value *table = op->operands[0], *ids = op->operands[1];
  if (!IsParam(table) || table->type.rank() < 2 || !IsFloat(table->type.dtype)) return nullptr;
  if (const HostTensor* constant = ConstantIds(ids)) {
    for (int64_t i = 0; i < constant->num_elements(); ++i) {
      if (constant->AsInt(i) < 0) return nullptr;
    }
  }
  return b.Make("embedding", {table, ids});
}

// The ids [..., 1] of which v is the one-hot form [..., n], 1 where the id is the place in the row;
// else null.
Value* IdsOfOneHot(const Value* v, int64_t n) {
  while (Op* op = v->producer) {
    const bool marks = op->name() == "where" && IsSplat(op->operands[1], 1) &&
                       IsSplat(op->operands[2], 0) && op->in(0).shape == v->type.shape;
    if (op->name() != "cast" && !marks) break;
    v = op->operands[0];
  }
  Op* equal = ProducedBy(v, "equal");
  for (int i = 0; equal && i < 2; ++i) {
    const HostTensor* places = ConstantOf(equal->operands[i]);
    Value* ids = equal->operands[1 - i];
    if (places && IsInteger(places->dtype()) && places->num_elements() == n &&
        Consecutive(*places) == 0 && places->shape().back() == n && ids->type.rank() > 0 &&
        ids->type.shape.back() == 1 && ids->type.num_elements() * n == v->type.num_elements()) {
      return ids;
    }
  }
  return nullptr;
}

// one_hot(ids) @ param -> embedding, with zeros for an id outside the table.
Value* OneHotToEmbedding(Builder& b, Op* op) {
  if (op->name() != "matmul" || op->operands.size() != 2) return nullptr;
  Value* table = op->operands[1];
  if (!IsParam(table) || table->type.rank() != 2) return nullptr;
  const int64_t n = table->type.shape[0];
  Value* ids = n > 1 ? IdsOfOneHot(op->operands[0], n) : nullptr;
  if (ids == nullptr) return nullptr;
  auto number = [&](int64_t i) { return b.Scalar(ids->type.dtype, static_cast<double>(i)); };
  const Shape& out = op->out().shape;
  Value* inside = b.Make("min", {b.Make("max", {ids, number(0)}), number(n - 1)});
  Value* is_inside = b.Cast(b.Make("equal", {ids, inside}), table->type.dtype);
  Value* rows = b.Reshape(inside, Shape(out.begin(), out.end() - 1));
  return b.Mul(b.Make("embedding", {table, rows}), is_inside);
}

}  // namespace

bool RecoverEmbeddings(Graph& graph) {
  return ApplyRules(graph, {PositionsToSlice, GatherToEmbedding, OneHotToEmbedding});
}

}  // namespace shardc::recover
