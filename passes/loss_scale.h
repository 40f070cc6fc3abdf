// Gradients that pass f16 are those of the loss times a number, so that they are neither too small
// for it nor too large.
#pragma once

#include <string>

#include "ir/builder.h"
#include "ir/graph.h"

namespace shardc {

// By what to multiply a loss of this kind, which is attached: a scalar of the graph, of its type.
// At first the weight that counts, by which its mean divides, from 1 to 2^15: the gradient of each
// term that counts is about 1 then. `trains`: an optimizer will use the gradients. Then that is
// times a state, and 2^15 where it is not known what the loss is a mean of, and it is the output
// "loss_scale"; without an optimizer such a loss has none, and null is returned.
// Throws Diagnostic E1603 where the model has such an output.
Value* LossScale(Graph& graph, const std::string& kind, const Value* loss, bool trains);

// How LossScale's state follows overflows, as torch.amp.GradScaler's scale does: it halves where
// the gradients are not `finite` (a bool), and doubles, up to 1, after each `window` steps without
// such a one; another state counts these. Nothing where there is no such state.
void FollowOverflows(Builder& b, Value* finite, int64_t window);

}  // namespace shardc
