// What ops had as attributes, or meant, before opset 13.
#include <map>
#include <string>
#include <vector>

#include "tests/frontend/import_testing.h"
#include "tests/ir/interpreter.h"

namespace shardc {
namespace {

using import_testing::ImportTest;
using import_testing::Model;
using onnx::NodeProto;

void SetInts(NodeProto& node, const std::string& name, const std::vector<int64_t>& values) {
  auto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::INTS);
  for (int64_t v : values) a->add_ints(v);
}
void SetFloat(NodeProto& node, const std::string& name, float value) {
  auto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::FLOAT);
  a->set_f(value);
}

class OlderOpsets : public ImportTest {
 protected:
  OlderOpsets() {
    model_.proto.mutable_opset_import(0)->set_version(9);
    model_.Input("x", {"2", "1", "3"});
  }
  HostTensor Evaluate(const std::string& output = "y") {
    model_.Output(output);
    Graph graph = Import(model_.proto);
    testing::Values given;
    given[graph.FindInput("x")] = x_;
    return testing::Interpret(graph, given).at(graph.FindOutput(output));
  }

  Model model_;
  HostTensor x_ = HostTensor::Of<float>({2, 1, 3}, {-2, 0, 1, 3, 5, 8});
};

TEST_F(OlderOpsets, AxesAsAttributes) {
  SetInts(model_.Node("Squeeze", {"x"}, {"squeezed"}), "axes", {1});
  SetInts(model_.Node("Unsqueeze", {"squeezed"}, {"y"}), "axes", {0, 3});
  EXPECT_EQ(Evaluate(), x_.Reshaped({1, 2, 3, 1}));
}

// The outputs said before opset 14 that the batch's statistics are meant; after it they must not be
// there without training_mode.
TEST_F(OlderOpsets, BatchNormalizationWhoseOutputsSayThatItTrains) {
  model_.Ints("one", {1}, {1});
  auto* to = model_.Node("Cast", {"one"}, {"c"}).add_attribute();
  to->set_name("to"), to->set_type(onnx::AttributeProto::INT), to->set_i(onnx::TensorProto::FLOAT);
  SetFloat(
      model_.Node("BatchNormalization", {"x", "c", "c", "c", "c"}, {"y", "m1", "v1", "m2", "v2"}),
      "epsilon", 0);
  x_ = HostTensor::Of<float>({2, 1, 3}, {-2, -2, 4, -2, 4, 4});
  EXPECT_EQ(Evaluate(), HostTensor::Of<float>({2, 1, 3}, {0, 0, 2, 0, 2, 2}));
  model_.proto.mutable_opset_import(0)->set_version(14);
  EXPECT_EQ(Failure(model_.proto).id(), "E1301");
}

// The schema is of opset 10, ONNX Runtime has it from the first on.
TEST_F(OlderOpsets, ThresholdedRelu) {
  SetFloat(model_.Node("ThresholdedRelu", {"x"}, {"y"}), "alpha", 2);
  EXPECT_EQ(Evaluate(), HostTensor::Of<float>({2, 1, 3}, {0, 0, 0, 3, 5, 8}));
}

TEST_F(OlderOpsets, UnsqueezeWithoutAxes) {
  model_.Node("Unsqueeze", {"x"}, {"y"});
  model_.Output("y");
  EXPECT_EQ(Failure(model_.proto).id(), "E1302");
}

TEST_F(OlderOpsets, SlicesAsAttributes) {
  NodeProto& slice = model_.Node("Slice", {"x"}, {"y"});
  SetInts(slice, "starts", {1, -2});
  SetInts(slice, "ends", {2, 9});
  SetInts(slice, "axes", {0, 2});
  EXPECT_EQ(Evaluate(), HostTensor::Of<float>({1, 1, 2}, {5, 8}));
}

TEST_F(OlderOpsets, SliceWithoutBounds) {
  model_.Node("Slice", {"x"}, {"y"});
  model_.Output("y");
  EXPECT_EQ(Failure(model_.proto).id(), "E1302");
}

TEST_F(OlderOpsets, PiecesAsAttributes) {
  NodeProto& split = model_.Node("Split", {"x"}, {"a", "y"});
  SetInts(split, "split", {1, 2});
  auto* axis = split.add_attribute();
  axis->set_name("axis");
  axis->set_type(onnx::AttributeProto::INT);
  axis->set_i(2);
  EXPECT_EQ(Evaluate(), HostTensor::Of<float>({2, 1, 2}, {0, 1, 5, 8}));
}

TEST_F(OlderOpsets, PadsAndLimitsAsAttributes) {
  NodeProto& clip = model_.Node("Clip", {"x"}, {"clipped"});
  SetFloat(clip, "min", -1);
  SetFloat(clip, "max", 4);
  NodeProto& pad = model_.Node("Pad", {"clipped"}, {"y"});
  SetInts(pad, "pads", {0, 0, 1, 0, 0, 0});
  SetFloat(pad, "value", 7);
  EXPECT_EQ(Evaluate(), HostTensor::Of<float>({2, 1, 4}, {7, -1, 0, 1, 7, 3, 4, 4}));
}

TEST_F(OlderOpsets, PadWithoutPads) {
  model_.Node("Pad", {"x"}, {"y"});
  model_.Output("y");
  EXPECT_EQ(Failure(model_.proto).id(), "E1302");
}

// From axis 1 on, which is the default, all dims are one.
TEST_F(OlderOpsets, SoftmaxOverSeveralDims) {
  SetInts(model_.Node("Squeeze", {"x"}, {"flat"}), "axes", {1});
  SetInts(model_.Node("Transpose", {"x"}, {"turned"}), "perm", {0, 2, 1});
  model_.Node("Softmax", {"turned"}, {"y"});
  HostTensor turned = Evaluate();
  model_.graph.clear_output();
  model_.Node("Softmax", {"flat"}, {"z"});
  EXPECT_EQ(turned, Evaluate("z").Reshaped({2, 3, 1}));
  model_.graph.clear_output();
  model_.Node("LogSoftmax", {"turned"}, {"log"});
  model_.Node("Exp", {"log"}, {"exp"});
  EXPECT_LT(testing::MaxError(Evaluate("exp"), turned), 1e-6);
}

// What the declared opset does not have, though other opsets do: onnx.checker 1.23.2 refuses each.
TEST_F(OlderOpsets, WhatAnOpsetDoesNotHaveIsRefused) {
  struct Case {
    int opset;
    std::string op;
    std::vector<std::string> inputs;
    std::string attribute, said;
  };
  const Case cases[] = {
      {17, "Gelu", {"x"}, "", "Gelu came with opset 20, and the model declares opset 17"},
      {11, "Scatter", {"x", "ids", "x"}, "", "Scatter went with opset 11"},
      {12, "ReduceMean", {"x", "ids"}, "", "input 1 of ReduceMean came with opset 18"},
      {18, "ReduceMean", {"x"}, "axes", "attribute 'axes' of ReduceMean went with opset 18"},
      {13, "Squeeze", {"x"}, "axes", "attribute 'axes' of Squeeze went with opset 13"},
      {11, "Squeeze", {"x", "ids"}, "", "input 1 of Squeeze came with opset 13"},
      {10, "Clip", {"x", "", "low"}, "", "input 2 of Clip came with opset 11"},
  };
  for (const Case& c : cases) {
    Model m;
    m.proto.mutable_opset_import(0)->set_version(c.opset);
    m.Input("x", {"2", "1", "3"});
    m.Ints("ids", {1}, {1});
    m.Floats("low", {}, {0});
    NodeProto& node = m.Node(c.op, c.inputs, {"y"});
    if (!c.attribute.empty()) SetInts(node, c.attribute, {1});
    m.Output("y");
    const Diagnostic d = Failure(m.proto);
    EXPECT_EQ(d.id(), "E1301") << c.op;
    EXPECT_THAT(d.what(), ::testing::HasSubstr(c.said));
  }
}

// Integers where the declared opset has none: ONNX Runtime 1.31.1 refuses each.
TEST_F(OlderOpsets, IntegersThatAnOpsetDoesNotAllowAreRefused) {
  struct Case {
    int opset;
    std::string op;
    int type;
    bool refused;
  };
  using T = onnx::TensorProto;
  const Case cases[] = {
      {13, "Relu", T::INT32, true},      {14, "Relu", T::INT32, false},
      {14, "Relu", T::UINT8, true},      {18, "LeakyRelu", T::INT64, true},
      {18, "Softsign", T::INT32, true},  {18, "Neg", T::UINT32, true},
      {18, "Neg", T::INT8, false},       {18, "Sum", T::INT64, true},
      {11, "Max", T::INT64, true},       {12, "Max", T::INT64, false},
      {18, "ReduceMax", T::BOOL, true},  {20, "ReduceMax", T::BOOL, false},
      {18, "ReduceSum", T::INT16, true}, {18, "ReduceMean", T::INT8, true},
      {18, "ReduceL1", T::INT32, false}, {12, "ReduceMin", T::UINT8, false},
      {11, "ReduceMin", T::UINT8, true}, {18, "Exp", T::INT64, true},
  };
  for (const Case& c : cases) {
    Model m;
    m.proto.mutable_opset_import(0)->set_version(c.opset);
    m.Input("x", {"2"});
    auto& t = *m.graph.add_initializer();
    t.set_name("numbers");
    t.set_data_type(c.type);
    t.add_dims(2);
    for (int i = 0; i < 2; ++i) t.add_int32_data(1);
    if (c.type == T::INT64 || c.type == T::UINT32) {
      t.clear_int32_data();
      for (int i = 0; i < 2; ++i) c.type == T::INT64 ? t.add_int64_data(1) : t.add_uint64_data(1);
    }
    m.Node(c.op, {"numbers"}, {"ints"});
    onnx::AttributeProto& to = *m.Node("Cast", {"ints"}, {"floats"}).add_attribute();
    to.set_name("to");
    to.set_type(onnx::AttributeProto::INT);
    to.set_i(T::FLOAT);
    m.Node("Add", {"x", "floats"}, {"y"});
    m.Output("y");
    const std::string what = StrCat(c.op, " of ", c.type, " in opset ", c.opset);
    if (!c.refused) {
      EXPECT_NO_THROW(Import(m.proto)) << what;
      continue;
    }
    const Diagnostic d = Failure(m.proto);
    EXPECT_EQ(d.id(), "E1301") << what;
    EXPECT_THAT(d.what(), ::testing::HasSubstr("does not allow")) << what;
  }
}

}  // namespace
}  // namespace shardc
