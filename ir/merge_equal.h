// Common subexpressions.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Ops with equal operands, attributes, types and place, in one phase, become the first of them; but
// for those with side effects and states. Erases what is dead. Returns whether there were any.
bool MergeEqual(Graph& graph);

}  // namespace shardc
