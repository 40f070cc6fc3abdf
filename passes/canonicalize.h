// Local simplifications that hold for any graph.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Applies OpDef::simplify until nothing changes, removes dead ops, merges equal ones
// (ir/merge_equal.h).
void Canonicalize(Graph& graph);

}  // namespace shardc
