// Parameters that are cut because what they are read with is.
#pragma once

#include "ir/graph.h"

namespace shardc {

// A parameter of which the spec says nothing, and of which each read part is combined, element by
// element, with values that are cut so because weights are, is cut like these: the weight of a norm
// between two products, the taps of a convolution of each channel, the rates of a state space's
// heads, a table of what each token adds to the values of attention; also where it is scaled, or
// goes through other functions with constants, before it is read. So is one that makes a much
// smaller product of such values, which is summed over the ranks (what Mamba makes of its
// channels). Its gradient then needs no all_gather. One that some op reads beside what is whole
// stays whole, as one that a rule of the spec leaves whole. Not over axes that cut inputs: the
// ranks of these have the same parameters. Runs on the forward graph, after InferLayouts.
void FollowCuts(Graph& graph);

}  // namespace shardc
