// Ways from a model's inside to the loss that are none of the model's.
#pragma once

#include <span>
#include <unordered_set>

#include "ir/graph.h"

namespace shardc {

// Whether results are the operands, elsewhere on the mesh or in another float type.
bool OnlyMoves(const Op& op);

// Of `all`, in order, what is only for terms of the loss that read no weight but those of the
// others, as they have that balance experts or keep logits small.
std::unordered_set<const Op*> TermsAside(const Graph& graph, std::span<Op* const> all);

}  // namespace shardc
