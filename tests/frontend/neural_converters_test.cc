// Products, norms and losses: types, shapes and opsets that the node tests do not reach.
#include <cmath>
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class NeuralConverters : public ConverterTest {};

TEST_F(NeuralConverters, EpsilonIsTheFloatExactly) {
  Input("x", {2, 4});
  Input("w", {4});
  SetFloat(Node("LayerNormalization", {"x", "w"}), "epsilon", 1e-5f);
  Graph graph = Imported({"y"});
  for (const auto& op : graph.ops()) {
    if (op->name() == "layer_norm") {
      EXPECT_EQ(op->attrs.Float("eps"), 1e-5f);
    }
  }
  EXPECT_EQ(CountOps(graph, "layer_norm"), 1);
}

// A scale over fewer dims than are normalised is applied on its own.
TEST_F(NeuralConverters, NormWithABroadcastScale) {
  Input("x", {2, 3, 4});
  Input("w", {4});
  SetInt(Node("LayerNormalization", {"x", "w"}), "axis", 1);
  HostTensor y = Evaluate()[0], &x = inputs_["x"], &w = inputs_["w"];
  for (int64_t i = 0; i < 24; ++i) {
    double mean = 0, square = 0;
    for (int64_t j = i / 12 * 12, end = j + 12; j < end; ++j) {
      mean += x.AsDouble(j) / 12;
      square += x.AsDouble(j) * x.AsDouble(j) / 12;
    }
    double rstd = 1 / std::sqrt(square - mean * mean + double{1e-5f});
    EXPECT_NEAR(y.AsDouble(i), (x.AsDouble(i) - mean) * rstd * w.AsDouble(i % 4), 1e-12);
  }
}

TEST_F(NeuralConverters, LossOfALogSoftmaxIsOneCrossEntropy) {
  Input("x", {3, 5});
  Integers("labels", {4, 0, 2});
  SetInt(Node("LogSoftmax", {"x"}, {"p"}), "axis", 1);
  Node("NegativeLogLikelihoodLoss", {"p", "labels"});
  Node("SoftmaxCrossEntropyLoss", {"x", "labels"}, {"z"});
  Graph graph = Imported({"y", "z"});
  EXPECT_EQ(CountOps(graph, "log"), 0);
  std::vector<HostTensor> out = Evaluate({"y", "z"});
  EXPECT_EQ(out[0], out[1]);
}

TEST_F(NeuralConverters, MatMulOfVectors) {
  Input("a", {3});
  Input("b", {2, 3, 4});
  Node("MatMul", {"a", "b"});
  EXPECT_EQ(Evaluate()[0].shape(), (Shape{2, 4}));
}

// Opset 18 scales each group as a whole, 21 every channel.
TEST_F(NeuralConverters, GroupNormalizationScalesGroupsOrChannels) {
  Restart(21);
  Input("x", {2, 4, 3});
  Input("scale", {2});
  Input("bias", {2});
  Integers("twice", {0, 0, 1, 1});
  for (const char* name : {"scale", "bias"}) {
    Node("Gather", {name, "twice"}, {StrCat(name, "s")});
  }
  SetInt(Node("GroupNormalization", {"x", "scale", "bias"}, {"groups"}), "num_groups", 2);
  SetInt(Node("GroupNormalization", {"x", "scales", "biass"}, {"channels"}), "num_groups", 2);
  auto out = Evaluate({"groups", "channels"});
  EXPECT_EQ(out[0], out[1]);
}

TEST_F(NeuralConverters, GroupsOfNoChannelsAreRefused) {
  Restart(21);
  Input("x", {2, 4, 3});
  Input("v", {4});
  SetInt(Node("GroupNormalization", {"x", "v", "v"}), "num_groups", 3);
  ExpectRefused("E1303", "[2, 4, 3] has no channels for 3 groups");
}

TEST_F(NeuralConverters, LossesHaveTheTypeOfTheirScores) {
  model_.Input("x", {"3", "4"}, TensorProto::FLOAT16);
  inputs_["x"] = Numbers({3, 4}, DType::kF16);
  Integers("labels", {2, 0, 3});
  std::vector<std::string> outputs;
  for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    for (const char* reduction : {"none", "sum", "mean"}) {
      outputs.push_back(StrCat(op, reduction));
      SetString(Node(op, {"x", "labels"}, {outputs.back()}), "reduction", reduction);
    }
  }
  for (const HostTensor& loss : Evaluate(outputs)) EXPECT_EQ(loss.dtype(), DType::kF16);
}

// Of the type that stash_type says, float without it.
TEST_F(NeuralConverters, StatisticsHaveATypeOfTheirOwn) {
  Input("x", {2, 4});
  Input("w", {4});
  Node("LayerNormalization", {"x", "w"}, {"y", "mean"});
  SetInt(Node("LayerNormalization", {"x", "w"}, {"z", "", "deviation"}), "stash_type",
         TensorProto::BFLOAT16);
  auto out = Evaluate({"y", "mean", "deviation"});
  EXPECT_EQ(out[0].dtype(), DType::kF64);
  EXPECT_EQ(out[1].dtype(), DType::kF32);
  EXPECT_EQ(out[2].dtype(), DType::kBF16);
}

}  // namespace
}  // namespace shardc::import_testing
