#include "frontend/onnx/own_names.h"

#include <algorithm>
#include <map>
#include <set>

#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {
namespace {

using Renamed = std::map<std::string, std::string>;

void Rename(onnx::GraphProto& graph, const Renamed& renamed) {
  auto rename = [&](std::string& name) {
    if (const auto to = renamed.find(name); to != renamed.end()) name = to->second;
  };
  for (auto& tensor : *graph.mutable_initializer()) rename(*tensor.mutable_name());
  for (auto& node : *graph.mutable_node()) {
    for (std::string& input : *node.mutable_input()) rename(input);
    for (auto& attr : *node.mutable_attribute()) {
      if (attr.has_g()) Rename(*attr.mutable_g(), renamed);
    }
  }
}

}  // namespace

void RestoreOwnNames(onnx::GraphProto& graph, ModuleNames& names) {
  std::map<std::string, int> made;  // of each parameter
  for (const auto& [tensor, sources] : names.folded_from) {
    for (const std::string& source : std::set(sources.begin(), sources.end())) ++made[source];
  }
  std::set<std::string> tensors, outputs;
  for (const auto& tensor : graph.initializer()) tensors.insert(tensor.name());
  for (const auto& output : graph.output()) outputs.insert(output.name());
  Renamed renamed;
  for (const auto& node : graph.node()) {
    if (node.op_type() != "GatherND") continue;
    const std::string &tensor = InputOf(node, 0), param = IndexedParameter(node, names);
    const auto folded = names.folded_from.find(tensor);
    if (param.empty() || folded == names.folded_from.end()) continue;
    const bool alone = folded->second == std::vector<std::string>{param} && made[param] == 1;
    if (alone && tensors.contains(tensor) && !tensors.contains(param) && !outputs.contains(tensor))
      renamed[tensor] = param;
  }
  if (renamed.empty()) return;
  Rename(graph, renamed);
  for (const auto& [tensor, param] : renamed) names.folded_from.erase(tensor);
}

}  // namespace shardc::onnx_import
