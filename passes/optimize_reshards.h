// Simplifies what insert_reshards left.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Until nothing changes:
// - A reshard to the same sharding disappears; a reshard of a reshard that nothing else reads
//   becomes one; equal reshards of one value are merged.
// - An all_reduce whose users all cut the same way becomes a reduce_scatter (partial -> whole ->
//   cut becomes partial -> cut), a gather whose users all cut becomes an all_to_all or nothing.
// - reshard(a) + reshard(b) that nothing else reads, both being reductions, becomes reshard(a + b),
//   also where more is added in between: x + (reshard(a) + u) + (reshard(b) + v), branches that
//   run in parallel and have biases.
// - A reduction moves behind its users when all are linear in it and less travels then: where their
//   results are smaller, or are added to what is reduced anyway (sink_reductions.h).
// With `by_microbatch` reductions of several microbatches that each leave less to be kept are not
// made one: more travels, and no rank holds the whole of their sum.
// Returns how many ops and values were looked at.
int64_t OptimizeReshards(Graph& graph, bool by_microbatch = false);

}  // namespace shardc
