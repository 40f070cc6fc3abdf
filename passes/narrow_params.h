// Parameters that are read in a smaller type alone.
#pragma once

#include "ir/graph.h"

namespace shardc {

// On the serial graph, after LowerPrecision: a parameter that all its readers cast to the same
// smaller float type, that has no gradient among the outputs and is never updated, is of that type
// itself. Inference in bf16 then holds and reads half the bytes; what is computed stays the same,
// bit for bit.
void NarrowParams(Graph& graph);

}  // namespace shardc
