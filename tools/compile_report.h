// What `compile` says of the plan that it made, on stderr.
#pragma once

#include <string>

#include "ir/graph.h"
#include "passes/emit.h"
#include "specs/spec.h"

namespace shardc {

// Names the mesh axes over which nothing is cut. All ranks of such an axis do the same work: meant,
// as for the serial model on a mesh, or misspelt.
void WarnOfIdleAxes(const StagePrograms& programs, const Spec& spec);

// The graph's notes, and outputs that take much memory.
void PrintNotes(const Graph& graph, const StagePrograms& programs);

// In one line the mesh, instructions, memory and collectives.
void Summarise(const Graph& graph, const StagePrograms& programs, const std::string& folder);

}  // namespace shardc
