// Outputs that compiling adds to those of the model.
#pragma once

#include <string>

#include "ir/graph.h"

namespace shardc {

// Throws Diagnostic E1603 where the graph has an output of this name.
void AddOutput(Graph& graph, std::string name, Value* value);

}  // namespace shardc
