// The names and layouts of the PyTorch module that a model was exported from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/manifest.h"

namespace shardc {

struct ModuleTensor {
  std::string name;
  bool transposed = false;  // of the plan's tensor, a matrix
};

// By the plan's name of a whole state or of a gradient, what the module calls it, as far as that is
// known: its own name or another; and all of them where it is tied.
std::map<std::string, std::vector<ModuleTensor>> ModuleTensors(const Manifest& manifest);

// By the module's name of a parameter or of its gradient, what the plan has of it, where the
// exporter made that of it in an unknown manner.
std::map<std::string, std::string> MadeOfModules(const Manifest& manifest);

}  // namespace shardc
