// Segments and granules of what the spec cuts, from what the graph does with it.
#pragma once

#include "ir/graph.h"

namespace shardc {

// For every param, and every value that the spec cuts, with a cut dim without segments and granule:
// follows the dim through the graph (forward to the split or reshape that takes it apart, or, where
// it is contracted, backward through the other operand) and sets the segments and the granule with
// which these need no communication; a value only where each rank gets a granule of each segment. A
// fused `c_attn` [h, 3h] becomes `[h, 3h@tp/3]`. Large dims of params of which nothing asks
// anything are cut at multiples of 8, as a vocabulary of 50257: `50257@tp%8`.
//
// A dim that a value has from weights (AxesOfWeights) is cut beside what cuts these: the type of
// its constraint then tells of the axes of both, as `48@(tp,cp)`. Runs on the forward graph after
// the spec is applied, before states are made. Throws Diagnostic E2002 when the result does not
// fit.
void InferLayouts(Graph& graph);

}  // namespace shardc
