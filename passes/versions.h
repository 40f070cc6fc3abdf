// The values of a graph under several shardings.
#pragma once

#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// Makes `reshard` ops (attributes why, for), each version of a value once.
class Versions {
 public:
  explicit Versions(Graph& graph);

  // The value as `want` has it, made before `user`; null: for an output of the graph, as early as
  // can be. There must be a way from one of its versions.
  Value* Get(Value* value, const Sharding& want, Op* user);

  // All that there are of the value, itself among them; empty as long as it is the only one.
  std::span<Value* const> Of(const Value* value) const;

  // What propagation wants of a value, whose op may give it otherwise. Null: nothing was said.
  void SetWish(const Value* value, const Sharding& wish) { wishes_[value] = wish; }
  const Sharding* WishOf(const Value* value) const;
  // Why it is to be cut over the axis in the end (a step of Graph::provenance), where its own
  // provenance says why it is partial before.
  void SetReason(const Value* value, int axis, int step) { reasons_[{value, axis}] = step; }

  // Whether it is made of parameters and states alone.
  bool IsWeight(const Value* value) const { return weights_.contains(value); }

 private:
  const Value* Root(const Value* value) const;
  Value* Make(Value* source, const Sharding& want, Op* user, std::vector<Value*>& versions);
  // Why there is a reshard from `source` to `made`, for `user` or an output of the graph.
  Strings Explain(const Value* source, const Value* made, const Op* user) const;

  Graph& graph_;
  std::unordered_set<const Value*> weights_;
  std::unordered_map<const Value*, Sharding> wishes_;
  std::map<std::pair<const Value*, int>, int> reasons_;
  std::unordered_map<const Value*, const Value*> roots_;            // of reshard results
  std::unordered_map<const Value*, std::vector<Value*>> versions_;  // of roots, the root first
};

}  // namespace shardc
