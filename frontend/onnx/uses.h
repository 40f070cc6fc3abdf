// Who reads what in a file, subgraphs included, and what flows where.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::onnx_import {

struct Use {
  const onnx::NodeProto* node = nullptr;  // null: an output of the graph
  int input = 0;
  int position = 0;  // of the node, in order
};

// The names of a node's input i and of its first output; empty where a file's node has none.
const std::string& InputOf(const onnx::NodeProto& node, int i);
const std::string& OutputOf(const onnx::NodeProto& node);

// Whether the node only moves elements of its first input, in any opset.
bool MovesElements(const onnx::NodeProto& node);
// An attribute of the node; `otherwise` without it.
int64_t IntOr(const onnx::NodeProto& node, std::string_view name, int64_t otherwise);
float FloatOr(const onnx::NodeProto& node, std::string_view name, float otherwise);

class Uses {
 public:
  explicit Uses(const onnx::GraphProto& graph);

  const std::vector<Use>& Of(const std::string& value) const;
  // The node that makes it; null: none does.
  const onnx::NodeProto* MakerOf(const std::string& value) const;
  // Values that a branch of an If, or a loop's body, hands to the node's outputs under another
  // name.
  const std::vector<std::string>& PassedOnAs(const std::string& value) const;
  const std::vector<const onnx::NodeProto*>& nodes() const { return nodes_; }
  const std::vector<const onnx::TensorProto*>& initializers() const { return initializers_; }
  bool IsOutput(const std::string& value) const { return outputs_.contains(value); }

  // Marks what depends on the data of the graph's inputs, and what on float initializers of several
  // elements.
  void FlowFrom(const onnx::GraphProto& graph, const std::set<std::string>& candidates);
  bool DependsOnData(const std::string& value) const { return data_.contains(value); }
  bool DependsOnTables(const std::string& value) const { return weighted_.contains(value); }
  // Depends on both, or on a float input that is not one number: what a network computes with.
  bool IsActivation(const std::string& value) const {
    return data_.contains(value) && weighted_.contains(value);
  }
  // That, or depends on a float input that is one number, as of a time step, which is no factor
  // where it is multiplied with a matrix.
  bool IsComputed(const std::string& value) const {
    return IsActivation(value) || of_numbers_.contains(value);
  }

 private:
  void Add(const onnx::GraphProto& graph);

  std::vector<const onnx::NodeProto*> nodes_;
  std::vector<const onnx::TensorProto*> initializers_;
  std::map<std::string, std::vector<Use>> uses_;
  std::map<std::string, const onnx::NodeProto*> makers_;
  std::map<std::string, std::vector<std::string>> passed_on_;
  std::map<std::string, std::string> begins_as_;  // what a loop's body is given in its first round
  std::set<std::string> outputs_, data_, weighted_, of_numbers_;
};

// The values that a node reads, and all that the nodes of its subgraphs read and these hand out,
// whether they make it themselves or not.
std::vector<std::string> ReadBy(const onnx::NodeProto& node);

}  // namespace shardc::onnx_import
