// Zeros in padding that would be summed.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Inserts zero_padding before ops that sum over a padded dim (and do not ignore padding
// themselves), for operands whose padding is not known to be zero. Parameters, states, inputs and
// slices have zero padding. Runs on the lowered graph.
void ClearPadding(Graph& graph);

}  // namespace shardc
