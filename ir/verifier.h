// What holds of every graph between passes.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Throws Diagnostic E7003 naming the op: operands defined before use, operand counts, attribute
// names and kinds, inferred types equal to the stated ones up to sharding, shardings that fit the
// mesh, of collectives those that fit what they do (movement.h), unique names of params, states,
// inputs and outputs, updates of existing states with their type. With `closed_shardings` also that
// every op's operand and result shardings agree with its rule (what holds after insert_reshards).
void VerifyGraph(const Graph& graph, bool closed_shardings = false);

}  // namespace shardc
