#include "frontend/onnx/constant_weights.h"

#include <algorithm>

#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"

namespace shardc::onnx_import {

int64_t LargerDims(const onnx::TensorProto& t) {
  return std::ranges::count_if(t.dims(), [](int64_t d) { return d > 1; });
}

bool MayBeWeight(const onnx::TensorProto& t) {
  return IsFloatType(t.data_type()) && LargerDims(t) > 0;
}

const onnx::TensorProto* ConstantValue(const onnx::NodeProto& node) {
  bool constant = node.op_type() == "Constant" && NormalDomain(node.domain()).empty() &&
                  node.output_size() == 1 && node.attribute_size() == 1;
  return constant && node.attribute(0).has_t() ? &node.attribute(0).t() : nullptr;
}

int ConstantsToTensors(onnx::GraphProto& graph) {
  const auto& tensors = graph.initializer();
  // Without inputs it only computes constants.
  if (graph.input().empty() || std::any_of(tensors.begin(), tensors.end(), MayBeWeight)) return 0;
  int moved = 0;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> kept;
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    const onnx::TensorProto* value = ConstantValue(node);
    if (value == nullptr || !MayBeWeight(*value)) {
      *kept.Add() = std::move(node);
      continue;
    }
    onnx::TensorProto& tensor = *graph.add_initializer();
    tensor = std::move(*node.mutable_attribute(0)->mutable_t());
    tensor.set_name(node.output(0));
    ++moved;
  }
  graph.mutable_node()->Swap(&kept);
  return moved;
}

}  // namespace shardc::onnx_import
