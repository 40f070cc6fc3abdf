// Where the part of an attention that a call has lies in the whole: kernels are given local
// tensors, and dropout and a causal mask depend on places. The attributes "origin" and "whole" are
// those of the probabilities [b, heads, queries, keys], of which an op may itself have a part.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/kernel_call.h"

namespace shardc {

// Where the local probabilities lie in the whole tensor: (b, h, i, j) at
// batch[b] + head[h] + query[i] + j. For padding anywhere.
struct ProbabilityPlaces {
  std::vector<int64_t> batch, head, query;
};
// `rows`: a view [b, heads, queries, ..], or with heads and queries the other way round; `keys`: of
// which there are as many.
ProbabilityPlaces PlacesOfProbabilities(const KernelCall& call, const TensorView& rows,
                                        bool heads_first, int64_t keys);

// A causal mask leaves query i the keys j <= i + this: the ends of queries and keys meet. Of an op
// with so many queries, counted from its own first one.
int64_t CausalDiagonal(const Attributes& attrs, int64_t queries, int64_t keys);
// ... of a call, counted from the first local one.
int64_t CausalDiagonal(const KernelCall& call, const TensorView& rows, bool heads_first,
                       int64_t keys);

}  // namespace shardc
