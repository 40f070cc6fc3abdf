// The shardings that a graph comes with.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Visits inputs, and results of ops in order.
void ForEachValue(const Graph& graph, const auto& visit) {
  for (const auto& input : graph.inputs()) visit(input.get());
  for (const auto& op : graph.ops()) {
    for (Value* r : op->results) visit(r);
  }
}

// Puts the graph on a mesh; axes of its shardings, and of the reasons for these, are those of the
// same names there. Throws Diagnostic E2104 for one that is not there, or a pipeline of another
// number of stages.
void SetMesh(Graph& graph, const Mesh& mesh);

// Gives each sharding its canonical form: what is written by hand may describe a layout otherwise,
// and passes compare descriptions.
void CanonicalizeShardings(Graph& graph);

}  // namespace shardc
