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

// Which dims of all values run along each other, both ways.
class DimClasses {
 public:
  explicit DimClasses(const Graph& graph) {
    for (const auto& input : graph.inputs()) {
      std::vector<int>& dims = dims_[input.get()];
      for (int d = 0; d < input->type.rank(); ++d) dims.push_back(New());
    }
    for (const auto& op : graph.ops()) {
      if (op->def->rule) Join(*op, op->def->rule(*op));
    }
  }

  int Of(const Value* input, int dim) { return Root(dims_.at(input)[dim]); }

 private:
  int New() {
    parents_.push_back(static_cast<int>(parents_.size()));
    return parents_.back();
  }
  int Root(int c) {
    while (parents_[c] != c) {
      int& up = parents_[c];
      c = up = parents_[up];
    }
    return c;
  }

  void Join(const Op& op, const ShardingRule& rule) {
    std::vector<int> of_factor(rule.factors.size(), kNone);
    for (size_t i = 0; i < op.operands.size() && i < rule.operands.size(); ++i) {
      auto known = dims_.find(op.operands[i]);
      if (known == dims_.end()) continue;
      for (size_t d = 0; d < rule.operands[i].size(); ++d) {
        const std::vector<int>& factors = rule.operands[i][d].factors;
        const int own = known->second[d];
        if (factors.size() != 1 || own == kNone) continue;
        int& joint = of_factor[factors[0]];
        if (joint == kNone) joint = own;
        parents_[Root(own)] = Root(joint);
      }
    }
    for (size_t i = 0; i < op.results.size() && i < rule.results.size(); ++i) {
      std::vector<int>& dims = dims_[op.results[i]];
      for (const DimFactors& d : rule.results[i])
        dims.push_back(d.factors.size() == 1 ? of_factor[d.factors[0]] : kNone);
    }
  }

  std::unordered_map<const Value*, std::vector<int>> dims_;
  std::vector<int> parents_;
};

}  // namespace

std::set<const Value*> InputsOfNoExample(const Graph& graph) {
  std::set<const Value*> found, vectors;
  for (const auto& input : graph.inputs()) {
    if (input->type.rank() != 1) continue;
    (input->type.num_elements() == 1 ? found : vectors).insert(input.get());
  }
  if (vectors.empty()) return found;
  DimClasses classes(graph);
  for (const Value* vector : vectors) {
    bool first = false, later = false;
    for (const auto& input : graph.inputs()) {
      for (int d = 0; d < input->type.rank() && input->type.rank() > 1; ++d)
        if (classes.Of(input.get(), d) == classes.Of(vector, 0)) (d == 0 ? first : later) = true;
    }
    if (later && !first) found.insert(vector);
  }
  return found;
}

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
