// Rewrites the nodes of a file one by one, those of branches too.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "frontend/onnx/load_model.h"
#include "ir/sharding.h"

namespace shardc::onnx_import {

// A tensor of the file, as it is or under another shape.
struct Stored {
  const onnx::TensorProto* tensor = nullptr;
  const Bytes* raw = nullptr;
  Shape dims;
};

class GraphRewriter {
 public:
  explicit GraphRewriter(LoadedModel& model);
  virtual ~GraphRewriter() = default;
  GraphRewriter(const GraphRewriter&) = delete;
  GraphRewriter& operator=(const GraphRewriter&) = delete;

  // Of a graph whose nodes are in order.
  void Run();

 protected:
  // Whether it has put something else in place of the node (Emit, Keep, Replace), whose inputs are
  // named as they are now.
  virtual bool Rewrite(const onnx::NodeProto& node) = 0;

  // A node of the default domain in place of one like this. Returns the output's name.
  std::string Emit(const char* op, std::vector<std::string> inputs, const onnx::NodeProto& like,
                   const std::string& output);
  void Keep(onnx::NodeProto node);
  // The node that was added last.
  onnx::NodeProto& Last() { return *nodes_->Mutable(nodes_->size() - 1); }
  // Of that.
  onnx::AttributeProto& AddAttribute(const char* name, onnx::AttributeProto::AttributeType type);
  void AddOutput(const std::string& name);
  // Readers of a node's output 0 read this value from now on.
  void Replace(const onnx::NodeProto& node, const std::string& value);
  // A tensor of the model, whose data are these, or are not there yet.
  onnx::TensorProto& AddTensor(const std::string& name, int onnx_type, const Shape& dims,
                               std::optional<Bytes> data = std::nullopt);

  // The name itself where nothing has it.
  std::string NewName(const std::string& wanted);
  // The tensor of this name, or what a Constant node holds; null: it is another value.
  const Stored* TensorOf(const std::string& name) const;
  // The node before this one that makes it; null: it is no node's.
  const onnx::NodeProto* MakerOf(const std::string& name) const;
  bool InBranch() const { return scope_->outer != nullptr; }

  LoadedModel& model_;
  onnx::GraphProto& graph_;

 private:
  using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

  // What a graph's nodes see.
  struct Scope {
    const Scope* outer = nullptr;
    std::map<std::string, Stored> tensors = {};
    std::map<std::string, const onnx::NodeProto*> makers = {};
    std::map<std::string, std::string> renamed = {};
    std::set<std::string> outputs = {};
    void Add(const std::string& name, const onnx::TensorProto& tensor, const Bytes* raw);
  };

  void CollectNames(const onnx::GraphProto& graph);
  void InGraph(onnx::GraphProto& graph);
  std::string Renamed(const std::string& name) const;

  Scope* scope_ = nullptr;
  Nodes* nodes_ = nullptr;  // of the scope's graph
  std::set<std::string> names_;
};

}  // namespace shardc::onnx_import
