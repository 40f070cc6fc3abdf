// Tests of single nodes: what they are imported as, and what that computes.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/frontend/import_testing.h"
#include "tests/ir/interpreter.h"

namespace shardc::import_testing {

using onnx::NodeProto;
using onnx::TensorProto;

inline std::vector<std::string> Dims(const Shape& shape) {
  std::vector<std::string> dims;
  for (int64_t d : shape) dims.push_back(std::to_string(d));
  return dims;
}

inline void SetInt(NodeProto& node, const std::string& name, int64_t value) {
  auto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::INT);
  a->set_i(value);
}
inline void SetFloat(NodeProto& node, const std::string& name, float value) {
  auto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::FLOAT);
  a->set_f(value);
}
inline void SetInts(NodeProto& node, const std::string& name, const Ints& values) {
  auto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::INTS);
  for (int64_t v : values) a->add_ints(v);
}
inline void SetString(NodeProto& node, const std::string& name, const std::string& value) {
  auto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::STRING);
  a->set_s(value);
}

// Distinct values that are no one's default: sin(first), sin(first + 1), ...
inline HostTensor Numbers(Shape shape, DType dtype = DType::kF64, int64_t first = 1) {
  HostTensor t(dtype, std::move(shape));
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, std::sin(static_cast<double>(first + i)));
  }
  return t;
}

// Of a parameter, in order; none where there is no such.
inline std::vector<double> Elements(const Graph& graph, const std::string& param) {
  for (const Op* op : graph.Params()) {
    if (op->attrs.String("name") != param) continue;
    HostTensor t(op->out().dtype, op->out().shape);
    graph.sources.at(param)->Read(Shape(t.shape().size()), t.shape(), t.raw());
    std::vector<double> elements;
    for (int64_t i = 0; i < t.num_elements(); ++i) elements.push_back(t.AsDouble(i));
    return elements;
  }
  return {};
}

// A model of a few nodes, imported and interpreted.
class ConverterTest : public ImportTest {
 protected:
  // A double input of that shape.
  void Input(const std::string& name, const Shape& shape, int64_t first = 1) {
    model_.Input(name, Dims(shape), TensorProto::DOUBLE);
    inputs_[name] = Numbers(shape, DType::kF64, first);
  }
  NodeProto& Node(const std::string& op, const std::vector<std::string>& inputs,
                  const std::vector<std::string>& outputs = {"y"}) {
    return model_.Node(op, inputs, outputs);
  }
  void Integers(const std::string& name, const Ints& values, bool scalar = false) {
    TensorProto* t = model_.graph.add_initializer();
    t->set_name(name);
    t->set_data_type(TensorProto::INT64);
    if (!scalar) t->add_dims(static_cast<int64_t>(values.size()));
    for (int64_t v : values) t->add_int64_data(v);
  }
  // Integers of a type of 16 bits or fewer; of 4 or 2 bits the bytes that they lie in.
  TensorProto& Codes(const std::string& name, const Ints& dims, const Ints& values,
                     int type = TensorProto::INT8) {
    TensorProto& t = *model_.graph.add_initializer();
    t.set_name(name);
    t.set_data_type(type);
    for (const int64_t d : dims) t.add_dims(d);
    for (const int64_t v : values) t.add_int32_data(static_cast<int32_t>(v));
    return t;
  }
  Graph Imported(const std::vector<std::string>& outputs) {
    for (const std::string& name : outputs) {
      if (model_.graph.output_size() < static_cast<int>(outputs.size())) model_.Output(name);
    }
    return Import(model_.proto);
  }
  std::vector<HostTensor> Evaluate(const std::vector<std::string>& outputs = {"y"}) {
    Graph graph = Imported(outputs);
    shardc::testing::Values given;
    for (const auto& v : graph.inputs()) given[v.get()] = inputs_.at(v->name);
    shardc::testing::Values values = shardc::testing::Interpret(graph, given);
    std::vector<HostTensor> out;
    for (const std::string& name : outputs) out.push_back(values.at(graph.FindOutput(name)));
    return out;
  }
  // Begins a model anew.
  void Restart(int opset = 17) {
    inputs_.clear();
    model_.graph.Clear();
    model_.proto.clear_opset_import();
    model_.Opset("", opset);
  }
  void ExpectRefused(const std::string& id, const std::string& text) {
    if (model_.graph.output_size() == 0) model_.Output("y");
    Diagnostic d = Failure(model_.proto);
    EXPECT_EQ(d.id(), id) << d.what();
    EXPECT_THAT(d.what(), ::testing::HasSubstr(text));
  }

  Model model_;
  std::map<std::string, HostTensor> inputs_;
};

inline int CountOps(const Graph& graph, std::string_view name) {
  int count = 0;
  for (const auto& op : graph.ops()) count += op->name() == name;
  return count;
}

}  // namespace shardc::import_testing
