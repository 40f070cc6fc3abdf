// The shardings that a graph comes with.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Puts the graph on a mesh; axes of its shardings are those of the same names there. Throws
// Diagnostic E2104 for one that is not there, or a pipeline of another number of stages.
void SetMesh(Graph& graph, const Mesh& mesh);

// Gives each sharding its canonical form: what is written by hand may describe a layout otherwise,
// and passes compare descriptions.
void CanonicalizeShardings(Graph& graph);

}  // namespace shardc
