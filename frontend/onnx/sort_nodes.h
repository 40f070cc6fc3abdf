// The order of an ONNX graph's nodes.
#pragma once

#include <onnx/onnx_pb.h>

namespace shardc::onnx_import {

// Puts every node, those of branches too, behind those that make what it reads, where they are in
// another order, as tools leave them that ONNX Runtime reads: it sorts, too. Nodes that wait for
// each other stay.
void SortNodes(onnx::GraphProto& graph);

}  // namespace shardc::onnx_import
