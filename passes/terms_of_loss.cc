#include "passes/terms_of_loss.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "ir/constant.h"
#include "ir/op_def.h"
#include "passes/weights.h"

namespace shardc {
namespace {

using Makers = std::unordered_set<const Op*>;

// Those of v that are among `all`.
Makers MakersOf(const Value* v, const Makers& all) {
  Makers makers;
  std::vector<const Value*> open = {v};
  while (!open.empty()) {
    const Op* op = open.back()->producer;
    open.pop_back();
    if (all.contains(op) && makers.insert(op).second) {
      open.insert(open.end(), op->operands.begin(), op->operands.end());
    }
  }
  return makers;
}

// Whether one of them that is not among `others` reads a weight.
bool ReadOwn(const std::unordered_set<const Value*>& weights, const Makers& makers,
             const Makers& others) {
  return std::ranges::any_of(makers, [&](const Op* op) {
    return !others.contains(op) &&
           std::ranges::any_of(op->operands, [&](const Value* v) { return weights.contains(v); });
  });
}

}  // namespace

bool OnlyMoves(const Op& op) {
  if (op.def->elementwise && op.operands.size() == 1 && op.in(0).shape == op.out().shape &&
      op.in(0).dtype != op.out().dtype) {
    return IsFloat(op.in(0).dtype) && IsFloat(op.out().dtype);
  }
  if (op.def->rule || op.operands.empty() || op.operands.size() != op.results.size()) return false;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    if (!op.operands[i]->type.SameTensor(op.results[i]->type)) return false;
  }
  return true;
}

std::unordered_set<const Op*> TermsAside(const Graph& graph, std::span<Op* const> all) {
  std::unordered_set<const Op*> aside;
  const Value* at = graph.FindOutput("loss");
  while (at && at->producer && at->type.rank() == 0) {
    const Op& op = *at->producer;
    std::vector<const Value*> terms(op.operands.begin(), op.operands.end());
    std::erase_if(terms, ConstantOf);
    if (OnlyMoves(op)) {
      terms = {op.operands[at->index]};
    } else if (op.name() == "add" && terms.size() == 2) {
      const Makers among(all.begin(), all.end());
      const std::unordered_set<const Value*> weights = WeightsOf(all);
      const Makers first = MakersOf(terms[0], among), second = MakersOf(terms[1], among);
      const bool own_first = ReadOwn(weights, first, second),
                 own_second = ReadOwn(weights, second, first);
      if (own_first == own_second) break;
      const Makers &kept = own_first ? first : second, &dropped = own_first ? second : first;
      std::copy_if(dropped.begin(), dropped.end(), std::inserter(aside, aside.end()),
                   [&](const Op* maker) { return !kept.contains(maker); });
      terms = {terms[own_first ? 0 : 1]};
    } else if (!op.def->elementwise) {
      break;
    }
    if (terms.size() != 1) break;
    at = terms[0];
  }
  return aside;
}

}  // namespace shardc
