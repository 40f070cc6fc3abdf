// Attention and RotaryEmbedding of ONNX itself: forms and refusals that the node tests do not
// reach.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class AttentionConverters : public ConverterTest {};

// Without a bound it is the op attention, whose rows without keys are 0: under a bound that bounds
// nothing they are, too, and not infinity less infinity.
TEST_F(AttentionConverters, CappedScoresOfNoKeysGiveNothing) {
  model_.proto.mutable_opset_import(0)->set_version(23);
  for (const char* name : {"q", "k", "v"}) Input(name, {1, 2, 3, 4}, name[0]);
  Input("x", {3, 3});  // its middle row is negative
  Integers("zero", {0}, true);
  Node("CastLike", {"zero", "x"}, {"nothing"});
  Node("Greater", {"x", "nothing"}, {"keep"});
  Node("CastLike", {"keep", "x"}, {"ones"});
  Node("Log", {"ones"}, {"added"});
  std::vector<std::string> outputs;
  for (const char* mask : {"keep", "added"}) {
    for (const char* form : {"capped", "plain"}) {
      outputs.push_back(StrCat(form, "_", mask));
      NodeProto& node = Node("Attention", {"q", "k", "v", mask}, {outputs.back()});
      if (form == std::string("capped")) SetFloat(node, "softcap", 1e6f);
    }
  }
  auto out = Evaluate(outputs);
  for (size_t i = 0; i < out.size(); i += 2) {
    EXPECT_EQ(out[i].AsDouble(4), 0) << outputs[i];
    for (int64_t e = 0; e < out[i].num_elements(); ++e) {
      EXPECT_NEAR(out[i].AsDouble(e), out[i + 1].AsDouble(e), 1e-9) << outputs[i] << e;
    }
  }
}

// The op attention gives its mask no gradient.
TEST_F(AttentionConverters, WhatIsTrainedIsAddedToTheScores) {
  for (const bool trained : {false, true}) {
    Restart(23);
    for (const char* name : {"q", "k", "v"}) Input(name, {1, 1, 3, 4}, name[0]);
    std::vector<float> mask = {0, -1e9f, -1e9f, 0, 0, -1e9f, 0, 0, 0};
    for (size_t i = 0; trained && i < mask.size(); ++i)
      mask[i] = std::sin(static_cast<float>(i * i));
    model_.Floats("bias", {3, 3}, mask);
    SetInt(Node("Attention", {"q", "k", "v", "bias"}), "is_causal", 1);
    Graph graph = Imported({"y"});
    EXPECT_EQ(graph.Params().size(), trained ? 1u : 0u);
    std::set<std::string> ops;
    for (const auto& op : graph.ops()) ops.insert(std::string(op->name()));
    EXPECT_EQ(ops.contains("attention"), !trained);
    EXPECT_EQ(ops.contains("softmax"), trained);
  }
}

TEST_F(AttentionConverters, AFlagIsZeroOrOne) {
  Restart(23);
  for (const char* name : {"q", "k", "v"}) Input(name, {1, 2, 3, 4}, name[0]);
  SetInt(Node("Attention", {"q", "k", "v"}), "is_causal", 2);
  ExpectRefused("E1303", "attribute 'is_causal' is 2; it has to be 0 or 1");
}

// ONNX lets masks and tables of positions broadcast one way only.
TEST_F(AttentionConverters, MasksThatWouldMakeTheScoresLargerAreRefused) {
  for (const Shape& mask : {Shape{3, 1, 3, 3}, Shape{2, 3}, Shape{3, 5}, Shape{1, 1, 1, 3, 3}}) {
    Restart(23);
    for (const char* name : {"q", "k", "v"}) Input(name, {1, 2, 3, 4}, name[0]);
    Input("mask", mask);
    Node("Attention", {"q", "k", "v", "mask"});
    ExpectRefused("E1303", StrCat("its mask of shape ", ShapeToString(mask),
                                  " does not broadcast to [1, 2, 3, 3]"));
  }
}

TEST_F(AttentionConverters, TablesOfOtherPositionsAreRefused) {
  for (const Shape& table : {Shape{3, 3, 2}, Shape{2, 1, 2}, Shape{2, 4, 2}, Shape{2, 3, 1}}) {
    Restart(23);
    Input("x", {2, 2, 3, 4});
    Input("cos", table);
    Input("sin", table);
    Node("RotaryEmbedding", {"x", "cos", "sin"});
    ExpectRefused("E1303", StrCat("have shape ", ShapeToString(table), " but need [2, 3, 2]"));
  }
}

// ONNX has one type for all three; the op itself takes tables in f32 beside halves.
TEST_F(AttentionConverters, TablesOfAnotherTypeThanWhatTheyTurnAreRefused) {
  for (auto [x, table] : {std::pair(TensorProto::FLOAT16, TensorProto::FLOAT),
                          {TensorProto::FLOAT, TensorProto::FLOAT16}}) {
    Restart(23);
    model_.Input("x", {"2", "2", "3", "4"}, x);
    model_.Input("cos", {"2", "3", "2"}, table);
    model_.Input("sin", {"2", "3", "2"}, table);
    Node("RotaryEmbedding", {"x", "cos", "sin"});
    const bool half = x == TensorProto::FLOAT16;
    ExpectRefused("E1303", StrCat("the cos and sin of RotaryEmbedding are ", half ? "f32" : "f16",
                                  ", what they turn is ", half ? "f16" : "f32"));
  }
}

TEST_F(AttentionConverters, RotaryEmbeddingIsOneOp) {
  for (bool interleaved : {false, true}) {
    for (int64_t rotated : {0, 4}) {
      Restart(23);
      Input("x", {2, 3, 5, 6});
      const int64_t pairs = (rotated == 0 ? 6 : rotated) / 2;
      Input("cos", {2, 5, pairs}, 7);
      Input("sin", {2, 5, pairs}, 8);
      NodeProto& node = Node("RotaryEmbedding", {"x", "cos", "sin"});
      SetInt(node, "interleaved", interleaved);
      if (rotated > 0) SetInt(node, "rotary_embedding_dim", rotated);
      const Graph g = Imported({"y"});
      EXPECT_EQ(CountOps(g, "rotary"), 1);
      EXPECT_EQ(CountOps(g, "split") + CountOps(g, "concat"), 0);
    }
  }
}

}  // namespace
}  // namespace shardc::import_testing
