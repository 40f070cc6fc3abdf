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
// A vocabulary that is cut over ranks is left whole: between its logits and their gradient the
// statistics of each token travel. GPT-2 124M with tp=2 (batch 4 x 512) plans 1280 MiB for a rank,
// 196 of them logits; pieces would save at most 140, or 50 of 631 with full recomputation. There
// are three ways, and each costs more than that is worth:
// - two collectives for each piece, where a cross entropy may have two in all;
// - one exchange for all tokens, and each piece's logits made again after it: 10% more flops in
//   products;
// - gradients from the rank's own statistics, whose rows are scaled once all are known: that gives
//   the gradient of the product's rows, but the weight's is a sum over them, and too late to scale.
//
// On a lowered graph (LowerReshards): no collective comes to stand between the pieces. Before
// Recompute: what is chosen, and so each bit of the results, does not depend on it.
void Chunk(Graph& graph, const ChunkOptions& options = {});

}  // namespace shardc
