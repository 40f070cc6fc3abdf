// The names that exporters lose.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "frontend/onnx/names.h"
#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {

struct AliasesFound {
  std::map<std::string, std::vector<std::string>> of;  // by parameter, in order of use
  // Of all of them those of which the exporter made its tensor: the module's own is mostly
  // transposed, and may hold other numbers (a logarithm). The others name equal tensors.
  std::set<std::string> sources;
  // By parameter, the one of its sources whose transpose it is for certain.
  std::map<std::string, std::string> transpose_of;
};

// The other names of `params`. Taken from Identity nodes that hand a merged tensor on under each
// name, from what a tensor was folded from, from the module whose node reads a tensor without a
// name of its own ("onnx::MatMul_264"), and, for parameters that dynamo merged, from the module's
// list. No name is given twice, nor one that a tensor of the file has.
AliasesFound FindAliases(const std::vector<std::string>& params, const Uses& uses,
                         const ModuleNames& names);

}  // namespace shardc::onnx_import
