// Static shapes for the inputs of a file: what the file declares, what --bind and --shape say.
#pragma once

#include <onnx/onnx_pb.h>

#include <optional>
#include <string>
#include <vector>

#include "frontend/import.h"

namespace shardc::onnx_import {

struct InputShape {
  std::string name;
  TensorType type;
  std::optional<int64_t> value;  // a single number that --bind gives
};

// For the inputs that are not initializers, in order. A dim may be a sum or product of symbols
// ("past + sequence"); an integer or bool of one element may be bound itself. Throws Diagnostic
// E1201 (a symbol or an input that the file does not have), E1202 (a dim that stays unknown), E1203
// (bindings that contradict each other), E1204 (a shape that is not what the file declares, or
// too large), E1205 (an input that is no tensor of a supported type).
std::vector<InputShape> BindInputs(const std::string& path,
                                   const std::vector<const onnx::ValueInfoProto*>& inputs,
                                   const ImportOptions& options);

}  // namespace shardc::onnx_import
