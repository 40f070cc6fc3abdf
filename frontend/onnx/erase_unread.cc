#include "frontend/onnx/erase_unread.h"

#include <algorithm>
#include <map>
#include <utility>

#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {
namespace {

using onnx::GraphProto;
using onnx::NodeProto;

// Older files list tensors as inputs, too.
void EraseTensors(LoadedModel& model, const std::set<std::string>& names) {
  GraphProto& graph = *model.proto.mutable_graph();
  google::protobuf::RepeatedPtrField<onnx::TensorProto> tensors;
  std::map<int, Bytes> raw;
  std::set<std::string> erased;
  for (int i = 0; i < graph.initializer_size(); ++i) {
    onnx::TensorProto& tensor = *graph.mutable_initializer(i);
    if (names.contains(tensor.name())) {
      erased.insert(tensor.name());
      continue;
    }
    if (auto bytes = model.raw.extract(i)) {
      bytes.key() = tensors.size();
      raw.insert(std::move(bytes));
    }
    *tensors.Add() = std::move(tensor);
  }
  graph.mutable_initializer()->Swap(&tensors);
  model.raw = std::move(raw);
  google::protobuf::RepeatedPtrField<onnx::ValueInfoProto> inputs;
  for (onnx::ValueInfoProto& input : *graph.mutable_input()) {
    if (!erased.contains(input.name())) *inputs.Add() = std::move(input);
  }
  graph.mutable_input()->Swap(&inputs);
}

}  // namespace

void EraseUnread(LoadedModel& model, std::set<std::string> names) {
  GraphProto& graph = *model.proto.mutable_graph();
  std::map<std::string, int> readers;
  for (const auto& output : graph.output()) ++readers[output.name()];
  for (const NodeProto& node : graph.node()) {
    for (const std::string& name : ReadBy(node)) ++readers[name];
  }
  auto is_read = [&](const std::string& name) { return readers[name] > 0; };
  google::protobuf::RepeatedPtrField<NodeProto> kept;
  for (int i = graph.node_size() - 1; i >= 0; --i) {
    NodeProto& node = *graph.mutable_node(i);
    const auto& made = node.output();
    if (std::ranges::any_of(made, is_read) ||
        std::ranges::none_of(made, [&](const std::string& name) { return names.contains(name); })) {
      *kept.Add() = std::move(node);
      continue;
    }
    for (std::string& name : ReadBy(node)) {
      --readers[name];
      names.insert(std::move(name));
    }
  }
  std::reverse(kept.pointer_begin(), kept.pointer_end());
  graph.mutable_node()->Swap(&kept);
  std::erase_if(names, is_read);
  EraseTensors(model, names);
}

}  // namespace shardc::onnx_import
