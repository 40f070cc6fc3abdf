// What is said of an op that nothing converts.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

#include "frontend/onnx/node.h"

namespace shardc::onnx_import {

// How the tables of converters call a node's op: after its domain, unless that is the default one.
std::string OpKey(const onnx::NodeProto& proto);

// Throws Diagnostic E1301, of loops E1307, with a way around it, or the nearest of the ops that are
// `known`.
[[noreturn]] void RefuseOp(const onnx::NodeProto& proto, const Node& node,
                           const std::vector<std::string>& known);

}  // namespace shardc::onnx_import
