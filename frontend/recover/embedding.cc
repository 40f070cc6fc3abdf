#include <algorithm>
#include <numeric>

#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

// What the integers of a constant are once its explicit broadcasts are taken off, or null.
const HostTensor* ConstantIds(Value* ids) {
  while (Op* broadcast = ProducedBy(ids, "broadcast_to")) ids = broadcast->operands[0];
  const HostTensor* data = ConstantOf(ids);
  return data && IsInteger(data->dtype()) ? data : nullptr;
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
  const int64_t untrained = op->attrs.Int("padding_idx", -1);
  if (untrained >= start && untrained < start + count) return nullptr;
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
  Attributes attrs = op->attrs;
  attrs.Erase("axis");
  return b.Make("embedding", {table, ids}, std::move(attrs));
}

// one_hot(ids) @ param -> embedding, with zeros for an id outside the table.
Value* OneHotToEmbedding(Builder& b, Op* op) {
  if (op->name() != "matmul" || op->operands.size() != 2) return nullptr;
  Value* table = op->operands[1];
  if (!IsParam(table) || table->type.rank() != 2) return nullptr;
  const int64_t n = table->type.shape[0];
  Value* ids = n > 1 ? IdsOfOneHot(op->operands[0], n) : nullptr;
  if (ids == nullptr) return nullptr;
  const Shape& out = op->out().shape;
  const auto [inside, is_inside] = WithinTable(b, ids, n, table->type.dtype);
  Value* rows = b.Reshape(inside, Shape(out.begin(), out.end() - 1));
  return b.Mul(b.Make("embedding", {table, rows}), is_inside);
}

}  // namespace

bool RecoverEmbeddings(Graph& graph) {
  return ApplyRules(graph, {PositionsToSlice, GatherToEmbedding, OneHotToEmbedding});
}

}  // namespace shardc::recover
