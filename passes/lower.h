// From reshards to communication: every `reshard` becomes collectives and local ops.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Replaces every reshard by a chain of local_slice, all_reduce, reduce_scatter, all_to_all and
// all_gather: slices over fresh axes first (they make the rest smaller), then reductions, moves,
// gathers, and the slices left. A dim that is cut within each of its equal segments and shall be
// cut between them, or the other way round, is seen as two for that move. What begins alike in a
// phase is done once.
void LowerReshards(Graph& graph);

}  // namespace shardc
