#include "passes/canonicalize.h"

#include <map>
#include <tuple>

#include "ir/builder.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

// A value that equals the op's only result, or null.
Value* Simplified(const Op& op) {
  std::string_view name = op.name();
  bool same = op.operands.size() == 1 && op.results.size() == 1 && op.in(0).SameTensor(op.out());
  if (name == "reshape" || name == "broadcast_to" || name == "cast" || name == "slice") {
    if (same) return op.operands[0];
  }
  if (name == "transpose") {
    const Ints& perm = op.attrs.IntList("perm");
    bool identity = true;
    for (size_t i = 0; i < perm.size(); ++i) identity &= perm[i] == static_cast<int64_t>(i);
    if (identity) return op.operands[0];
  }
  return nullptr;
}

// reshape(reshape(x)) and transpose(transpose(x)) become one.
bool Compose(Op& op, Graph& graph) {
  if (op.operands.size() != 1) return false;
  Op* inner = op.operands[0]->producer;
  if (!inner || inner->def != op.def) return false;
  if (op.name() == "transpose") {
    Ints perm = op.attrs.IntList("perm");
    for (int64_t& p : perm) p = inner->attrs.IntList("perm")[static_cast<size_t>(p)];
    op.attrs.Set("perm", std::move(perm));
  } else if (op.name() != "reshape") {
    return false;
  }
  graph.SetOperand(&op, 0, inner->operands[0]);
  return true;
}

// matmul(a, transpose(b)) with the last two dims swapped is matmul_nt(a, b), and the other way
// round.
bool FoldTranspose(Op& op, Graph& graph) {
  bool nt = op.name() == "matmul_nt";
  if (op.name() != "matmul" && !nt) return false;
  Op* t = op.operands[1]->producer;
  if (!t || t->name() != "transpose") return false;
  const Ints& perm = t->attrs.IntList("perm");
  size_t n = perm.size();
  for (size_t i = 0; i + 2 < n; ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return false;
  }
  if (n < 2 || perm[n - 1] != static_cast<int64_t>(n) - 2) return false;
  Op* folded = graph.AddOp(GetOpDef(nt ? "matmul" : "matmul_nt"), {op.operands[0], t->operands[0]},
                           {op.out()}, {}, &op);
  folded->phase = op.phase;
  folded->site = op.site;
  folded->result()->name = op.result()->name;
  graph.ReplaceAllUses(op.result(), folded->result());
  return true;
}

void MergeEqual(Graph& graph) {
  struct Key {
    const OpDef* def;
    std::vector<Value*> operands;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<Op*>> seen;
  for (auto it = graph.ops().begin(); it != graph.ops().end(); ++it) {
    Op* op = it->get();
    if (op->def->side_effect || op->def->is_state || op->results.empty()) continue;
    auto& same = seen[{op->def, op->operands}];
    bool merged = false;
    for (Op* other : same) {
      if (other->attrs == op->attrs && other->out().SameTensor(op->out())) {
        for (size_t i = 0; i < op->results.size(); ++i) {
          graph.ReplaceAllUses(op->results[i], other->results[i]);
        }
        merged = true;
        break;
      }
    }
    if (!merged) same.push_back(op);
  }
}

}  // namespace

void Canonicalize(Graph& graph) {
  graph.EraseDead();
  bool changed = true;
  while (changed) {
    changed = false;
    for (auto it = graph.ops().begin(); it != graph.ops().end();) {
      Op* op = (it++)->get();
      if (op->results.size() != 1 || !graph.HasUses(op->result())) continue;
      if (Value* v = Simplified(*op)) {
        graph.ReplaceAllUses(op->result(), v);
        changed = true;
      } else {
        changed |= Compose(*op, graph) || FoldTranspose(*op, graph);
      }
    }
    graph.EraseDead();
  }
  MergeEqual(graph);
  graph.EraseDead();
}

}  // namespace shardc
