// Following a value forward, by the sharding rules of the ops that read it.
#pragma once

#include "ir/op_def.h"

namespace shardc {

// Calls visit(op, its rule, which operand the value is) for each use of the value by an op of the
// forward that has a rule, until it returns true. Returns whether it did.
template <typename Visit>
bool AnyForwardUse(const Value* value, const Visit& visit) {
  for (const Op* user : value->users) {
    if (user->phase != Phase::kForward || !user->def->rule) continue;
    const ShardingRule rule = user->def->rule(*user);
    for (size_t i = 0; i < user->operands.size(); ++i) {
      if (user->operands[i] == value && visit(*user, rule, i)) return true;
    }
  }
  return false;
}

}  // namespace shardc
