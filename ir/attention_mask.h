// What a float mask of an attention does to rows of scores to which it adds a large number.
#pragma once

#include <optional>
#include <vector>

#include "ir/builder.h"

namespace shardc {

// By the magnitude of a row's top, which is the largest number that its visible keys have.
struct TopLimits {
  // From here on the row's lse, which is about as large, has lost more than a thousandth of what
  // else is in it, and probabilities that are computed from it again are off by as much.
  double rounds;
  // From here on nothing is left of scores below 32: all keys that have the top count alike.
  double absorbs;
};
// For statistics of the type, f32 or f64.
TopLimits TopLimitsOf(DType statistic);

// The mask of the op `attention`; null: it has none.
Value* MaskOf(const Op& attention);

// [b or 1, h or 1, s or 1, t], in the type of the statistics: what a mask of floats adds to the
// scores, and -inf where a causal op hides the key besides.
Value* AddedToScores(Builder& b, const Op& attention);

// The top of each row of a constant mask, where nothing else hides keys; none where the tops are
// known only when the op runs.
std::optional<std::vector<double>> KnownTops(const Op& attention);

}  // namespace shardc
