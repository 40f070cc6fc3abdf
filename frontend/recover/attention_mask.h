// What stands between the scores of an attention and its softmax.
#pragma once

#include <vector>

#include "frontend/recover/match.h"

namespace shardc::recover {

// One step from the score matmul towards the softmax.
struct MaskStep {
  enum Kind { kScale, kAdd, kKeep, kFloor } kind = kScale;
  Value* value = nullptr;  // kAdd: what is added; kKeep: bool, true where the score is kept
  bool negated = false;    // kKeep: `value` is true where the score is replaced instead
  double number = 1;  // kScale: the factor; kKeep: what replaces scores; kFloor: their lower bound
};

struct RecoveredMask {
  bool causal = false;
  Value* mask = nullptr;  // null: none
  // [b, h, s, 1], dims of 1 where it does not vary; null: none. Queries of which every score is
  // replaced: they have no gradient, and no key has one from them.
  Value* replaced = nullptr;
  // The same of queries that see no key: all their scores are -infinity, and what the model gives
  // them is NaN.
  Value* unseeing = nullptr;
  double scale = 1;  // all scales together
};

// `scores` is the type of the scores, [b, h, s, t]; `nan_guard`: NaNs of the softmax are replaced
// by zeros; `sink`: a score that is never masked stands beside those of the keys, so that a row
// that sees no key gives zero. The attention op gives zero where a row sees no key: `replaced` and
// `unseeing` tell of rows of which the model makes something else, and nothing comes back where
// they cannot. Ops that the mask needs are built through the builder.
std::optional<RecoveredMask> RecoverMask(Builder& builder, const TensorType& scores,
                                         const std::vector<MaskStep>& steps, bool nan_guard,
                                         bool sink = false);

}  // namespace shardc::recover
