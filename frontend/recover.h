// Finds the ops that an exporter took apart.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Rewrites a freshly imported forward graph (plain ops, static shapes, constants folded) in place:
// parameters in halves that are read in a wider type alone (they become of that type), linears over
// [b, s, h], layer_norm, rms_norm, gelu, silu, embedding, rotary positions, attention, tied
// parameters; then sets `role`, `part`, `rows` and `columns` on the params. What is not recognised
// stays as it is.
// Every rewrite keeps the graph's outputs up to floating point rounding, for all inputs for which
// all is finite: what experts that tokens look up make for other tokens comes of zeros, and counts
// zero times. Parameter data is read only where it decides whether a rewrite is right: two matrices
// of the same size that may be one tied parameter, constants that may repeat one row or one number.
void RecoverPatterns(Graph& graph);

}  // namespace shardc
