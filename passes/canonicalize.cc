#include "passes/canonicalize.h"

#include <map>
#include <tuple>

#include "ir/builder.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

bool Simplify(Graph& graph, Op* op) {
  if (!op->def->simplify || !graph.HasUses(op->result())) return false;
  Builder b(graph, op);
  b.phase = op->phase;
  b.BelongWith(*op);
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

void MergeEqual(Graph& graph) {
  struct Key {
    const OpDef* def;
    Phase phase;  // what the backward repeats of the forward is there to free memory
    std::vector<Value*> operands;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<Op*>> seen;
  for (auto it = graph.ops().begin(); it != graph.ops().end(); ++it) {
    Op* op = it->get();
    if (op->def->side_effect || op->def->is_state || op->results.empty()) continue;
    auto& same = seen[{op->def, op->phase, op->operands}];
    bool merged = false;
    for (Op* other : same) {
      // Types too: where a reshard goes is said nowhere else.
      if (other->attrs == op->attrs && other->out() == op->out() && other->RunsWith(*op)) {
        for (size_t i = 0; i < op->results.size(); ++i) {
          graph.ReplaceAllUses(op->results[i], other->results[i]);
        }
        merged = true;
        break;
      }
    }
    if (!merged) same.push_back(op);
  }
  graph.EraseDead();
}

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
