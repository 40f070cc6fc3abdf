#include "passes/provenance.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/op_def.h"

namespace shardc {

int AddProvenance(Graph& graph, int parent, std::string text) {
  graph.provenance.push_back({parent, std::move(text)});
  return static_cast<int>(graph.provenance.size()) - 1;
}

std::vector<std::string> ProvenanceChain(const Graph& graph, int step) {
  constexpr size_t kHead = 3, kTail = 3;
  std::vector<int> steps;
  for (; step >= 0; step = graph.provenance[step].parent) steps.push_back(step);
  std::reverse(steps.begin(), steps.end());
  std::vector<std::string> chain;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps.size() > kHead + kTail + 1 && i == kHead) {
      size_t skipped = steps.size() - kHead - kTail;
      chain.push_back(StrCat("... ", skipped, " more ops ..."));
      i += skipped - 1;
      continue;
    }
    chain.push_back(graph.provenance[steps[i]].text);
  }
  return chain;
}

int ProvenanceOf(const Value* value, int axis) {
  return axis < static_cast<int>(value->provenance.size()) ? value->provenance[axis] : -1;
}

void SetProvenance(Value* value, int axis, int step) {
  if (axis >= static_cast<int>(value->provenance.size())) value->provenance.resize(axis + 1, -1);
  value->provenance[axis] = step;
}

void AddReasons(Strings& why, const Strings& more) {
  for (const std::string& text : more) {
    if (std::find(why.begin(), why.end(), text) == why.end()) why.push_back(text);
  }
}

std::string Describe(const Op& op) {
  std::string out(op.name());
  if (!op.site.empty()) out += " at " + op.site;
  if (op.phase != Phase::kForward) out += " (" + std::string(PhaseName(op.phase)) + ")";
  return out;
}

}  // namespace shardc
