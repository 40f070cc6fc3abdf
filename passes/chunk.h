// Chains of ops on values too large to exist whole.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace shardc {

struct ChunkOptions {
  int64_t least_bytes = 16 << 20;  // of a value that is worth the additional instructions
  int pieces = 0;                  // 0: as many as save memory and cost little time
};

// Where a rank's memory is at its peak, the ops around the largest values that live there are run
// for one piece of a dim after the other, if their sharding rules let them (passes/piecewise.h), if
// all that they need from elsewhere is there before them, and if the peak falls by it. So logits,
// their loss, their gradient and its products: of the logits only a piece exists at a time, and the
// weight's gradient is a running sum.
//
// On a lowered graph (LowerReshards): no collective comes to stand between the pieces. Before
// Recompute: what is chosen, and so each bit of the results, does not depend on it.
void Chunk(Graph& graph, const ChunkOptions& options = {});

}  // namespace shardc
