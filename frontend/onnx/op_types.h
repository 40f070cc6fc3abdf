// Which integers ONNX's ops take in which opset.
#pragma once

#include "frontend/onnx/node.h"

namespace shardc::onnx_import {

// Throws Diagnostic E1301 for an input of an op of the default domain that is of an integer type,
// or bool, which the model's opset does not allow there: no runtime says what it would give.
void CheckTypes(const Node& node, const onnx::NodeProto& proto);

}  // namespace shardc::onnx_import
