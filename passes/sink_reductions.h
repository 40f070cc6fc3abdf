// Moves reductions along linear ops to where the least travels.
#pragma once

#include "ir/graph.h"

namespace shardc {

// The axes over which the value, the result of a reshard, was summed, whatever else the reshard
// does to dims; none when it is no such result.
AxisList SummedAxes(const Value* value);
// The same where the reshard does nothing else; else none.
AxisList ReducedAxes(const Value* value);

// Each reduction whose users are linear in it moves behind them, and behind those that are linear
// in their results, as far as saves bytes: where the results are smaller, or are added to what is
// reduced over the same axes anyway. The gradient of a key that several ranks share is reduced as
// the gradient of its weight, and as a part of the one all_reduce of the layer's input. The outputs
// of experts are reduced as their sum; a bias that is added to each before is divided among the
// ranks. At most so many move, and `most` is less by those that did: each is to save bytes, but
// what it saves is an estimate. `visits` is more by the ops and values that were
// looked at. Returns whether any moved.
bool SinkReductions(Graph& graph, size_t& most, int64_t& visits);

}  // namespace shardc
