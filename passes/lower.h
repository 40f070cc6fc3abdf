// From reshards to communication: every `reshard` becomes collectives and local ops, padding is
// cleared where it would be summed.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Replaces every reshard by a chain of local_slice, all_reduce, reduce_scatter, all_to_all and
// all_gather: slices over fresh axes first (they make the rest smaller), then reductions, moves,
// gathers, and the slices left. What begins alike in a phase is done once.
void LowerReshards(Graph& graph);

// Inserts zero_padding before ops that sum over a padded dim (and do not ignore padding
// themselves), for operands whose padding is not known to be zero. Parameters, states, inputs and
// slices have zero padding.
void ClearPadding(Graph& graph);

// A vector up to this size does not travel alone.
inline constexpr int64_t kBucketBytes = 64 << 10;

// Merges small all_reduces (at most `max_bytes` each) over the same axes, reduction, type and
// phase, none of which depends on another, into one collective of several tensors, at the place of
// the last: scalars and vectors wherever they are, larger tensors when one op made them.
void BucketSmallReductions(Graph& graph, int64_t max_bytes = kBucketBytes);

}  // namespace shardc
