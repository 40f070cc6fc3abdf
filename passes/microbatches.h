// The batch in pieces, one after the other.
#pragma once

#include "ir/graph.h"
#include "specs/spec.h"

namespace shardc {

// Runs the forward graph for `spec.count` equal pieces of the batch: ops that read it, or what is
// made of it, are there once for each piece (Op::microbatch), as their sharding rules say. The
// batch is dim 0 of the inputs: of those of the commonest size that ops read, and of what is tied
// to them by the ops. Sums over the examples are summed over the pieces, outputs put together
// again; what depends on no weight and is needed whole (how many labels count) stays whole. The
// pieces stand in falling order, so that differentiation, which goes backwards, sums gradients from
// the first piece on.
//
// An input that is cut over ranks is cut so within each piece: its dim gets so many segments.
//
// Returns what `loss` (or null) has become. Throws Diagnostic E2110 for a count that does not
// divide the batch or leaves ranks without an example; E2111 where an op mixes examples, or a loss
// is no sum over them (times or over what depends on no weight).
Value* CutMicrobatches(Graph& graph, const MicrobatchSpec& spec, Value* loss);

}  // namespace shardc
