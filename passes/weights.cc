#include "passes/weights.h"

#include <algorithm>
#include <vector>

#include "ir/op_def.h"
#include "passes/numbering.h"

namespace shardc {

std::unordered_set<const Value*> WeightsOf(const Graph& graph) { return WeightsOf(OpsOf(graph)); }

std::unordered_set<const Value*> WeightsOf(std::span<Op* const> ops) {
  std::unordered_set<const Value*> weights;
  for (const Op* op : ops) {
    const bool made =
        !op->operands.empty() && std::all_of(op->operands.begin(), op->operands.end(),
                                             [&](const Value* v) { return weights.contains(v); });
    if (op->def->is_state || made) weights.insert(op->results.begin(), op->results.end());
  }
  return weights;
}

bool IsWeight(const Value* value) {
  std::unordered_set<const Op*> seen;  // what is made of one weight may be put together again
  std::vector<const Value*> waiting = {value};
  while (!waiting.empty()) {
    const Op* op = waiting.back()->producer;
    waiting.pop_back();
    if (!op || (op->operands.empty() && !op->def->is_state)) return false;
    if (op->def->is_state || !seen.insert(op).second) continue;
    waiting.insert(waiting.end(), op->operands.begin(), op->operands.end());
  }
  return true;
}

}  // namespace shardc
