#include "frontend/onnx/uses.h"

#include <algorithm>

#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"

namespace shardc::onnx_import {
namespace {

void AddReads(const onnx::NodeProto& node, std::vector<std::string>& reads) {
  for (const std::string& name : node.input()) {
    if (!name.empty()) reads.push_back(name);
  }
  for (const auto& attr : node.attribute()) {
    if (!attr.has_g()) continue;
    for (const auto& inner : attr.g().node()) AddReads(inner, reads);
    for (const auto& output : attr.g().output()) reads.push_back(output.name());
  }
}

const onnx::AttributeProto* Find(const onnx::NodeProto& node, std::string_view name) {
  const auto found = std::ranges::find(node.attribute(), name, &onnx::AttributeProto::name);
  return found == node.attribute().end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> ReadBy(const onnx::NodeProto& node) {
  std::vector<std::string> reads;
  AddReads(node, reads);
  return reads;
}

Uses::Uses(const onnx::GraphProto& graph) {
  Add(graph);
  for (const auto& output : graph.output()) {
    outputs_.insert(output.name());
    uses_[output.name()].push_back({nullptr, 0, static_cast<int>(nodes_.size())});
  }
}

void Uses::Add(const onnx::GraphProto& graph) {
  for (const auto& t : graph.initializer()) initializers_.push_back(&t);
  for (const auto& node : graph.node()) {
    for (const auto& attr : node.attribute()) {
      if (!attr.has_g()) continue;
      Add(attr.g());
      const bool loop = node.op_type() == "Loop";
      const int first = loop ? 1 : 0;  // before it: whether the loop goes on
      int outputs = std::min(attr.g().output_size() - first, node.output_size());
      for (int i = 0; i < outputs; ++i) {
        passed_on_[attr.g().output(first + i).name()].push_back(node.output(i));
      }
      const int inputs = loop ? std::min(attr.g().input_size(), node.input_size()) : 0;
      for (int i = 2; i < inputs; ++i) begins_as_[attr.g().input(i).name()] = node.input(i);
    }
    int position = static_cast<int>(nodes_.size());
    nodes_.push_back(&node);
    for (const std::string& output : node.output()) makers_.emplace(output, &node);
    for (int i = 0; i < node.input_size(); ++i) {
      if (!node.input(i).empty()) uses_[node.input(i)].push_back({&node, i, position});
    }
  }
}

const std::vector<Use>& Uses::Of(const std::string& value) const {
  static const std::vector<Use> none;
  auto it = uses_.find(value);
  return it == uses_.end() ? none : it->second;
}

const onnx::NodeProto* Uses::MakerOf(const std::string& value) const {
  const auto maker = makers_.find(value);
  return maker == makers_.end() ? nullptr : maker->second;
}

const std::vector<std::string>& Uses::PassedOnAs(const std::string& value) const {
  static const std::vector<std::string> none;
  auto it = passed_on_.find(value);
  return it == passed_on_.end() ? none : it->second;
}

void Uses::FlowFrom(const onnx::GraphProto& graph, const std::set<std::string>& candidates) {
  weighted_ = candidates;
  std::set<std::string> initializers;
  for (const auto* t : initializers_) initializers.insert(t->name());
  for (const auto& input : graph.input()) {
    if (initializers.contains(input.name())) continue;
    data_.insert(input.name());
    const auto& type = input.type().tensor_type();
    const bool number = type.has_shape() && type.shape().dim().empty();
    if (IsFloatType(type.elem_type())) (number ? of_numbers_ : weighted_).insert(input.name());
  }
  for (const auto* node : nodes_) {
    if (node->op_type() == "Shape" || node->op_type() == "Size") continue;
    bool data = false, weighted = false, of_numbers = false;
    std::vector<std::string> reads = ReadBy(*node);
    if (node->op_type() == "CastLike" && reads.size() > 1) reads.resize(1);  // the other is a type
    for (std::string name : reads) {
      for (size_t i = 0; i < begins_as_.size(); ++i) {
        auto it = begins_as_.find(name);
        if (it == begins_as_.end()) break;
        name = it->second;
      }
      data |= data_.contains(name);
      weighted |= weighted_.contains(name);
      of_numbers |= of_numbers_.contains(name);
    }
    for (const std::string& name : node->output()) {
      if (data) data_.insert(name);
      if (weighted) weighted_.insert(name);
      if (of_numbers) of_numbers_.insert(name);
    }
  }
}

bool MovesElements(const onnx::NodeProto& node) {
  static const std::set<std::string_view> kOps = {"Expand",   "Flatten",   "Gather",
                                                  "Identity", "Reshape",   "Slice",
                                                  "Squeeze",  "Transpose", "Unsqueeze"};
  return NormalDomain(node.domain()).empty() && kOps.contains(node.op_type()) &&
         node.output_size() == 1;
}

int64_t IntOr(const onnx::NodeProto& node, std::string_view name, int64_t otherwise) {
  const onnx::AttributeProto* attr = Find(node, name);
  return attr == nullptr ? otherwise : attr->i();
}

float FloatOr(const onnx::NodeProto& node, std::string_view name, float otherwise) {
  const onnx::AttributeProto* attr = Find(node, name);
  return attr == nullptr ? otherwise : attr->f();
}

const std::string& InputOf(const onnx::NodeProto& node, int i) {
  static const std::string none;
  return i >= 0 && i < node.input_size() ? node.input(i) : none;
}

const std::string& OutputOf(const onnx::NodeProto& node) {
  static const std::string none;
  return node.output_size() > 0 ? node.output(0) : none;
}

}  // namespace shardc::onnx_import
