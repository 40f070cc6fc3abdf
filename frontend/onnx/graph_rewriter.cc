#include "frontend/onnx/graph_rewriter.h"

#include <utility>

#include "frontend/onnx/constant_weights.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

using onnx::GraphProto;
using onnx::NodeProto;
using onnx::TensorProto;

template <typename Map>
const typename Map::mapped_type* In(const Map& map, const std::string& name) {
  const auto it = map.find(name);
  return it == map.end() ? nullptr : &it->second;
}

}  // namespace

GraphRewriter::GraphRewriter(LoadedModel& model)
    : model_(model), graph_(*model.proto.mutable_graph()) {
  CollectNames(graph_);
}

void GraphRewriter::Run() { InGraph(graph_); }

void GraphRewriter::CollectNames(const GraphProto& graph) {
  for (const auto& input : graph.input()) names_.insert(input.name());
  for (const TensorProto& t : graph.initializer()) names_.insert(t.name());
  for (const NodeProto& node : graph.node()) {
    names_.insert(node.output().begin(), node.output().end());
    for (const auto& attr : node.attribute()) {
      if (attr.has_g()) CollectNames(attr.g());
    }
  }
}

std::string GraphRewriter::NewName(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 1; !names_.insert(name).second; ++i) name = StrCat(wanted, "_", i);
  return name;
}

void GraphRewriter::InGraph(GraphProto& graph) {
  Scope scope{scope_};
  for (int i = 0; i < graph.initializer_size(); ++i) {
    const TensorProto& t = graph.initializer(i);
    scope.Add(t.name(), t, scope_ == nullptr ? model_.RawOf(i) : nullptr);
  }
  for (const auto& output : graph.output()) scope.outputs.insert(output.name());
  Nodes nodes;
  nodes.Swap(graph.mutable_node());
  Scope* const outer = std::exchange(scope_, &scope);
  Nodes* const outer_nodes = std::exchange(nodes_, graph.mutable_node());
  for (NodeProto& node : nodes) {
    for (std::string& input : *node.mutable_input()) input = Renamed(input);
    for (auto& attr : *node.mutable_attribute()) {
      if (attr.has_g()) InGraph(*attr.mutable_g());
    }
    if (!Rewrite(node)) Keep(std::move(node));
  }
  for (auto& output : *graph.mutable_output()) output.set_name(Renamed(output.name()));
  scope_ = outer;
  nodes_ = outer_nodes;
}

void GraphRewriter::Scope::Add(const std::string& name, const TensorProto& tensor,
                               const Bytes* raw) {
  tensors[name] = {&tensor, raw, Shape(tensor.dims().begin(), tensor.dims().end())};
}

void GraphRewriter::Keep(NodeProto node) {
  NodeProto& kept = *nodes_->Add();
  kept = std::move(node);
  for (const std::string& output : kept.output()) scope_->makers[output] = &kept;
  if (const TensorProto* value = ConstantValue(kept)) scope_->Add(kept.output(0), *value, nullptr);
}

std::string GraphRewriter::Emit(const char* op, std::vector<std::string> inputs,
                                const NodeProto& like, const std::string& output) {
  NodeProto node = like;
  node.clear_input();
  node.clear_output();
  node.clear_attribute();
  node.clear_domain();
  node.set_op_type(op);
  while (!inputs.empty() && inputs.back().empty()) inputs.pop_back();
  for (std::string& input : inputs) node.add_input(std::move(input));
  node.add_output(output);
  Keep(std::move(node));
  return output;
}

const Stored* GraphRewriter::TensorOf(const std::string& name) const {
  for (const Scope* s = scope_; s != nullptr; s = s->outer) {
    if (const Stored* found = In(s->tensors, name)) return found;
    if (s->makers.contains(name)) return nullptr;
  }
  return nullptr;
}

const NodeProto* GraphRewriter::MakerOf(const std::string& name) const {
  for (const Scope* s = scope_; s != nullptr; s = s->outer) {
    if (const auto* found = In(s->makers, name)) return *found;
    if (s->tensors.contains(name)) return nullptr;
  }
  return nullptr;
}

std::string GraphRewriter::Renamed(const std::string& name) const {
  for (const Scope* s = scope_; s != nullptr; s = s->outer) {
    if (s->makers.contains(name) || s->tensors.contains(name)) return name;
    if (const std::string* found = In(s->renamed, name)) return *found;
  }
  return name;
}

void GraphRewriter::Replace(const NodeProto& node, const std::string& value) {
  const std::string& output = node.output(0);
  if (value == output) return;
  if (scope_->outputs.contains(output)) {
    Emit("Identity", {value}, node, output);
  } else {
    scope_->renamed[output] = value;
  }
}

onnx::AttributeProto& GraphRewriter::AddAttribute(const char* name,
                                                  onnx::AttributeProto::AttributeType type) {
  auto& attr = *Last().add_attribute();
  attr.set_name(name);
  attr.set_type(type);
  return attr;
}

void GraphRewriter::AddOutput(const std::string& name) {
  Last().add_output(name);
  scope_->makers[name] = &Last();
}

TensorProto& GraphRewriter::AddTensor(const std::string& name, int onnx_type, const Shape& dims,
                                      std::optional<Bytes> data) {
  const Bytes* raw = nullptr;
  if (data) raw = &(model_.raw[graph_.initializer_size()] = *std::move(data));
  TensorProto& tensor = *graph_.add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(onnx_type);
  for (const int64_t dim : dims) tensor.add_dims(dim);
  scope_->Add(name, tensor, raw);
  return tensor;
}

}  // namespace shardc::onnx_import
