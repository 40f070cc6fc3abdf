// From the lowered graph to the programs that ranks run.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "ir/program.h"

namespace shardc {

// `graph` is lowered (CompileGraph): every type has its final sharding, no `reshard` is left. Gives
// the body for rank 0 with its memory planned; the other ranks' programs differ in `rank` only. Of
// a graph without a pipeline.
Program EmitProgram(const Graph& graph);

// The programs of all ranks: those of a stage differ in `rank` only.
struct StagePrograms {
  std::vector<Program> stages;  // each for the first rank of its stage; without a pipeline one
  int axis = -1;                // of the mesh: a rank's coordinate along it is its stage

  size_t StageOf(int64_t rank) const;
};
StagePrograms EmitStages(const Graph& graph);

}  // namespace shardc
