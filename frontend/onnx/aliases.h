// The names that exporters lose.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "frontend/onnx/names.h"
#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {

// For each of `params` its other names in order of use. Taken from Identity nodes that hand a
// merged tensor on under each name, from what a tensor was folded from, from the module whose node
// reads a tensor without a name of its own ("onnx::MatMul_264"), and, for parameters that dynamo
// merged, from the module's list. No name is given twice, nor one that a tensor of the file has.
std::map<std::string, std::vector<std::string>> FindAliases(const std::vector<std::string>& params,
                                                            const Uses& uses,
                                                            const ModuleNames& names);

}  // namespace shardc::onnx_import
