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

// A vector up to this size does not travel alone, nor one of several results of an op up to that.
inline constexpr int64_t kBucketBytes = 64 << 10, kJointBytes = 1 << 20;

// Merges small all_reduces over the same axes, reduction, type and phase, none of which depends on
// another, into one collective of several tensors: scalars and vectors of at most `max_bytes` each
// wherever they are, at the place of the last; larger tensors, of at most kJointBytes each, when
// one op made them, maybe reshaped, at the place of the first.
void BucketSmallReductions(Graph& graph, int64_t max_bytes = kBucketBytes);

}  // namespace shardc
