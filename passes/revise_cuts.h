// What propagation has decided on, once more, by what it costs.
#pragma once

#include "passes/axis_cuts.h"

namespace shardc {

// Of the axis whose turn it is, after the fixed point:
// - what is much larger than its operands is cut as its readers' other operands;
// - a value that is cut by choice and that some reader needs whole stays whole where that costs
//   less;
// - a sum over the axis of which all readers make less, linearly, is wished for partial.
void ReviseCuts(AxisCuts& cuts);

}  // namespace shardc
