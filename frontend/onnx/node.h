// The NodeContext of a NodeProto.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>

#include "frontend/onnx/converter.h"
#include "frontend/onnx/initializers.h"

namespace shardc::onnx_import {

// What the nodes of a model share while they are converted.
struct Conversion {
  std::string path;
  Builder builder;
  TensorReader reader;
  std::map<std::string, int> opsets;
  std::map<std::string, Value*, std::less<>> values;                  // by name in the file
  std::map<std::string, std::vector<Value*>, std::less<>> sequences;  // the same
  std::map<std::string, int64_t, std::less<>> narrow;  // ONNX types held in wider ones, by name
  std::map<const Value*, Steps> steps;                 // by codes
  std::set<std::string> wanted;                        // names that something reads
  ChosenRows rows;
  int64_t fold_bytes = int64_t{1} << 34;  // that constants made from others may take

  Conversion(std::string path, const std::string& folder, Graph& graph)
      : path(std::move(path)), builder(graph), reader(this->path, folder) {}
};

class Node final : public NodeContext {
 public:
  // Resolves the inputs; throws Diagnostic E1308 for one that nothing has made.
  Node(Conversion& conversion, const onnx::NodeProto& proto);

  // By a value of its type.
  void ReplaceInput(int i, Value* by) { inputs_[i] = by; }

  std::string_view op_type() const override { return proto_.op_type(); }
  int opset() const override;
  int num_inputs() const override { return proto_.input_size(); }
  int num_outputs() const override { return proto_.output_size(); }
  Value* InputOrNull(int i) const override;
  bool OutputWanted(int i) const override;
  void SetOutput(int i, Value* value) override;
  void SetOutput(int i, Value* value, int64_t onnx_type) override;
  void SetSequence(int i, std::vector<Value*> elements) override;
  void SetSequence(int i, std::vector<Value*> elements, int64_t onnx_type) override;
  const std::vector<Value*>& Sequence(int i) const override;
  int64_t NarrowType(int i) const override;
  // Of an input that is there, and no sequence; the converter need not have asked for it.
  DType TypeOfInput(int i) const { return inputs_[i]->type.dtype; }
  bool IsSequence(int i) const;
  bool HasAttr(std::string_view name) const override { return Find(name) != nullptr; }
  int64_t Int(std::string_view name, int64_t otherwise) const override;
  double Float(std::string_view name, double otherwise) const override;
  std::string String(std::string_view name, std::string otherwise) const override;
  std::optional<Ints> IntList(std::string_view name) const override;
  std::optional<std::vector<double>> FloatList(std::string_view name) const override;
  std::optional<std::vector<std::string>> StringList(std::string_view name) const override;
  std::optional<HostTensor> Tensor(std::string_view name) const override;
  int64_t TypeOfTensor(std::string_view name) const override;
  const HostTensor* ConstantOf(Value* value) const override;
  Value* Make(std::string_view op, std::vector<Value*> operands, Attributes attrs) override;
  std::vector<Value*> MakeAll(std::string_view op, std::vector<Value*> operands,
                              Attributes attrs) override;
  void SetSteps(const Value* codes, Steps steps) override { conversion_.steps[codes] = steps; }
  Steps StepsOf(const Value* codes) const override;
  Builder& builder() override { return conversion_.builder; }
  ChosenRows& rows() override { return conversion_.rows; }
  [[noreturn]] void Fail(const char* id, const std::string& what,
                         const std::string& fix) const override;
  using NodeContext::Fail;

  std::string Where() const;
  // Fails unless every wanted output is set.
  void CheckOutputs() const;
  // Fails where what the node makes of rows that data chooses is not known to be rows again.
  void CheckRows();
  // Fails with E1301 for an input or an attribute that the converter has not asked for: it may
  // change what the node computes.
  void CheckRead() const;

 private:
  // With something in place of the rows that are not chosen that the op may be given.
  Value* Harmless(Value* v, std::string_view op);
  // Fails where an input that says the shape of `made` counts what `made` does not.
  void CheckShape(int input, Value* made);
  const onnx::AttributeProto* Find(std::string_view name) const;
  const onnx::AttributeProto* Find(std::string_view name,
                                   onnx::AttributeProto::AttributeType type) const;

  Conversion& conversion_;
  const onnx::NodeProto& proto_;
  std::vector<Value*> inputs_;
  // What the converter has asked for.
  mutable std::set<std::string, std::less<>> attributes_read_;
  mutable std::set<int> inputs_read_;
};

}  // namespace shardc::onnx_import
