#include "passes/provenance.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

// How much of a long chain is told: ProvenanceStep::third ends the head.
constexpr size_t kHead = 3, kTail = 3;

}  // namespace

int AddProvenance(Graph& graph, int parent, std::string text) {
  const int step = static_cast<int>(graph.provenance.size());
  int depth = 0, third = step;
  if (parent >= 0) {
    const ProvenanceStep& before = graph.provenance[parent];
    depth = before.depth + 1;
    if (depth >= static_cast<int>(kHead)) third = before.third;
  }
  graph.provenance.push_back({parent, std::move(text), depth, third});
  return step;
}

std::vector<std::string> ProvenanceChain(const Graph& graph, int step) {
  std::vector<std::string> chain;  // the last step first
  const size_t length = step < 0 ? 0 : static_cast<size_t>(graph.provenance[step].depth) + 1;
  const bool is_long = length > kHead + kTail + 1;
  for (; step >= 0; step = graph.provenance[step].parent) {
    if (is_long && chain.size() == kTail) {
      chain.push_back(StrCat("... ", length - kHead - kTail, " more ops ..."));
      step = graph.provenance[step].third;
    }
    chain.push_back(graph.provenance[step].text);
  }
  std::reverse(chain.begin(), chain.end());
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
