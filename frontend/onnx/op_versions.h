// What ONNX's ops have in which opset.
#pragma once

#include "frontend/onnx/node.h"

namespace shardc::onnx_import {

// Throws Diagnostic E1301 for an op of the default domain that the model's opset does not have, or
// not with one of the node's attributes or inputs: what it would mean there is a guess.
void CheckVersion(const Node& node, const onnx::NodeProto& proto);

}  // namespace shardc::onnx_import
