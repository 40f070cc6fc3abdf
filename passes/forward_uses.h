// Following a value forward, by the sharding rules of the ops that read it.
#pragma once

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>

#include "ir/op_def.h"

namespace shardc {

// The sharding rules of ops, made once for each: of what joins very many values they are long. As
// long as the ops stay as they are.
class RulesOfOps {
 public:
  const ShardingRule& Of(const Op& op) {
    auto [rule, fresh] = rules_.try_emplace(&op);
    if (fresh) rule->second = op.def->rule(op);
    return rule->second;
  }

 private:
  std::unordered_map<const Op*, ShardingRule> rules_;
};

// Whether it holds for one of a value's users. One that reads it many times, one after the other,
// as what joins very many does, is asked once.
template <typename Holds>
bool AnyUser(std::span<Op* const> users, const Holds& holds) {
  const Op* before = nullptr;
  return std::ranges::any_of(
      users, [&](const Op* user) { return std::exchange(before, user) != user && holds(*user); });
}

// Calls visit(op, its rule, which operand the value is) for each use of the value by an op of the
// forward that has a rule, until it returns true. Returns whether it did.
template <typename Visit>
bool AnyForwardUse(const Value* value, RulesOfOps& rules, const Visit& visit) {
  return AnyUser(value->users, [&](const Op& user) {
    if (user.phase != Phase::kForward || !user.def->rule) return false;
    const ShardingRule& rule = rules.Of(user);
    for (size_t i = 0; i < user.operands.size(); ++i) {
      if (user.operands[i] == value && visit(user, rule, i)) return true;
    }
    return false;
  });
}

// The answer to a question, in a map of the answers that are known: what is reached by many ways is
// asked once, since steps of a sequence share weights, and are joined.
template <typename Answers, typename Ask>
auto Once(Answers& answers, const typename Answers::key_type& question, const Ask& ask) {
  if (auto known = answers.find(question); known != answers.end()) return known->second;
  return answers.emplace(question, ask()).first->second;
}

}  // namespace shardc
