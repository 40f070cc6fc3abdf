// The probabilities of an attention, and what a model does to them before it multiplies by them.
#pragma once

#include <optional>
#include <vector>

#include "frontend/recover/attention_mask.h"

namespace shardc::recover {

struct Probabilities {
  Op* softmax = nullptr;
  Value* scores = nullptr;  // what it is a softmax of, but for the sink
  Value* sink = nullptr;    // [b, h, s, 1], a score behind those of all keys, whose probability is
                            // left out; null: none
  Op* dropout = nullptr;
  bool guard = false;  // NaNs, of rows of scores that are all -infinity, are replaced by zeros
  MaskStep again;      // kKeep: those of other keys are replaced by zeros, as Keras does
};

// What p is; nothing where that is no softmax along the last dim, or where another reads something
// on the way, which would be computed twice.
std::optional<Probabilities> FindProbabilities(Value* p);

// Whether probabilities that are zero for the other keys `again` are those of the scores that
// `steps` mask, but for rows that see no key: these are zero.
bool OnlyMaskedBy(const std::vector<MaskStep>& steps, const MaskStep& again);

}  // namespace shardc::recover
