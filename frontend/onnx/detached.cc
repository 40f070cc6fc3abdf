#include "frontend/onnx/detached.h"

#include <algorithm>

#include "ir/contains.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

// "detach", or with a number.
bool NamesDetach(std::string_view name) {
  constexpr std::string_view kDetach = "detach";
  if (!name.starts_with(kDetach)) return false;
  name.remove_prefix(kDetach.size());
  if (name.empty()) return true;
  return name.size() > 1 && name[0] == '_' &&
         std::ranges::all_of(name.substr(1), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Detached::Detached(const onnx::GraphProto& graph, const ModuleNames& names) {
  for (const onnx::NodeProto& node : graph.node()) {
    const std::string result = FxCallOf(node).result;
    if (!result.empty() && Contains(node.output(), result)) results_.insert(result);
  }
  parameters_ = names.is_parameter;
  by_argument_ = names.by_input;
}

bool Detached::Is(const onnx::NodeProto& node) {
  return node.op_type() == "Identity" && FxCallOf(node).target == "torch.ops.aten.detach.default";
}

std::vector<int> Detached::InputsOf(const onnx::NodeProto& node) {
  const FxCall call = FxCallOf(node);
  std::vector<std::string> given, detached;  // the first as tensors of the file
  for (const std::string& argument : call.arguments) {
    const auto of_module = by_argument_.find(argument);
    given.push_back(of_module == by_argument_.end() ? argument : of_module->second);
    if (NamesDetach(argument) && !results_.contains(argument)) detached.push_back(argument);
  }
  if (detached.empty()) return {};
  read_.insert(detached.begin(), detached.end());
  std::vector<int> inputs;
  // Argument by argument, where all others are where they were.
  const auto& names = node.input();
  bool in_order = std::ssize(given) == names.size();
  for (int i = 0; in_order && i < names.size(); ++i) {
    const bool is_detached = Contains(detached, given[i]);
    in_order = is_detached || given[i] == names[i];
    if (is_detached) inputs.push_back(i);
  }
  if (!in_order) {
    // Else the one that is what another call gave, or a parameter, and not what this one was given.
    inputs.clear();
    std::set<std::string> others;
    for (int i = 0; i < names.size(); ++i) {
      const bool known = results_.contains(names[i]) || parameters_.contains(names[i]);
      if (!known || Contains(given, names[i]) || names[i] == call.result) continue;
      others.insert(names[i]);
      inputs.push_back(i);
    }
    if (others.size() != 1 || std::set(detached.begin(), detached.end()).size() != 1) return {};
  }
  found_.insert(detached.begin(), detached.end());
  return inputs;
}

void Detached::NoteOthers(Graph& graph) const {
  const auto others = std::ssize(read_) - std::ssize(found_);
  if (others == 0) return;
  graph.notes.push_back(
      StrCat("the model detaches ", Counted(others, "value"),
             " of which the exporter does not say what it is: gradients flow through ",
             others == 1 ? "it" : "them", " (an export with optimize=False says it)"));
}

}  // namespace shardc::onnx_import
