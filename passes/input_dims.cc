#include "passes/input_dims.h"

#include <algorithm>

#include "ir/op_def.h"

namespace shardc {
namespace {

constexpr int kNone = -1;

// What a factor of an op runs along, as far as its operands tell.
std::vector<int> AlongFactors(const Op& op, const ShardingRule& rule, const InputDims& known) {
  std::vector<int> along(rule.factors.size(), kNone);
  for (size_t i = 0; i < op.operands.size() && i < rule.operands.size(); ++i) {
    auto it = known.find(op.operands[i]);
    if (it == known.end()) continue;
    for (size_t d = 0; d < rule.operands[i].size(); ++d) {
      const std::vector<int>& factors = rule.operands[i][d].factors;
      if (factors.size() == 1 && it->second[d] != kNone && along[factors[0]] == kNone) {
        along[factors[0]] = it->second[d];
      }
    }
  }
  return along;
}

}  // namespace

InputDims FindInputDims(const Graph& graph) {
  InputDims known;
  for (const auto& input : graph.inputs()) {
    std::vector<int>& dims = known[input.get()];
    for (int d = 0; d < input->type.rank(); ++d) dims.push_back(d);
  }
  for (const auto& op : graph.ops()) {
    if (!op->def->rule) continue;
    const ShardingRule rule = op->def->rule(*op);
    const std::vector<int> along = AlongFactors(*op, rule, known);
    if (std::all_of(along.begin(), along.end(), [](int dim) { return dim == kNone; })) continue;
    for (size_t i = 0; i < op->results.size() && i < rule.results.size(); ++i) {
      std::vector<int> dims;
      for (const DimFactors& d : rule.results[i]) {
        dims.push_back(d.factors.size() == 1 ? along[d.factors[0]] : kNone);
      }
      known[op->results[i]] = std::move(dims);
    }
  }
  return known;
}

}  // namespace shardc
