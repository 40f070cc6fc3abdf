// Values that the backward can make again for next to nothing.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Where a gradient makes a value of the forward again on its way (OpDef::makes_again), as that of a
// norm does with the norm's result, which the products behind it read again for their weights: lets
// it, and moves these readers behind it, so that the value, or what a cast or views made of it,
// need not live until the backward. Results have the same bits.
//
// Only where what a rank holds at its peak becomes less: behind the last norm, say, the gradient of
// the logits would have to wait for the readers. And only where no reader is a collective, and none
// could have run while what the gradient needs travels: with tensor parallelism a weight's gradient
// is computed while an all_reduce of the operand's is under way, which is worth more.
//
// On a lowered graph, before casts are folded and ops are fused.
void MakeAgain(Graph& graph);

}  // namespace shardc
