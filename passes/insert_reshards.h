// Decides how every op runs on the mesh and makes every change of sharding explicit.
#pragma once

#include "ir/graph.h"

namespace shardc {

// In topological order, per op and axis, chooses the cheapest of: run whole; cut one factor of its
// rule that an operand or a wished result is cut along; let partial operands pass (where the op is
// linear in them). The cost is bytes moved for the operands (where one changes its cut, and other
// ops would read it so and must sum over ranks else, a share of them) and from the natural result
// to the wished one; on a tie less is computed. What is cut is gathered so that every rank does all
// the work only if nothing else is possible (weights are then the last to be), where little work
// makes it much larger and not cut so, or beside a sum that is wished for partial. Ops with a cut
// expandable factor are expanded; one that must have one stretch of a factor, and has it cut in
// segments, becomes one op for each segment; a sharding_constraint gets what it asks for and goes.
// Afterwards every op's types agree with its rule, a `reshard` (attributes why, for) stands
// wherever producer and consumer disagree, outputs are never partial, and gradients and updates are
// cut like their state: a gradient as soon as it is made, so that its other readers may use what
// the output is.
void InsertReshards(Graph& graph);

}  // namespace shardc
