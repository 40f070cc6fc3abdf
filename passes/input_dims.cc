#include "passes/input_dims.h"

#include <algorithm>

#include "ir/op_def.h"

namespace shardc {
namespace {

constexpr int kNone = -1;

// Gives the dims of the results what the dims of the operands have that share a factor with them
// alone: the first. `meet` is called with it and with each other one.
template <typename Meet>
void PassOn(const Op& op, InputDims& dims, const Meet& meet) {
  if (!op.def->rule) return;
  const ShardingRule rule = op.def->rule(op);
  std::vector<int> of_factor(rule.factors.size(), kNone);
  for (size_t i = 0; i < op.operands.size() && i < rule.operands.size(); ++i) {
    const auto known = dims.find(op.operands[i]);
    if (known == dims.end()) continue;
    for (size_t d = 0; d < rule.operands[i].size(); ++d) {
      const std::vector<int>& factors = rule.operands[i][d].factors;
      const int own = known->second[d];
      if (factors.size() != 1 || own == kNone) continue;
      int& first = of_factor[factors[0]];
      if (first == kNone) first = own;
      meet(first, own);
    }
  }
  if (std::ranges::all_of(of_factor, [](int dim) { return dim == kNone; })) return;
  for (size_t i = 0; i < op.results.size() && i < rule.results.size(); ++i) {
    std::vector<int>& of_result = dims[op.results[i]];
    for (const DimFactors& d : rule.results[i]) {
      of_result.push_back(d.factors.size() == 1 ? of_factor[d.factors[0]] : kNone);
    }
  }
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
      PassOn(*op, dims_, [&](int a, int b) { parents_[Root(b)] = Root(a); });
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

  InputDims dims_;
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
  for (const auto& op : graph.ops()) PassOn(*op, known, [](int, int) {});
  return known;
}

}  // namespace shardc
