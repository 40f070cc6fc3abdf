#include "passes/weights.h"

#include <algorithm>
#include <set>
#include <vector>

#include "ir/op_def.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

constexpr int kMaxDepth = 12;      // ops between a param and what is made with it
constexpr size_t kMostOps = 1000;  // that a weight is made by: what is behind an activation is more

// Adds the axes that cut the dim in params. Whether there are such params.
bool AddAxes(const Value* v, int dim, int depth, std::set<int>& axes) {
  const Op* op = v->producer;
  if (!op) return false;
  if (op->def->is_state) {
    const AxisList& own = v->type.sharding.dims[static_cast<size_t>(dim)].axes;
    axes.insert(own.begin(), own.end());
    return true;
  }
  if (!op->def->rule || depth > kMaxDepth) return false;
  const ShardingRule rule = op->def->rule(*op);
  bool from_weights = false;
  for (const int factor : rule.results[v->index][dim].factors) {
    auto has = [&](const auto& dims) { return DimOfFactor(dims, factor) >= 0; };
    // What goes through all operands is theirs alike, as the columns of a product and its bias.
    const bool alike = std::ranges::all_of(rule.operands, has);
    for (size_t i = 0; i < op->operands.size(); ++i) {
      const Value* operand = op->operands[i];
      if (!has(rule.operands[i]) || (!alike && !IsWeight(operand))) continue;
      from_weights |= AddAxes(operand, DimOfFactor(rule.operands[i], factor), depth + 1, axes);
    }
  }
  return from_weights;
}

AxisList ListOf(const std::set<int>& axes) {
  AxisList list;
  for (int a : axes) list.push_back(a);
  return list;
}

}  // namespace

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
  std::unordered_set<const Op*> others;
  return IsWeight(value, others);
}

bool IsWeight(const Value* value, std::unordered_set<const Op*>& others) {
  auto no = [&] {
    if (value->producer) others.insert(value->producer);
    return false;
  };
  std::unordered_set<const Op*> seen;  // what is made of one weight may be put together again
  std::vector<const Value*> waiting = {value};
  while (!waiting.empty()) {
    const Op* op = waiting.back()->producer;
    waiting.pop_back();
    if (!op || (op->operands.empty() && !op->def->is_state) || others.contains(op)) return no();
    if (op->def->is_state || !seen.insert(op).second) continue;
    if (seen.size() > kMostOps) return no();
    waiting.insert(waiting.end(), op->operands.begin(), op->operands.end());
  }
  return true;
}

std::optional<AxisList> AxesOfWeights(const Value* value, int dim) {
  std::set<int> axes;
  if (!AddAxes(value, dim, 0, axes)) return std::nullopt;
  return ListOf(axes);
}

std::optional<AxisList> AxesBesideWeights(const Op& constraint, int dim, const Mesh& mesh) {
  std::set<int> axes;
  if (!AddAxes(constraint.result(), dim, 0, axes)) return std::nullopt;
  const Sharding& asked = constraint.out().sharding;
  const AxisList& own = asked.dims[static_cast<size_t>(dim)].axes;
  std::erase_if(axes, [&](int a) {
    return a > own.back() || asked.Uses(a) || Constrains(constraint, a, mesh);
  });
  axes.insert(own.begin(), own.end());
  return ListOf(axes);
}

}  // namespace shardc
