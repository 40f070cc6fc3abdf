// Biases that were all zero when the model was exported.
#pragma once

#include <onnx/onnx_pb.h>

#include "frontend/onnx/names.h"

namespace shardc::onnx_import {

// dynamo's optimizer leaves out a bias of zeros, which a new model has: what it wrote beside the
// node says so, and names the parameter. They are tensors of the graph, and inputs of their nodes,
// again, if the file has the weight, whose size theirs follows from. Returns how many.
int AddZeroBiases(onnx::GraphProto& graph, const ModuleNames& names);

}  // namespace shardc::onnx_import
