// In which order mesh axes have their turns.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Puts the axes of the mesh in an order in which, of each dim, those that cut it first come first:
// as the spec lists them, and what cuts weights before what a constraint cuts their products by
// besides (heads over tp, then over cp). The passes that decide on shardings take axes in mesh
// order. Axes of which nothing says so keep theirs, so that most meshes stay as they are.
//
// Runs after the spec is applied. Ranks are numbered otherwise until RestoreAxes. Throws Diagnostic
// E2105 where the spec lists the same axes in two orders.
void OrderAxes(Graph& graph);

// Gives the axes the order that they have in `mesh`, of which some may be split (SplitAxes) since.
void RestoreAxes(Graph& graph, const Mesh& mesh);

}  // namespace shardc
