#include "passes/sum_chains.h"

#include <ranges>
#include <vector>

#include "passes/sink_reductions.h"

namespace shardc {

const Value* AddedTo(const Graph& graph, const Value* v) {
  const Op* add = graph.OnlyUser(v);
  return add && add->name() == "add" ? add->operands[add->operands[0] == v] : nullptr;
}

SumChains::Chain SumChains::Of(const Value* term) {
  struct Step {
    const Value *from, *other, *to;
  };
  std::vector<Step> steps;
  const Value* at = term;
  Chain chain;
  while (true) {
    ++visits_;
    // What is known of a value of another type is of reductions of that type.
    auto known = at->type == term->type ? known_.find(at) : known_.end();
    if (known != known_.end()) {
      chain = known->second;
      break;
    }
    const Value* other = AddedTo(graph_, at);
    if (!other) {
      chain.all = at;
      break;
    }
    steps.push_back({at, other, at->users[0]->result()});
    at = steps.back().to;
  }
  if (!chain.own) chain.own = at;
  for (const auto& [from, other, to] : std::views::reverse(steps)) {
    if (!chain.joint && other->type == term->type && ReducedAxes(other) == axes_ &&
        graph_.OnlyUser(other)) {
      chain.joint = other;
    }
    if (to->type != term->type) chain.own = from;
    if (from->type == term->type) known_[from] = chain;
  }
  return chain;
}

}  // namespace shardc
