// Chains of elementwise ops as one pass over memory.
#pragma once

#include "ir/graph.h"

namespace shardc {

// On the lowered graph: elementwise float ops (ScalarOpOf, and casts between floats; a comparison
// with the one `where` that reads it) on tensors of one shape and sharding that read each other's
// results, or near each other the same tensor, become one `fused_elementwise` in the place of the
// last of them, or of an earlier one where others read a result before. Values between them are
// neither written nor, but for comparisons, rounded. What one would write for another alone, which
// reads in any case what it is made of, as the backward pass does, the other makes again. Sums that
// a product makes on its way (AddsInPassing) stay. Before that elementwise ops read what
// broadcast_to stretches as it was.
void FuseElementwise(Graph& graph);

}  // namespace shardc
