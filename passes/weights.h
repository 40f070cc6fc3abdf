// What the shardings of a graph start from.
#pragma once

#include <span>
#include <unordered_set>

#include "ir/graph.h"

namespace shardc {

// Results of params and states, and of ops that read nothing else: casts and transposes of weights.
std::unordered_set<const Value*> WeightsOf(const Graph& graph);
// As if there were but these ops, in order.
std::unordered_set<const Value*> WeightsOf(std::span<Op* const> ops);

// Whether it is one of these.
bool IsWeight(const Value* value);

}  // namespace shardc
