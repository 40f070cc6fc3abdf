// Simplifies what insert_reshards left.
#pragma once

#include "ir/graph.h"

namespace shardc {

// - a reshard to the same sharding disappears; a reshard of a reshard that nothing else reads
// becomes one;
// - equal reshards of one value are merged;
// - an all_reduce whose users all cut the same way becomes a reduce_scatter (partial -> whole ->
// cut
//   becomes partial -> cut), a gather whose users all cut becomes an all_to_all or nothing;
// - a sum of two reductions, reshard(a) + reshard(b), that nothing else reads becomes reshard(a +
// b), also
//   across x + reshard(a) + reshard(b) (residual branches that run in parallel).
void OptimizeReshards(Graph& graph);

}  // namespace shardc
