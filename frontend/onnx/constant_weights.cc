#include "frontend/onnx/constant_weights.h"

#include <algorithm>

#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"

namespace shardc::onnx_import {
namespace {

bool MayBeWeight(const onnx::TensorProto& t) {
  auto held = HeldAs(t.data_type());
  return held && IsFloat(*held) &&
         std::any_of(t.dims().begin(), t.dims().end(), [](int64_t d) { return d > 1; });
}

onnx::TensorProto* ValueOf(onnx::NodeProto& node) {
  bool constant = node.op_type() == "Constant" && NormalDomain(node.domain()).empty() &&
                  node.output_size() == 1 && node.attribute_size() == 1;
  if (!constant || !node.attribute(0).has_t()) return nullptr;
  return node.mutable_attribute(0)->mutable_t();
}

}  // namespace

int ConstantsToTensors(onnx::GraphProto& graph) {
  const auto& tensors = graph.initializer();
  // Without inputs it only computes constants.
  if (graph.input().empty() || std::any_of(tensors.begin(), tensors.end(), MayBeWeight)) return 0;
  int moved = 0;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> kept;
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    onnx::TensorProto* value = ValueOf(node);
    if (value == nullptr || !MayBeWeight(*value)) {
      *kept.Add() = std::move(node);
      continue;
    }
    value->set_name(node.output(0));
    *graph.add_initializer() = std::move(*value);
    ++moved;
  }
  graph.mutable_node()->Swap(&kept);
  return moved;
}

}  // namespace shardc::onnx_import
