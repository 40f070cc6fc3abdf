// Fusions for the runtime, on the lowered graph.
#pragma once

#include "ir/graph.h"

namespace shardc {

// matmul (or matmul_nt) by a weight of two dims whose only reader adds a bias becomes `linear`; an
// add of equal shapes whose sum a layer_norm reads next becomes `add_layer_norm` (the sum stays a
// result). Each saves a pass over memory.
void Fuse(Graph& graph);

}  // namespace shardc
