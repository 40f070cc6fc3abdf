// What the model kept from having a gradient.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "frontend/onnx/names.h"
#include "ir/graph.h"

namespace shardc::onnx_import {

// Uses of what torch's detach gave, by dynamo's metadata: it writes an Identity for it, and its
// optimizer leaves that out, but not the name in the call that reads it.
class Detached {
 public:
  Detached() = default;
  Detached(const onnx::GraphProto& graph, const ModuleNames& names);

  // Whether the node is a detach.
  static bool Is(const onnx::NodeProto& node);
  // Inputs of the node that were detached.
  std::vector<int> InputsOf(const onnx::NodeProto& node);
  // Of those that no input was found for.
  void NoteOthers(Graph& graph) const;

 private:
  using Uses = std::set<std::pair<std::string, std::string>>;  // of a detach, by a call

  std::string GivenAs(const std::string& argument) const;
  std::vector<std::string> DetachedOf(const FxCall& call) const;
  void FindMerged(const onnx::GraphProto& graph);
  std::vector<int> InputsInOrder(const onnx::NodeProto& node, const FxCall& call,
                                 const std::vector<std::string>& detached) const;
  std::vector<int> InputsByName(const onnx::NodeProto& node, const FxCall& call,
                                const std::vector<std::string>& detached) const;

  bool any_ = false;                                // a call was given a detach
  std::set<std::string> tensors_;                   // of the file
  std::set<std::string> results_;                   // those that are what a call gave
  std::map<std::string, int> nodes_of_call_;        // by its result
  std::set<std::string> merged_;                    // results of what may be several calls
  std::set<std::string> parameters_;                // tensors that are the module's parameters
  std::map<std::string, std::string> by_argument_;  // these, by their name in calls
  Uses read_, found_;                               // of detaches that are no nodes
};

}  // namespace shardc::onnx_import
