// What the shardings of a graph start from.
#pragma once

#include <optional>
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
// The same, asked of several: the ops in `others` make none, and where the answer is no that of the
// value is put there. Behind an activation is much of the model.
bool IsWeight(const Value* value, std::unordered_set<const Op*>& others);

// Of a dim that a value has from weights, as the columns of a product and of its bias: the axes
// that cut it in these params, in mesh order. Nothing where it has the dim from elsewhere: a batch,
// a sequence.
std::optional<AxisList> AxesOfWeights(const Value* value, int dim);
// With the axes over which a constraint cuts such a dim of its result: of the weights' those before
// the last of these of which it says nothing else.
std::optional<AxisList> AxesBesideWeights(const Op& constraint, int dim, const Mesh& mesh);

}  // namespace shardc
