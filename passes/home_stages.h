// Where in a pipeline each op of a graph is best run.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace shardc {

// On whatever stages need it: what is made of inputs, constants and copies of parameters alone.
inline constexpr int kAnyStage = -1;

// By Op::id, which it sets to the place in the list: the op's own stage; where it has none, and of
// reductions over ranks, that on which most bytes of its operands are made, of several the first.
// States, constants and updates have kAnyStage.
std::vector<int> HomeStages(const Graph& graph);

}  // namespace shardc
