// The text form of graphs: exact round trip, one op a line, shardings inside the types.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace shardc {

std::string PrintGraph(const Graph& graph);
// Throws Diagnostic E7001 (syntax, with `file`:line:col), E7002 (unknown op), E1101 (types do not
// fit).
Graph ParseGraph(std::string_view text, const std::string& file);

// Throws Diagnostic E7003 naming the op: operands defined before use, operand counts, attribute
// names and kinds, inferred types equal to the stated ones up to sharding, shardings that fit the
// mesh, unique names of params, states, inputs and outputs, updates of existing states with their
// type. With `closed_shardings` also that every op's operand and result shardings agree with its
// rule (what holds after insert_reshards).
void VerifyGraph(const Graph& graph, bool closed_shardings = false);

}  // namespace shardc
