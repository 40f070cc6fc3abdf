// Gives parameters and inputs the shardings that the spec asks for.
#pragma once

#include "ir/graph.h"
#include "specs/spec.h"

namespace shardc {

// Runs on the forward graph (loss attached), after graph.mesh is set. Sets the types of params and
// inputs, the attribute `decay` where the spec says, provenance; where a rule speaks of a value
// (`value`), or wants the result of the op that uses a parameter whole over the axes of the rule
// (compute_spec, output_replicate), a sharding_constraint stands behind the value, or the op and
// its bias. Rules over axes that the spec declares and the mesh lacks (size 1) cut nothing. Throws
// Diagnostic E2102 (a rule matches nothing; the nearest names), E2103 (a dim that the tensor does
// not have), E2104 (unknown axis), E2106 (a dim too small for its axes), E2107 (two rules for one
// value), E2130 (two names of one parameter, cut in different ways), E2002.
void ApplySpec(Graph& graph, const Spec& spec);

}  // namespace shardc
