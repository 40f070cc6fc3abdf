// The sharding rules of the ops of a graph.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "ir/op_def.h"

namespace shardc {

// Makes a rule once for ops that are alike: layers and microbatches repeat.
class Rules {
 public:
  // The rule of the op, which has one (OpDef::rule), as long as this object lives.
  const ShardingRule& Of(const Op& op);

 private:
  // All that a rule may depend on.
  struct Entry {
    const OpDef* def = nullptr;
    Attributes attrs;
    std::vector<TensorType> operands, results;
    ShardingRule rule;
  };
  static bool Alike(const Entry& entry, const Op& op);

  std::deque<Entry> entries_;
  // By hash: the entry made last. A look-up takes one comparison.
  std::unordered_map<size_t, const Entry*> last_;
};

}  // namespace shardc
