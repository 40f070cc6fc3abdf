#include "passes/add_in_passing.h"

#include "ir/op_def.h"

namespace shardc {

AddsInPassing::AddsInPassing(const Graph& graph) {
  // In order: whether x is such a sum is known before.
  for (const auto& op : graph.ops()) {
    if (AddInPassing add = Find(graph, *op); add.f) found_.emplace(op.get(), add);
  }
}

AddInPassing AddsInPassing::Of(const Op& op) const {
  auto it = found_.find(&op);
  return it == found_.end() ? AddInPassing() : it->second;
}

// The id of the op that gives the value its memory's contents, or -1 where that is no instruction
// of this rank alone.
int AddsInPassing::MadeAt(const Graph& graph, const Value* v) const {
  const Op* op = v->producer;
  if (!op || op->operands.empty() || op->def->communicates || IsView(*op, graph.mesh)) return -1;
  const Op* f = Of(*op).f;
  return f ? f->id : op->id;
}

AddInPassing AddsInPassing::Find(const Graph& graph, const Op& add) const {
  if (add.name() != "add" || add.in(0) != add.out() || add.in(1) != add.out()) return {};
  for (size_t k : {1, 0}) {
    Value *x = add.operands[1 - k], *sum = add.operands[k];
    const Op* f = sum->producer;
    if (!f || static_cast<int>(f->operands.size()) != f->def->adds_to) continue;
    if (x == sum || !graph.OnlyUser(sum)) continue;
    int made = MadeAt(graph, x);
    if (made >= 0 && made < f->id) return {f, x};
  }
  return {};
}

}  // namespace shardc
