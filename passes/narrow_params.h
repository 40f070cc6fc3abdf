// Parameters that are read in a smaller type alone.
#pragma once

#include "ir/graph.h"

namespace shardc {

// On the lowered graph: a parameter that all its readers cast to the same smaller float type, and
// that is never updated, is of that type itself; of one that is kept in pieces all are, or none.
// Inference in bf16, and gradients without an optimizer, then hold half the bytes of the weights
// and cast them once, when they are loaded. A gradient is of the type that it was.
void NarrowParams(Graph& graph);

// Whether the op is a cast of a parameter, which can run at any time: what it may do away with.
bool CastsParam(const Op& op);

}  // namespace shardc
