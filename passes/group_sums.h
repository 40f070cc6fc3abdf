// Sums over stages of a pipeline.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Regroups sums of terms that several stages make, so that each adds its own first and one value of
// each has to travel, as for gradients of a parameter that several stages use. Nothing without a
// pipeline.
void GroupSums(Graph& graph);

}  // namespace shardc
