// Weights that a file holds as small integers. What each op computes is tested by the node tests of
// tests/conformance, whole models by tests/exec/strangers_test.cc.
#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class DequantizeWeights : public ConverterTest {
 protected:
  DequantizeWeights() { model_.Opset("com.microsoft", 1); }

  // x [2, rows], f32.
  void Activations(int64_t rows) { model_.Input("x", {"2", std::to_string(rows)}); }
  NodeProto& Microsoft(const std::string& op, const std::vector<std::string>& inputs,
                       const std::vector<std::string>& outputs = {"y"}) {
    NodeProto& node = Node(op, inputs, outputs);
    node.set_domain("com.microsoft");
    return node;
  }
  // [32, 2], of one block a column, all of this byte.
  void OfBits(const std::string& name, int64_t byte) {
    Codes(name + "_Q4", {2, 1, 16}, Ints(32, byte), TensorProto::UINT8);
    model_.Floats(name + "_scales", {2, 1}, {0.5F, 2.0F});
  }
  NodeProto& ProductOfBits(const std::string& weight) {
    NodeProto& node = Microsoft("MatMulNBits", {"x", weight + "_Q4", weight + "_scales"});
    SetInt(node, "K", 32);
    SetInt(node, "N", 2);
    SetInt(node, "bits", 4);
    SetInt(node, "block_size", 32);
    return node;
  }
};

TEST_F(DequantizeWeights, OfDequantizeLinear) {
  Activations(2);
  Codes("h.fc.weight_quantized", {2, 3}, {1, -2, 3, 4, 5, -6});
  model_.Floats("scale", {3}, {0.5F, 1.0F, 2.0F});
  Codes("zero", {3}, {0, 1, 0});
  Node("DequantizeLinear", {"h.fc.weight_quantized", "scale", "zero"}, {"w"});
  Node("MatMul", {"x", "w"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(ParamNames(graph), ElementsAre("h.fc.weight"));
  EXPECT_THAT(Elements(graph, "h.fc.weight"), ElementsAre(0.5, -3, 6, 2, 4, -12));
  EXPECT_THAT(OpNames(graph), ElementsAre("param", "matmul"));
  EXPECT_THAT(graph.notes,
              ElementsAre("1 weight is small integers with scales in the file, and floats here"));
}

// A row of blocks at a time, as a plan's ranks read their shards.
TEST_F(DequantizeWeights, APartOfBlocksIsRead) {
  Activations(32);
  TensorProto& codes = Codes("w_Q4", {2, 1, 16}, Ints(32, 0x80), TensorProto::UINT8);
  codes.set_int32_data(0, 0xf3);
  codes.set_int32_data(17, 0x2b);
  model_.Floats("w_scales", {2, 1}, {0.5F, 2.0F});
  ProductOfBits("w");
  const Graph graph = Imported({"y"});
  EXPECT_THAT(ParamNames(graph), ElementsAre("w"));
  std::vector<float> part(8);
  graph.sources.at("w")->Read({0, 0}, {4, 2}, part.data());
  EXPECT_THAT(part, ElementsAre(-2.5F, -16, 3.5F, 0, -4, 6, 0, -12));
}

TEST_F(DequantizeWeights, TheNameMayBeTaken) {
  Activations(32);
  model_.Floats("w", {32}, std::vector<float>(32, 1));
  OfBits("w", 0x99);
  Node("Mul", {"x", "w"}, {"scaled"});
  ProductOfBits("w").set_input(0, "scaled");
  EXPECT_THAT(ParamNames(Imported({"y"})), UnorderedElementsAre("w", "w_1"));
}

// Of onnxruntime-genai's models with shared embeddings.
TEST_F(DequantizeWeights, ATableIsTheHeadsTranspose) {
  model_.Input("ids", {"2"}, TensorProto::INT64);
  OfBits("w", 0xb9);
  model_.Ints("shape", {2}, {2, 16});
  Node("Reshape", {"w_Q4", "shape"}, {"table"});
  NodeProto& lookup = Microsoft("GatherBlockQuantized", {"table", "ids", "w_scales"}, {"x"});
  SetInt(lookup, "bits", 4);
  SetInt(lookup, "block_size", 32);
  ProductOfBits("w");
  const Graph graph = Imported({"y"});
  EXPECT_THAT(ParamNames(graph), ElementsAre("w"));
  EXPECT_EQ(graph.Params()[0]->out().shape, (Shape{2, 32}));
}

// A table with columns that the head has not is another tensor.
TEST_F(DequantizeWeights, WhatIsTrainedApartIsTold) {
  model_.Input("ids", {"2"}, TensorProto::INT64);
  OfBits("w", 0xb9);
  model_.Ints("shape", {2}, {2, 16});
  Node("Reshape", {"w_Q4", "shape"}, {"table"});
  NodeProto& lookup = Microsoft("GatherBlockQuantized", {"table", "ids", "w_scales"}, {"rows"});
  SetInt(lookup, "block_size", 32);
  for (const auto& [name, value] : {std::pair("start", 0), {"end", 31}, {"axis", 1}})
    model_.Ints(name, {1}, {value});
  Node("Slice", {"rows", "start", "end", "axis"}, {"x"});
  ProductOfBits("w").mutable_attribute(0)->set_i(31);
  const Graph graph = Imported({"y"});
  EXPECT_THAT(ParamNames(graph), UnorderedElementsAre("w", "w_1"));
  EXPECT_THAT(graph.notes,
              Contains("'w' and 'w_1' are made of the same integers, but two tensors here, and "
                       "where they are trained, trained apart"));
}

// ONNX Runtime's quantize_dynamic.
TEST_F(DequantizeWeights, ProductsOfIntegersAreThoseOfFloats) {
  Activations(2);
  Codes("w_quantized", {2, 3}, {1, -2, 3, 4, 5, -6});
  model_.Floats("w_scale", {}, {0.5F});
  Codes("w_zero_point", {}, {0});
  Node("DynamicQuantizeLinear", {"x"}, {"q", "q_scale", "q_zero"});
  Node("MatMulInteger", {"q", "w_quantized", "q_zero", "w_zero_point"}, {"sums"});
  SetInt(Node("Cast", {"sums"}, {"cast"}), "to", TensorProto::FLOAT);
  Node("Mul", {"q_scale", "w_scale"}, {"both"});
  Node("Mul", {"cast", "both"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(ParamNames(graph), ElementsAre("w"));
  const Op* product = graph.FindOutput("y")->producer;
  EXPECT_EQ(product->name(), "matmul");
  EXPECT_EQ(product->in(1).dtype, DType::kF32);
}

TEST_F(DequantizeWeights, CodesThatAreMovedFirst) {
  model_.Input("ids", {"2"}, TensorProto::INT64);
  Codes("wte_quantized", {3, 2}, {1, -2, 3, 4, 5, -6});
  model_.Floats("scale", {1}, {0.5F});
  Node("Identity", {"wte_quantized"}, {"same"});
  Node("Gather", {"same", "ids"}, {"rows"});
  Node("DequantizeLinear", {"rows", "scale"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(ParamNames(graph), ElementsAre("wte"));
  EXPECT_THAT(OpNames(graph), Contains("gather"));
}

// Both branches have the same weight: there is one.
TEST_F(DequantizeWeights, InBranches) {
  Activations(32);
  model_.Input("flag", {}, TensorProto::BOOL);
  model_.graph.mutable_input(1)->mutable_type()->mutable_tensor_type()->mutable_shape();
  OfBits("w", 0x99);
  NodeProto choice;
  choice.set_op_type("If");
  choice.set_name("choice");
  choice.add_input("flag");
  choice.add_output("y");
  for (const char* name : {"then_branch", "else_branch"}) {
    NodeProto product = ProductOfBits("w");
    model_.graph.mutable_node()->RemoveLast();
    auto& attr = *choice.add_attribute();
    attr.set_name(name);
    attr.set_type(onnx::AttributeProto::GRAPH);
    product.set_output(0, "inner");
    *attr.mutable_g()->add_node() = product;
    attr.mutable_g()->add_output()->set_name("inner");
  }
  *model_.graph.add_node() = choice;
  model_.Output("y");
  ImportOptions options;
  options.bind["flag"] = 1;
  const Graph graph = Import(model_.proto, options);
  EXPECT_THAT(ParamNames(graph), ElementsAre("w"));
  EXPECT_EQ(graph.FindOutput("y")->producer->name(), "matmul");
}

// Older files list tensors as inputs, too: one that is erased is none either.
TEST_F(DequantizeWeights, TensorsThatAreListedAsInputs) {
  Activations(32);
  OfBits("w", 0x99);
  model_.Input("w_Q4", {"2", "1", "16"}, TensorProto::UINT8);
  model_.Input("w_scales", {"2", "1"});
  ProductOfBits("w");
  const Graph graph = Imported({"y"});
  EXPECT_EQ(graph.inputs().size(), 1U);
}

// What the integers were is not known then.
TEST_F(DequantizeWeights, OtherPackingsAreRefused) {
  auto refused = [&](const auto& change) {
    Restart();
    model_.Opset("com.microsoft", 1);
    Activations(32);
    OfBits("w", 0x99);
    NodeProto& node = ProductOfBits("w");
    change(node);
    model_.Output("y");
    const Diagnostic d = Failure(model_.proto);
    EXPECT_EQ(d.id(), "E1301");
    EXPECT_THAT(d.what(), HasSubstr("MatMulNBits"));
    EXPECT_THAT(d.what(), HasSubstr("before it was quantized"));
  };
  refused([](NodeProto& node) { SetInt(node, "weight_prepacked", 1); });
  refused([](NodeProto& node) { node.mutable_attribute(0)->set_i(64); });  // K
  refused([](NodeProto& node) { node.mutable_attribute(1)->set_i(3); });   // N
  refused([](NodeProto& node) { node.mutable_attribute(2)->set_i(3); });   // bits
  refused([](NodeProto& node) { node.mutable_attribute(3)->set_i(0); });   // block_size
  refused([](NodeProto& node) { node.set_input(2, "x"); });
  refused([](NodeProto& node) { node.add_input("x"); });
  refused([](NodeProto& node) { node.mutable_input()->RemoveLast(); });
}

TEST_F(DequantizeWeights, DataThatDoesNotFitIsAnError) {
  Activations(32);
  OfBits("w", 0x99);
  model_.graph.mutable_initializer(0)->mutable_int32_data()->RemoveLast();
  ProductOfBits("w");
  model_.Output("y");
  const Diagnostic d = Failure(model_.proto);
  EXPECT_EQ(d.id(), "E1402");
  EXPECT_THAT(d.what(), HasSubstr("tensor 'w_Q4'"));
}

// With the dims of equal length one vector may be of rows, and of columns.
TEST_F(DequantizeWeights, ZeroPointsOfAnotherAxisAreOthers) {
  Input("x", {2, 2});
  inputs_["x"] = HostTensor::Of<double>({2, 2}, {1, 2, 3, 4});
  SetInt(Node("Cast", {"x"}, {"narrow"}), "to", TensorProto::FLOAT);
  model_.Floats("s", {2}, {1, 1});
  Codes("z", {2}, {0, 10});
  SetInt(Node("QuantizeLinear", {"narrow", "s", "z"}, {"q"}), "axis", 0);
  SetInt(Node("DequantizeLinear", {"q", "s", "z"}), "axis", 1);
  const HostTensor y = Evaluate()[0];
  EXPECT_EQ(y, HostTensor::Of<float>({2, 2}, {1, -8, 13, 4}));
}

// Which is over all dims from its axis on.
TEST_F(DequantizeWeights, ASoftmaxOfOlderOpsetsIsRefused) {
  Codes("x", {2, 2}, {1, 2, 3, 4}, TensorProto::UINT8);
  model_.Floats("s", {}, {0.5F});
  Codes("z", {}, {0}, TensorProto::UINT8);
  SetInt(Microsoft("QLinearSoftmax", {"x", "s", "z", "s", "z"}), "opset", 12);
  model_.Output("y");
  EXPECT_EQ(Failure(model_.proto).id(), "E1301");
}

// Gradients go through what is rounded where it is in range: PyTorch's, of the same numbers.
TEST_F(DequantizeWeights, RoundedActivationsHaveGradients) {
  Activations(2);
  model_.Floats("s", {1}, {0.5F});
  Codes("z", {1}, {1});
  Node("QuantizeLinear", {"x", "s", "z"}, {"q"});
  Node("Transpose", {"q"}, {"turned"});
  Node("DequantizeLinear", {"turned", "s", "z"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("gradients pass")));
  const Op* turn = graph.FindOutput("y")->producer;
  EXPECT_EQ(turn->name(), "transpose");
  EXPECT_EQ(turn->in(0).dtype, DType::kF32);
}

TEST_F(DequantizeWeights, MovedCodesKeepTheTypeOfTheResult) {
  Restart(23);
  Activations(2);
  model_.Floats("s", {1}, {0.5F});
  Codes("z", {1}, {1});
  Node("QuantizeLinear", {"x", "s", "z"}, {"q"});
  Node("Transpose", {"q"}, {"turned"});
  SetInt(Node("DequantizeLinear", {"turned", "s", "z"}), "output_dtype", TensorProto::DOUBLE);
  EXPECT_EQ(Imported({"y"}).FindOutput("y")->type.dtype, DType::kF64);
}

// PyTorch's dynamo writes one beside a single scale, too.
TEST_F(DequantizeWeights, AnAxisOfOneScaleHasNoEffect) {
  Activations(2);
  model_.Floats("s", {}, {0.5F});
  Codes("z", {}, {1});
  SetInt(Node("QuantizeLinear", {"x", "s", "z"}, {"q"}), "axis", 1);
  SetInt(Node("DequantizeLinear", {"q", "s", "z"}), "axis", 1);
  EXPECT_EQ(Imported({"y"}).FindOutput("y")->type.shape, (Shape{2, 2}));
}

// Of as many rows as columns the shape does not tell along which the scales lie.
TEST_F(DequantizeWeights, OtherAxesOfTheSameCodesAreOtherWeights) {
  Activations(2);
  Codes("w", {2, 2}, {1, 2, 3, 4});
  model_.Floats("scale", {2}, {1.0F, 10.0F});
  SetInt(Node("DequantizeLinear", {"w", "scale"}, {"rows"}), "axis", 0);
  SetInt(Node("DequantizeLinear", {"w", "scale"}, {"columns"}), "axis", 1);
  Node("MatMul", {"x", "rows"}, {"h"});
  Node("MatMul", {"h", "columns"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(Elements(graph, "w_floats"), ElementsAre(1, 2, 30, 40));
  EXPECT_THAT(Elements(graph, "w_floats_1"), ElementsAre(1, 20, 3, 40));
  EXPECT_THAT(graph.notes, Contains(HasSubstr("trained apart")));
}

// A quantizer may give each use scales of its own.
TEST_F(DequantizeWeights, EqualScalesMakeTheSameWeight) {
  Activations(2);
  Codes("w", {2, 2}, {1, 2, 3, 4});
  model_.Floats("scale", {}, {2.0F});
  model_.Floats("scale_1", {}, {2.0F});
  Node("DequantizeLinear", {"w", "scale"}, {"one"});
  Node("DequantizeLinear", {"w", "scale_1"}, {"other"});
  Node("MatMul", {"x", "one"}, {"h"});
  Node("MatMul", {"h", "other"});
  EXPECT_EQ(Imported({"y"}).Params().size(), 1U);
}

TEST_F(DequantizeWeights, ATransposedMatrixHasScalesOfItsRows) {
  Activations(2);
  model_.Floats("one", {}, {1.0F});
  Codes("none", {}, {0});
  Codes("w", {2, 2}, {1, 2, 3, 4});
  model_.Floats("scale", {2}, {1.0F, 10.0F});
  Codes("zero", {2}, {0, 0});
  Node("QuantizeLinear", {"x", "one", "none"}, {"q"});
  SetInt(Microsoft("QGemm", {"q", "one", "none", "w", "scale", "zero"}), "transB", 1);
  const Graph graph = Imported({"y"});
  EXPECT_THAT(Elements(graph, graph.Params()[0]->attrs.String("name")), ElementsAre(1, 2, 30, 40));
}

// Scales that are small numbers themselves.
TEST_F(DequantizeWeights, ScalesMayBeCodesToo) {
  Activations(2);
  Codes("w", {2, 2}, {1, 2, 3, 4});
  Codes("scales", {2}, {1, 2});
  model_.Floats("of_scales", {}, {0.5F});
  Node("DequantizeLinear", {"scales", "of_scales"}, {"scale"});
  Node("DequantizeLinear", {"w", "scale"}, {"w_dequantized"});
  Node("MatMul", {"x", "w_dequantized"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(Elements(graph, "w_floats"), ElementsAre(0.5, 2, 1.5, 4));
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("1 weight is small integers")));
}

// Nothing is made for each index of dims that no data are there for.
TEST_F(DequantizeWeights, DimsWithoutData) {
  for (const Ints& dims : {Ints{int64_t{1} << 40, 2}, Ints{int64_t{1} << 40, 0}}) {
    Restart();
    Activations(2);
    Codes("w", dims, {});
    model_.Floats("scale", {}, {2.0F});
    Node("DequantizeLinear", {"w", "scale"}, {"floats"});
    Node("MatMul", {"x", "floats"});
    model_.Output("y");
    EXPECT_EQ(Failure(model_.proto).code(), ExitCode::kBadModel);
  }
}

}  // namespace
}  // namespace shardc::import_testing
