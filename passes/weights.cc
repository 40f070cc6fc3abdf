#include "passes/weights.h"

#include <algorithm>

#include "ir/op_def.h"

namespace shardc {

std::unordered_set<const Value*> WeightsOf(const Graph& graph) {
  std::unordered_set<const Value*> weights;
  for (const auto& op : graph.ops()) {
    const bool made =
        !op->operands.empty() && std::all_of(op->operands.begin(), op->operands.end(),
                                             [&](const Value* v) { return weights.contains(v); });
    if (op->def->is_state || made) weights.insert(op->results.begin(), op->results.end());
  }
  return weights;
}

bool IsWeight(const Value* value) {
  const Op* op = value->producer;
  if (!op || op->def->is_state) return op != nullptr;
  return !op->operands.empty() && std::all_of(op->operands.begin(), op->operands.end(), IsWeight);
}

}  // namespace shardc
