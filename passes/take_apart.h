// Ops of which a rank must have one stretch of a factor.
#pragma once

#include <vector>

#include "ir/builder.h"
#include "passes/layout.h"

namespace shardc {

// Of an op that is cut in segments along a factor (Factor::contiguous): one op for each segment,
// made by the builder in the op's place, whose results are put together, or added up. Returns one
// value per result. What is made of a segment is cut over the axes of the cut, evenly.
std::vector<Value*> TakeApart(Builder& builder, const Op& op, const ShardingRule& rule,
                              const FactorCut& cut);

}  // namespace shardc
