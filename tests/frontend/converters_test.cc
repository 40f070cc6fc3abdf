// What the node tests of tests/conformance do not reach: forms, opsets and refusals of single ops.
// Families of ops have files of their own.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class Converters : public ConverterTest {};

TEST_F(Converters, ConstantsOfAttributes) {
  SetInt(Node("Constant", {}, {"a"}), "value_int", 7);
  SetInts(Node("Constant", {}, {"b"}), "value_ints", {3, -4});
  SetFloat(Node("Constant", {}, {"c"}), "value_float", 0.1f);
  auto out = Evaluate({"a", "b", "c"});
  EXPECT_EQ(out[0], HostTensor::Scalar<int64_t>(7));
  EXPECT_EQ(out[1], HostTensor::Of<int64_t>({2}, {3, -4}));
  EXPECT_EQ(out[2], HostTensor::Scalar(0.1f));
}

TEST_F(Converters, ReduceTakesAxesAsAttributeBeforeOpset18) {
  Input("x", {2, 3});
  NodeProto& node = Node("ReduceMean", {"x"});
  SetInts(node, "axes", {-1});
  SetInt(node, "keepdims", 0);
  HostTensor y = Evaluate()[0], &x = inputs_["x"];
  ASSERT_EQ(y.shape(), Shape{2});
  EXPECT_NEAR(y.AsDouble(1), (x.AsDouble(3) + x.AsDouble(4) + x.AsDouble(5)) / 3, 1e-15);
}

// The numbers are ONNX Runtime's.
TEST_F(Converters, ReduceOverNoAxesStillActsOnEachElement) {
  model_.proto.mutable_opset_import(0)->set_version(18);
  Input("x", {2});
  inputs_["x"] = HostTensor::Of<double>({2}, {0.5, 3});
  const std::vector<std::pair<std::string, double>> expected = {
      {"ReduceSum", 3},       {"ReduceMean", 3},
      {"ReduceMax", 3},       {"ReduceProd", 3},
      {"ReduceLogSumExp", 3}, {"ReduceSumSquare", 9},
      {"ReduceL1", 3},        {"ReduceL2", 3},
      {"ReduceMin", 3},       {"ReduceLogSum", 1.0986122886681098}};
  std::vector<std::string> names;
  for (const auto& [op, value] : expected) {
    SetInt(Node(op, {"x"}, {op}), "noop_with_empty_axes", 1);
    names.push_back(op);
  }
  std::vector<HostTensor> got = Evaluate(names);
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(got[i].shape(), Shape{2}) << names[i];
    EXPECT_NEAR(got[i].AsDouble(1), expected[i].second, 1e-12) << names[i];
  }
}

TEST_F(Converters, BiasGeluOfMicrosoft) {
  model_.Opset("com.microsoft", 1);
  Input("x", {2, 4});
  Input("b", {4});
  Node("BiasGelu", {"x", "b"}).set_domain("com.microsoft");
  HostTensor y = Evaluate()[0];
  double v = inputs_["x"].AsDouble(5) + inputs_["b"].AsDouble(1);
  EXPECT_NEAR(y.AsDouble(5), v * 0.5 * (1 + std::erf(v / std::sqrt(2.0))), 1e-15);
}

// What ONNX Runtime fuses beside what it was fused from.
TEST_F(Converters, FusedProducts) {
  model_.Opset("com.microsoft", 1);
  Input("a", {2, 3, 4});
  Input("b", {2, 5, 3});
  NodeProto& fused = Node("FusedMatMul", {"a", "b"});
  fused.set_domain("com.microsoft");
  SetInt(fused, "transA", 1);
  SetInt(fused, "transB", 1);
  SetFloat(fused, "alpha", 0.5f);
  SetInts(Node("Transpose", {"a"}, {"at"}), "perm", {0, 2, 1});
  SetInts(Node("Transpose", {"b"}, {"bt"}), "perm", {0, 2, 1});
  Node("MatMul", {"at", "bt"}, {"product"});
  Node("Add", {"y", "y"}, {"twice"});
  Input("c", {5});
  Input("m", {4, 5});
  Input("n", {3, 4});
  NodeProto& gemm = Node("FusedGemm", {"n", "m", "c"}, {"active"});
  gemm.set_domain("com.microsoft");
  SetString(gemm, "activation", "Relu");
  Node("Gemm", {"n", "m", "c"}, {"sum"});
  Node("Relu", {"sum"}, {"expected"});
  auto out = Evaluate({"twice", "product", "active", "expected"});
  EXPECT_LT(testing::MaxError(out[0], out[1]), 1e-14);
  EXPECT_EQ(out[2], out[3]);
}

TEST_F(Converters, FusedSkipsAndNorms) {
  model_.Opset("com.microsoft", 1);
  for (const char* name : {"x", "skip"}) Input(name, {2, 3, 4});
  for (const char* name : {"w", "b", "c"}) Input(name, {4});
  for (bool simplified : {false, true}) {
    std::string kind = simplified ? "Simplified" : "", n = simplified ? "1" : "0";
    std::vector<std::string> inputs = {"x", "skip", "w"};
    if (!simplified) inputs.push_back("b");
    inputs.push_back("c");
    NodeProto& fused =
        Node("Skip" + kind + "LayerNormalization", inputs, {"y" + n, "", "", "sum" + n});
    fused.set_domain("com.microsoft");
    SetFloat(fused, "epsilon", 0.25f);
    NodeProto& norm = simplified
                          ? Node("SimplifiedLayerNormalization", {"sum" + n, "w"}, {"want" + n})
                          : Node("LayerNormalization", {"sum" + n, "w", "b"}, {"want" + n});
    SetFloat(norm, "epsilon", 0.25f);
  }
  Node("Add", {"x", "skip"}, {"xs"});
  Node("Add", {"xs", "c"}, {"sum"});
  auto out = Evaluate({"y0", "want0", "sum0", "sum", "y1", "want1", "sum1"});
  EXPECT_EQ(out[0], out[1]);
  EXPECT_EQ(out[2], out[3]);
  EXPECT_EQ(out[4], out[5]);
  EXPECT_EQ(out[6], out[3]);
}

// A later opset may have given the op a window, say: what is not read is not guessed to be nothing.
TEST_F(Converters, AttributesThatNobodyReadsAreRefused) {
  Input("x", {2, 3});
  SetInt(Node("Relu", {"x"}), "window", 1);
  ExpectRefused("E1301", "its attribute 'window' is not supported");
}

TEST_F(Converters, NotesOfToolsAreNotAttributes) {
  Input("x", {2, 3});
  SetInt(Node("Relu", {"x"}), "__note", 1);
  EXPECT_EQ(Evaluate()[0].shape(), (Shape{2, 3}));
}

TEST_F(Converters, InputsThatNobodyReadsAreRefused) {
  Input("x", {2, 3});
  Input("scale", {3});
  Node("Relu", {"x", "scale"});
  ExpectRefused("E1301", "its input 1, 'scale', is not supported");
}

TEST_F(Converters, AttributesOfWhatANodeLacksAreIgnored) {
  Input("x", {2, 3});
  NodeProto& gemm = Node("Gemm", {"x", "x"});
  SetFloat(gemm, "beta", 3);
  SetInt(gemm, "transB", 1);
  EXPECT_EQ(Evaluate()[0].shape(), (Shape{2, 2}));
}

// ONNX broadcasts them to what they are applied to, not the other way round.
TEST_F(Converters, OperandsThatWouldMakeTheResultLargerAreRefused) {
  for (const std::string op : {"Gemm", "LayerNormalization", "RMSNormalization"}) {
    SCOPED_TRACE(op);
    Restart(23);
    Input("x", {1, 4});
    Input("square", {4, 4});
    Input("w", {3, 4});
    Node(op, op == "Gemm" ? std::vector<std::string>{"x", "square", "w"}
                          : std::vector<std::string>{"x", "w"});
    ExpectRefused("E1303", "of shape [3, 4] does not broadcast to [1, 4]");
  }
  Restart();
  Input("x", {2, 3, 4});
  Input("w", {2, 3, 2});
  Input("b", {1});
  Node("Conv", {"x", "w", "b"});
  ExpectRefused("E1303", "the bias of Conv has shape [1], its result 2 channels");
  Restart();
  Input("x", {2, 3});
  Input("low", {3});
  Node("Clip", {"x", "low"});
  ExpectRefused("E1303", "a limit of Clip is one number");
  for (const std::string op : {"SkipLayerNormalization", "BiasSplitGelu", "BiasAdd"}) {
    SCOPED_TRACE(op);
    Restart();
    model_.Opset("com.microsoft", 1);
    Input("x", {1, 3, 4});
    Input("more", {2, 3, 4});
    Input("w", {4});
    std::vector<std::string> inputs = {"x", "more", "w"};
    if (op == "BiasSplitGelu") inputs.pop_back();
    Node(op, inputs).set_domain("com.microsoft");
    ExpectRefused("E1303", "input 1 of shape [2, 3, 4] does not broadcast to [1, 3, 4]");
  }
}

TEST_F(Converters, SlopesThatWouldMakeTheResultLargerAreRefused) {
  Input("x", {1, 3});
  Input("slope", {2, 3});
  Node("PRelu", {"x", "slope"});
  ExpectRefused("E1303", "input 1 of shape [2, 3] does not broadcast to [1, 3]");
}

// Wherever NaN stands, it is the largest and the smallest, as in PyTorch.
TEST_F(Converters, ThePositionOfNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Input("x", {3, 3});
  inputs_["x"] = HostTensor::Of<double>({3, 3}, {nan, nan, nan, 5, nan, 3, 1, 4, 4});
  for (const char* op : {"ArgMax", "ArgMin"}) {
    NodeProto& node = Node(op, {"x"}, {op});
    SetInt(node, "axis", 1);
    SetInt(node, "keepdims", 0);
  }
  auto out = Evaluate({"ArgMax", "ArgMin"});
  EXPECT_EQ(out[0], HostTensor::Of<int64_t>({3}, {0, 1, 1}));
  EXPECT_EQ(out[1], HostTensor::Of<int64_t>({3}, {0, 1, 0}));
}

TEST_F(Converters, FusedActivationsWithoutAMeaningAreRefused) {
  model_.Opset("com.microsoft", 1);
  Input("a", {3, 3});
  NodeProto& fused = Node("FusedGemm", {"a", "a"});
  fused.set_domain("com.microsoft");
  SetString(fused, "activation", "Clip");
  ExpectRefused("E1301", "FusedGemm with the activation Clip");
}

TEST_F(Converters, DropoutInTraining) {
  Input("x", {20, 30});
  model_.Floats("ratio", {}, {0.25f});
  TensorProto* training = model_.graph.add_initializer();
  training->set_name("training");
  training->set_data_type(TensorProto::BOOL);
  training->add_int32_data(1);
  Node("Dropout", {"x", "ratio", "training"}, {"a"});
  SetInt(Node("Dropout", {"a", "ratio", "training"}, {"y", "mask"}), "seed", 5);
  Graph graph = Imported({"a", "y", "mask"});
  EXPECT_EQ(CountOps(graph, "state"), 1);
  testing::Values given = {{graph.inputs()[0].get(), inputs_["x"]}};
  int64_t dropouts = 0;
  for (const auto& op : graph.ops()) {
    if (op->name() == "state") given[op->result()] = HostTensor::Scalar(int64_t{1});
    if (op->name() != "dropout") continue;
    EXPECT_EQ(op->attrs.Float("ratio"), 0.25);
    EXPECT_EQ(op->attrs.Int("stream"), dropouts);
    EXPECT_EQ(op->attrs.Int("seed"), 5 * dropouts);
    ++dropouts;
  }
  EXPECT_EQ(dropouts, 2);
  testing::Values values = testing::Interpret(graph, given);
  const HostTensor &a = values.at(graph.FindOutput("a")), &y = values.at(graph.FindOutput("y"));
  const HostTensor& mask = values.at(graph.FindOutput("mask"));
  int64_t kept = 0;
  for (int64_t i = 0; i < 600; ++i) {
    const bool keep = mask.AsInt(i) != 0;
    kept += keep;
    EXPECT_NEAR(y.AsDouble(i), keep ? a.AsDouble(i) / 0.75 : 0, 1e-12) << i;
  }
  EXPECT_NEAR(static_cast<double>(kept), 450, 4 * std::sqrt(600 * 0.25 * 0.75));
}

TEST_F(Converters, DropoutOfEverythingIsRefused) {
  Input("x", {2});
  model_.Floats("ratio", {}, {1.0f});
  TensorProto* training = model_.graph.add_initializer();
  training->set_name("training");
  training->set_data_type(TensorProto::BOOL);
  training->add_int32_data(1);
  Node("Dropout", {"x", "ratio", "training"});
  ExpectRefused("E1303", "not in [0, 1)");
}

TEST_F(Converters, AShapeThatDependsOnDataIsRefused) {
  Input("x", {4});
  model_.Input("shape", {"2"}, TensorProto::INT64);
  Node("Reshape", {"x", "shape"});
  ExpectRefused("E1304", "known when compiling");
  ExpectRefused("E1304", "export after model.set_experts_implementation(\"batched_mm\")");
}

TEST_F(Converters, ReshapeThatDoesNotFitIsRefused) {
  Input("x", {5, 2});
  Integers("shape", {-1, 3});
  Node("Reshape", {"x", "shape"});
  ExpectRefused("E1303", "10 elements");
}

TEST_F(Converters, GroupsThatDoNotFitAreRefused) {
  Input("x", {1, 6, 4});
  Input("w", {6, 2, 1});
  SetInt(Node("Conv", {"x", "w"}), "group", 4);
  ExpectRefused("E1303", "4 groups do not divide the 6 channels of its input");
}

TEST_F(Converters, GroupsOfOtherChannelsAreRefused) {
  Input("x", {1, 6, 4});
  Input("w", {6, 1, 1});
  SetInt(Node("Conv", {"x", "w"}), "group", 3);
  ExpectRefused("E1303", "takes 1 channels, its input has 2 in each group");
}

}  // namespace
}  // namespace shardc::import_testing
