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

}  // namespace

bool RecoverEmbeddings(Graph& graph) {
  return ApplyRules(graph, {PositionsToSlice, GatherToEmbedding});
}

}  // namespace shardc::recover
