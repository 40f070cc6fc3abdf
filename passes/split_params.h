// A fused weight whose segments want different cuts becomes several parameters.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Where the result of a cut weight (and its bias) is split, as q, k and v of a fused projection
// are, and some piece can be cut in fewer parts than others (SplitAxes, NarrowParts), or is cut in
// segments or in blocks of its own (9 heads of q by threes, as 3 of k and v), there is no one cut
// for the weight; nor is there one for the result where a
// spec cuts that, as of a role, and not all pieces can take it. Then the weight, the ops up to the
// split and the split itself give way to a weight and the same ops for each piece: `W [h, 80]`,
// split in 48, 16 and 16, to `W[0:48]`, `W[48:64]` and `W[64:80]`. Their attributes say which piece
// of which parameter they are, so that outputs and saved parameters are whole again. On the way may
// be other parameters, as a filter for each channel, constants, and other pieces. Runs on the
// forward graph after the spec is applied and before SplitAxes; does nothing where a weight or a
// value on the way is used otherwise.
void SplitParams(Graph& graph);

}  // namespace shardc
