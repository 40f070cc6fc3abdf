// Parameters that are read in a smaller type alone.
#pragma once

#include "ir/graph.h"

namespace shardc {

// On the lowered graph, before fusion: a parameter that all its readers cast to the same smaller
// float type, that has no gradient among the outputs and is never updated, is of that type itself;
// of one that is kept in pieces all are, or none. Inference in bf16 then holds and reads half the
// bytes of its weights.
void NarrowParams(Graph& graph);

}  // namespace shardc
