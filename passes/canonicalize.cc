#include "passes/canonicalize.h"

#include "ir/builder.h"
#include "ir/merge_equal.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

bool Simplify(Graph& graph, Op* op) {
  if (!op->def->simplify || !graph.HasUses(op->result())) return false;
  Builder b(graph, op, *op);
  Value* equal = op->def->simplify(b, *op);
  if (!equal) return false;
  bool made = graph.Previous(op) == equal->producer && equal->producer && equal->users.empty();
  if (made) {
    equal->name = op->result()->name;
    equal->type.sharding = op->out().sharding;
  }
  graph.ReplaceAllUses(op->result(), equal);
  return true;
}

}  // namespace

void Canonicalize(Graph& graph) {
  graph.EraseDead();
  bool changed = true;
  while (changed) {
    changed = false;
    for (auto it = graph.ops().begin(); it != graph.ops().end();) {
      Op* op = (it++)->get();
      changed |= Simplify(graph, op);
    }
    graph.EraseDead();
  }
  MergeEqual(graph);
}

}  // namespace shardc
