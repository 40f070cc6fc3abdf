// A MODEL argument: an ONNX file, builtin:NAME, or a .shardc text graph.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "frontend/dropout.h"
#include "ir/fixed_tensor.h"
#include "ir/graph.h"

namespace shardc {

struct ModelOptions {
  std::vector<std::string> bind;    // "batch=2"
  std::vector<std::string> shapes;  // "input_ids=2x32"
  std::string module;               // what SafetensorsSet takes; empty: nothing
  DropoutOptions dropout;
};

// The forward graph with patterns recovered. Throws Diagnostic E6104 for bindings that do not
// parse, and whatever the frontend throws. `fixed` becomes the constants of an ONNX
// file, for which `module` is, too.
Graph LoadModel(const std::string& model, const ModelOptions& options, FixedTensors& fixed);

}  // namespace shardc
