// Weights that a tool wrote as Constant nodes.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>

namespace shardc::onnx_import {

// How many dims have more than one element: none of a number, one of a vector.
int64_t LargerDims(const onnx::TensorProto& t);
// A tensor of floats, several of them.
bool MayBeWeight(const onnx::TensorProto& t);
// What a Constant node holds, where that is a tensor; else null.
const onnx::TensorProto* ConstantValue(const onnx::NodeProto& node);

// Where a graph has inputs, but no tensor that could be a weight (floats, several elements),
// Constant nodes with such values become tensors, called as the nodes' results. Returns how many.
int ConstantsToTensors(onnx::GraphProto& graph);

}  // namespace shardc::onnx_import
