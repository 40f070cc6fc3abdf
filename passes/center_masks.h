// Numbers that masks add to all scores of a row are taken from them.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Softmax does not see what is added to all of a row, but the log-sum-exp that an attention keeps
// for its gradient does: beside -1e6 it loses its digits, and the gradient is another function's.
// Where the largest number that a float mask adds to a row may lie between TopLimits::rounds and
// TopLimits::absorbs (by the mask's constants, and what they are chosen or multiplied by, or
// because the mask is given as an input), each such row of it is made to begin at 0, by ops before
// the first attention that has the mask. Above them, where the model's own arithmetic drops the
// scores, it stays. Runs on the serial forward graph of what is differentiated.
void CenterMasks(Graph& graph);

}  // namespace shardc
