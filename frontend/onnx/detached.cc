#include "frontend/onnx/detached.h"

#include <algorithm>

#include "ir/contains.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

bool NamesDetach(const std::string& argument) { return FunctionOf(argument) == "detach"; }

}  // namespace

Detached::Detached(const onnx::GraphProto& graph, const ModuleNames& names) {
  parameters_ = names.is_parameter;
  by_argument_ = names.by_input;
  for (const auto& tensor : graph.initializer()) tensors_.insert(tensor.name());
  for (const auto& input : graph.input()) tensors_.insert(input.name());
  for (const onnx::NodeProto& node : graph.node()) {
    tensors_.insert(node.output().begin(), node.output().end());
    const FxCall call = FxCallOf(node);
    ++nodes_of_call_[call.result];
    if (!call.result.empty() && Contains(node.output(), call.result)) results_.insert(call.result);
    any_ |= std::ranges::any_of(call.arguments, NamesDetach);
  }
  if (any_) FindMerged(graph);
}

std::string Detached::GivenAs(const std::string& argument) const {
  const auto of_module = by_argument_.find(argument);
  return of_module == by_argument_.end() ? argument : of_module->second;
}

std::vector<std::string> Detached::DetachedOf(const FxCall& call) const {
  std::vector<std::string> detached;
  for (const std::string& argument : call.arguments) {
    if (NamesDetach(argument) && !tensors_.contains(argument)) detached.push_back(argument);
  }
  return detached;
}

// A result that stands for that of another call of the same function, too, which the exporter found
// to compute the same: that may not have been given what was detached, here or further back.
void Detached::FindMerged(const onnx::GraphProto& graph) {
  std::map<std::string_view, const onnx::NodeProto*> makers;
  std::vector<const onnx::NodeProto*> open;
  for (const onnx::NodeProto& node : graph.node()) {
    const FxCall call = FxCallOf(node);
    std::multiset<std::string> unexplained(node.input().begin(), node.input().end());
    for (const std::string& argument : call.arguments) {
      const auto given = unexplained.find(argument);
      if (given != unexplained.end()) unexplained.erase(given);
    }
    for (const std::string& argument : call.arguments) {
      if (tensors_.contains(GivenAs(argument))) continue;
      for (const std::string& input : unexplained) {
        const bool same = results_.contains(input) && FunctionOf(input) == FunctionOf(argument);
        if (same && makers.contains(input)) open.push_back(makers[input]);
      }
    }
    for (const std::string& output : node.output()) makers.emplace(output, &node);
  }
  std::set<const onnx::NodeProto*> seen;
  while (!open.empty()) {
    const onnx::NodeProto* node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    const FxCall call = FxCallOf(*node);
    if (!DetachedOf(call).empty()) {
      merged_.insert(call.result);
      continue;
    }
    for (const std::string& input : node->input()) {
      const auto maker = makers.find(input);
      if (maker != makers.end()) open.push_back(maker->second);
    }
  }
}

bool Detached::Is(const onnx::NodeProto& node) {
  return node.op_type() == "Identity" && FxCallOf(node).target == "torch.ops.aten.detach.default";
}

std::vector<int> Detached::InputsOf(const onnx::NodeProto& node) {
  if (!any_) return {};
  const FxCall call = FxCallOf(node);
  const std::vector<std::string> detached = DetachedOf(call);
  if (detached.empty()) return {};
  for (const std::string& one : detached) read_.emplace(one, call.result);
  if (merged_.contains(call.result)) return {};
  std::vector<int> inputs = InputsInOrder(node, call, detached);
  if (inputs.empty()) inputs = InputsByName(node, call, detached);
  if (inputs.empty()) return {};
  for (const std::string& one : detached) found_.emplace(one, call.result);
  return inputs;
}

// Argument by argument, where all others are where they were. Those that the file does not have are
// what an optimizer found to be another tensor.
std::vector<int> Detached::InputsInOrder(const onnx::NodeProto& node, const FxCall& call,
                                         const std::vector<std::string>& detached) const {
  const auto& names = node.input();
  // Of several nodes each has an order of its own.
  const auto nodes = nodes_of_call_.find(call.result);
  if (nodes == nodes_of_call_.end() || nodes->second != 1) return {};
  if (std::ssize(call.arguments) != names.size()) return {};
  std::vector<int> inputs;
  for (int i = 0; i < names.size(); ++i) {
    const std::string given = GivenAs(call.arguments[i]);
    if (Contains(detached, given)) {
      inputs.push_back(i);
    } else if (given != names[i] && tensors_.contains(given)) {
      return {};
    }
  }
  return inputs;
}

// The one that is what another call gave, or a parameter, and not what this one was given.
std::vector<int> Detached::InputsByName(const onnx::NodeProto& node, const FxCall& call,
                                        const std::vector<std::string>& detached) const {
  if (std::set(detached.begin(), detached.end()).size() != 1) return {};
  std::vector<std::string> given;
  bool parameters = true;  // may be what is detached
  for (const std::string& argument : call.arguments) {
    given.push_back(GivenAs(argument));
    if (argument == detached[0] || tensors_.contains(given.back())) continue;
    // It is there under another name.
    if (!by_argument_.contains(argument)) return {};
    parameters = false;
  }
  std::set<std::string> others;
  std::vector<int> inputs;
  for (int i = 0; i < node.input_size(); ++i) {
    const std::string& name = node.input(i);
    const bool known = results_.contains(name) || (parameters && parameters_.contains(name));
    if (!known || Contains(given, name) || name == call.result) continue;
    others.insert(name);
    inputs.push_back(i);
  }
  return others.size() == 1 ? inputs : std::vector<int>();
}

void Detached::NoteOthers(Graph& graph) const {
  std::set<std::string> lost;
  for (const auto& use : read_) {
    if (!found_.contains(use)) lost.insert(use.first);
  }
  const auto others = std::ssize(lost);
  if (others == 0) return;
  graph.notes.push_back(
      StrCat("the model detaches ", Counted(others, "value"),
             " of which the exporter does not say what it is: gradients flow through ",
             others == 1 ? "it" : "them", " (an export with optimize=False says it)"));
}

}  // namespace shardc::onnx_import
