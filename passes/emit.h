// From the lowered graph to the program that every rank runs.
#pragma once

#include "ir/graph.h"
#include "ir/program.h"

namespace shardc {

// `graph` is lowered (CompileGraph): every type has its final sharding, no `reshard` is left. Gives
// the body for rank 0 with its memory planned; the other ranks' programs differ in `rank` only.
Program EmitProgram(const Graph& graph);

}  // namespace shardc
