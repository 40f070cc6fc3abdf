// The shardings that the rules of a spec give tensors.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "ir/graph.h"
#include "passes/counted_dims.h"
#include "specs/spec.h"

namespace shardc {

class RuleCuts {
 public:
  // For a graph whose mesh is set; its notes say what stays whole though a rule cuts it.
  RuleCuts(Graph& graph, const Spec& spec) : graph_(graph), spec_(spec) {}

  // The sharding that a rule gives a tensor, whose dims it counts so; `what` names it in messages.
  // Throws Diagnostic E2103 (no such dim), E2104 (no such axis), E2106 (fewer elements than
  // parts), E2130 (another size, or two ways to cut one dim), E2002.
  Sharding Cut(const SpecRule& rule, const Value* value, const CountedDims& counted,
               const std::string& what);

  // The axes of the mesh that the rule names.
  Strings AxesOf(const SpecRule& rule) const;

 private:
  std::optional<int> Axis(const SpecRule& rule, const std::string& name) const;
  std::vector<int64_t> BalancedSegments(const SpecRule& rule, const CutDim& cut, int64_t size);
  bool HasStretchOf(int64_t size);
  void StaysWhole(const SpecRule& rule, const CutDim& cut, const std::string& what, int64_t parts);

  Graph& graph_;
  const Spec& spec_;
  std::optional<std::set<int64_t>> stretches_;  // sizes of factors of which ops need a stretch
  std::set<const SpecRule*> too_fine_;          // that a note is about
};

}  // namespace shardc
