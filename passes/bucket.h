// Small sums over ranks that travel together.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace shardc {

// A vector up to this size does not travel alone, nor one of several results of an op up to that.
inline constexpr int64_t kBucketBytes = 64 << 10, kJointBytes = 1 << 20;

// Merges small all_reduces over the same axes, reduction, type and phase, of and on the same stage
// of a pipeline (HomeStages), none of which depends on another, into one collective of several
// tensors: scalars and vectors of at most `max_bytes` each wherever they are, at the place of the
// last, and views of them behind it; larger tensors, of at most kJointBytes each, when one op made
// them, maybe reshaped, or turned by rotary positions and the like, at the place of the first. Runs
// on the lowered graph.
void BucketSmallReductions(Graph& graph, int64_t max_bytes = kBucketBytes);

}  // namespace shardc
