// The text form of graphs: exact round trip, one op a line, shardings inside the types.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace shardc {

std::string PrintGraph(const Graph& graph);
std::string AttributeToString(const Attribute& value);  // a graph's text has it so
std::string Quoted(std::string_view text);
// Throws Diagnostic E7001 (syntax, with `file`:line:col), E7002 (unknown op), E1101 (types do not
// fit).
Graph ParseGraph(std::string_view text, const std::string& file);

}  // namespace shardc
