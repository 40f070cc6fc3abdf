// Fusions for the runtime, on the lowered graph.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Replaces ops by the fused ones whose OpDef::fuse matches; each saves a pass over memory.
void Fuse(Graph& graph);

}  // namespace shardc
