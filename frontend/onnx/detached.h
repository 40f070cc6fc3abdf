// What the model kept from having a gradient.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>
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
  std::set<std::string> results_;                   // tensors that are what a call gave
  std::set<std::string> parameters_;                // tensors that are the module's parameters
  std::map<std::string, std::string> by_argument_;  // these, by their name in calls
  std::set<std::string> read_, found_;              // what calls read of detaches that are no nodes
};

}  // namespace shardc::onnx_import
