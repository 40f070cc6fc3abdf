// What of a model stays whole, unasked.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Where axes cut weights, and no inputs, and a part of the weights that counts has no role by which
// a rule could mean them and is cut over none of these axes, a note says so: each rank holds, and
// computes, all of it. Runs on the forward graph, when all cuts of parameters are known.
void NoteWhole(Graph& graph);

}  // namespace shardc
