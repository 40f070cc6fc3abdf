// Propagates shardings over the whole graph, both ways, to a fixed point.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Sets the sharding of every value's type that follows from what is given: params, states, inputs
// and results of reshard ops keep theirs (the spec's word), those of a sharding_constraint over the
// axes that it names; an update's operand is as its state is, and a gradient that is an output cut
// where its parameter is; an op's operands and results agree on which of its factors an axis cuts.
// Axes are treated one by one, in mesh order; ops in priority order: those that use weights, then
// those that pass every dim through, then the rest. What nothing asks for stays whole, and so does
// what would be gathered where that costs more than to gather what it is made of. What is much
// larger than its operands is cut as its readers' other operands; a sum over the axis is wished for
// partial where all that read it make less of it, linearly. Shardings are wishes until
// insert_reshards has chosen how each op runs. Throws Diagnostic E2104 for a constraint over an
// axis that the mesh lacks, E2106 for one that does not fit beside what other axes do to the dim.
// One of a role that its readers do not take, or that does not fit, says nothing over that axis
// then, and a note tells of it.
void PropagateShardings(Graph& graph);

}  // namespace shardc
