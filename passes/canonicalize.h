// Local simplifications that hold for any graph.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Removes ops without effect and dead ones, folds transposes of weights and activations into
// matmul_nt, merges equal ops (common subexpressions).
void Canonicalize(Graph& graph);

}  // namespace shardc
