#include "ir/merge_equal.h"

#include <functional>
#include <unordered_map>

#include "ir/hash_attributes.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

size_t HashOf(const Op& op) {
  size_t hash = CombinedHash(std::hash<const void*>()(op.def), HashOf(op.attrs));
  for (const Value* v : op.operands) hash = CombinedHash(hash, std::hash<const void*>()(v));
  return hash;
}

// Of one phase: what the backward repeats of the forward is there to free memory. Types too: where
// a reshard goes is said nowhere else.
bool SameOp(const Op& a, const Op& b) {
  return a.def == b.def && a.phase == b.phase && a.operands == b.operands && a.out() == b.out() &&
         a.attrs == b.attrs && a.RunsWith(b);
}

}  // namespace

bool MergeEqual(Graph& graph) {
  std::unordered_multimap<size_t, Op*> seen;
  bool changed = false;
  for (const auto& owned : graph.ops()) {
    Op* op = owned.get();
    if (op->def->side_effect || op->def->is_state || op->results.empty()) continue;
    const size_t hash = HashOf(*op);
    auto [begin, end] = seen.equal_range(hash);
    const Op* earlier = nullptr;
    for (auto it = begin; it != end && earlier == nullptr; ++it) {
      if (SameOp(*it->second, *op)) earlier = it->second;
    }
    if (earlier == nullptr) {
      seen.emplace(hash, op);
      continue;
    }
    for (size_t i = 0; i < op->results.size(); ++i) {
      graph.ReplaceAllUses(op->results[i], earlier->results[i]);
    }
    changed = true;
  }
  graph.EraseDead();
  return changed;
}

}  // namespace shardc
