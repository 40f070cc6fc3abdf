#include "passes/added_output.h"

#include <utility>

#include "ir/diagnostic.h"

namespace shardc {

void AddOutput(Graph& graph, std::string name, Value* value) {
  if (graph.FindOutput(name)) {
    throw Diagnostic("E1603", ExitCode::kBadModel, "output '" + name + "'",
                     "the model has an output of this name, which the plan gives to one of its own",
                     "rename it in the model, or leave it out with --drop " + name);
  }
  graph.outputs.push_back({std::move(name), value});
}

}  // namespace shardc
