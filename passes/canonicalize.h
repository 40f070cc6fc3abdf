// Local simplifications that hold for any graph.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Applies OpDef::simplify until nothing changes, removes dead ops, merges equal ones (common
// subexpressions) that run on the same ranks at the same time.
void Canonicalize(Graph& graph);

// The last of these alone: what has equal operands, attributes, types and place, in one phase.
void MergeEqual(Graph& graph);

}  // namespace shardc
