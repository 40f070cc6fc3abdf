// The names and layouts of the PyTorch module that a model was exported from.
#pragma once

#include <map>
#include <string>

#include "ir/manifest.h"

namespace shardc {

// What the exporter renamed and transposed: by the plan's name of a whole state or of a gradient,
// the module's, whose tensor is the transpose.
std::map<std::string, std::string> ModuleTransposes(const Manifest& manifest);

}  // namespace shardc
