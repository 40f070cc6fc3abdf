// What ONNX Runtime fuses, in the forms that its CPU kernels do not have (tests/conformance has the
// others), beside the same without the fusion; and what is refused.
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

using ::testing::HasSubstr;

class FusedConverters : public ConverterTest {
 protected:
  FusedConverters() { model_.Opset("com.microsoft", 1); }

  // No two with the same values.
  void Input(const std::string& name, const Shape& shape) {
    ConverterTest::Input(name, shape, 1 + 7 * static_cast<int64_t>(inputs_.size()));
  }
  NodeProto& Fused(const std::string& op, const std::vector<std::string>& inputs,
                   const std::vector<std::string>& outputs = {"y"}) {
    NodeProto& node = model_.Node(op, inputs, outputs);
    node.set_domain("com.microsoft");
    return node;
  }
  // q, k and v of GroupQueryAttention, 4 and 2 heads of 4, and its lengths.
  NodeProto& GroupQuery(int64_t total = 3, const std::vector<int64_t>& lengths = {2, 2}) {
    Input("q", {2, 3, 16});
    Input("k", {2, 3, 8});
    Input("v", {2, 3, 8});
    model_.Ints("lengths", {static_cast<int64_t>(lengths.size())}, lengths);
    model_.Ints("total", {}, {total});
    NodeProto& node = Fused("GroupQueryAttention", {"q", "k", "v", "", "", "lengths", "total"});
    SetInt(node, "num_heads", 4);
    SetInt(node, "kv_num_heads", 2);
    return node;
  }
};

// [b, s, heads, n, d] holds what n inputs of [b, s, heads * d] do.
TEST_F(FusedConverters, PackedMultiHeadAttention) {
  Input("qkv", {2, 3, 2, 3, 4});
  Input("kv", {2, 5, 2, 2, 4});
  Input("x", {2, 3, 8});
  Input("b", {24});
  model_.Ints("flat", {3}, {0, 0, 8});
  auto part = [&](const std::string& from, int64_t i, const std::string& to) {
    model_.Ints(to + "_at", {}, {i});
    SetInt(model_.Node("Gather", {from, to + "_at"}, {to + "_part"}), "axis", 3);
    model_.Node("Reshape", {to + "_part", "flat"}, {to});
  };
  for (int64_t i = 0; i < 3; ++i) part("qkv", i, std::string(1, "qkv"[i]));
  part("kv", 0, "k2");
  part("kv", 1, "v2");
  SetInt(Fused("MultiHeadAttention", {"qkv", "", "", "b"}, {"y"}), "num_heads", 2);
  SetInt(Fused("MultiHeadAttention", {"q", "k", "v", "b"}, {"want_y"}), "num_heads", 2);
  SetInt(Fused("MultiHeadAttention", {"x", "kv"}, {"z"}), "num_heads", 2);
  SetInt(Fused("MultiHeadAttention", {"x", "k2", "v2"}, {"want_z"}), "num_heads", 2);
  auto out = Evaluate({"y", "want_y", "z", "want_z"});
  EXPECT_EQ(out[0], out[1]);
  EXPECT_EQ(out[2], out[3]);
}

// A mask for the longest sequence is cut.
TEST_F(FusedConverters, AttentionMaskOfFourDims) {
  Input("x", {2, 3, 8});
  Input("w", {8, 24});
  Input("b", {24});
  model_.Ints("long", {2, 1, 4, 4}, {1, 0, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1});
  model_.Ints("cut", {2, 3, 3}, {1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0});
  SetInt(Fused("Attention", {"x", "w", "b", "long"}, {"y"}), "num_heads", 2);
  SetInt(Fused("Attention", {"x", "w", "b", "cut"}, {"z"}), "num_heads", 2);
  auto out = Evaluate({"y", "z"});
  EXPECT_EQ(out[0], out[1]);
}

TEST_F(FusedConverters, HeadsOfGroupQueryAttentionAreNormalized) {
  model_.proto.mutable_opset_import(0)->set_version(23);
  GroupQuery();
  Input("w", {4});
  NodeProto& normed = model_.Node("", {}, {});
  normed = model_.graph.node(0);
  normed.set_output(0, "normed");
  SetFloat(normed, "qk_norm_epsilon", 0.25f);
  SetFloat(normed, "q_norm_epsilon", 0.5f);  // of q alone, says ONNX Runtime's schema
  for (int i = 7; i < 14; ++i) normed.add_input("");
  normed.add_input("w");
  normed.add_input("w");
  model_.Ints("heads", {4}, {0, 0, -1, 4});
  for (const std::string name : {"q", "k"}) {
    model_.Node("Reshape", {name, "heads"}, {name + "h"});
    auto* eps = model_.Node("RMSNormalization", {name + "h", "w"}, {name + "n"}).add_attribute();
    eps->set_name("epsilon");
    eps->set_type(onnx::AttributeProto::FLOAT);
    eps->set_f(name == "q" ? 0.5f : 0.25f);
    model_.Ints(name + "_flat", {3}, {0, 0, -1});
    model_.Node("Reshape", {name + "n", name + "_flat"}, {name + "_normed"});
  }
  NodeProto& want = model_.Node("", {}, {});
  want = model_.graph.node(0);
  want.set_input(0, "q_normed");
  want.set_input(1, "k_normed");
  want.set_output(0, "want");
  auto out = Evaluate({"normed", "want"});
  EXPECT_LT(testing::MaxError(out[0], out[1]), 1e-12);
}

TEST_F(FusedConverters, GroupQueryAttentionBothWays) {
  SetInt(GroupQuery(), "causal", 0);
  model_.Ints("heads", {5}, {2, 3, 2, 1, 4});
  model_.Ints("twice", {5}, {2, 3, 2, 2, 4});
  model_.Ints("flat", {3}, {2, 3, 16});
  for (const std::string name : {"k", "v"}) {
    model_.Node("Reshape", {name, "heads"}, {name + "_heads"});
    model_.Node("Expand", {name + "_heads", "twice"}, {name + "_twice"});
    model_.Node("Reshape", {name + "_twice", "flat"}, {name + "_flat"});
  }
  SetInt(Fused("MultiHeadAttention", {"q", "k_flat", "v_flat"}, {"want"}), "num_heads", 4);
  auto out = Evaluate({"y", "want"});
  EXPECT_LT(testing::MaxError(out[0], out[1]), 1e-12);
}

TEST_F(FusedConverters, LengthsThatDependOnDataAreNoted) {
  NodeProto& node = GroupQuery();
  model_.Input("given", {"2"}, TensorProto::INT64);
  node.set_input(5, "given");
  model_.Output("y");
  Graph graph = Import(model_.proto);
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_THAT(graph.notes[0], HasSubstr("seqlens_k"));
}

TEST_F(FusedConverters, PaddingOfAModelThatLooksAheadIsRefused) {
  NodeProto& node = GroupQuery();
  SetInt(node, "causal", 0);
  model_.Input("given", {"2"}, TensorProto::INT64);
  node.set_input(5, "given");
  ExpectRefused("E1301", "padding and causal=0");
}

// Opset 23's, which onnx's own tests have without a causal mask.
TEST_F(FusedConverters, CausalAttentionAfterAPast) {
  model_.Opset("", 23);
  for (const char* name : {"k", "v"}) {
    Input(name, {2, 2, 4, 8});
    Input(StrCat("past_", name), {2, 2, 5, 8});
  }
  Input("q", {2, 4, 3, 8});
  // Fewer queries than new keys: the ends do not meet.
  std::vector<int64_t> keep;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 9; ++j) keep.push_back(j <= i + 5);
  }
  model_.Ints("keep", {3, 9}, keep);
  model_.Node("Cast", {"keep"}, {"mask"}).add_attribute();
  auto* to = model_.graph.mutable_node(0)->mutable_attribute(0);
  to->set_name("to"), to->set_type(onnx::AttributeProto::INT), to->set_i(TensorProto::BOOL);
  for (const char* cap : {"", "c"}) {
    NodeProto& causal = model_.Node("Attention", {"q", "k", "v", "", "past_k", "past_v"},
                                    {StrCat("a", cap), StrCat("ak", cap)});
    SetInt(causal, "is_causal", 1);
    NodeProto& masked = model_.Node("Attention", {"q", "k", "v", "mask", "past_k", "past_v"},
                                    {StrCat("b", cap), StrCat("bk", cap)});
    for (NodeProto* node : {&causal, &masked}) {
      if (*cap == 0) continue;
      auto* a = node->add_attribute();
      a->set_name("softcap"), a->set_type(onnx::AttributeProto::FLOAT), a->set_f(0.5F);
    }
  }
  const std::vector<HostTensor> got = Evaluate({"a", "b", "ac", "bc", "ak"});
  for (int pair : {0, 2}) {
    for (int64_t i = 0; i < got[0].num_elements(); ++i) {
      ASSERT_NEAR(got[pair].AsDouble(i), got[pair + 1].AsDouble(i), 1e-14);
    }
  }
  EXPECT_NE(got[0].AsDouble(0), got[2].AsDouble(0));
  EXPECT_EQ(got[4].shape(), (Shape{2, 2, 9, 8}));
}

// Lengths that are known only when the model runs, against the same as constants.
TEST_F(FusedConverters, LengthsOfAPastMayDependOnData) {
  NodeProto& node = GroupQuery(7, {6, 4});
  for (int i : {3, 4}) {
    const std::string name = StrCat("past", i);
    Input(name, {2, 2, 5, 4});
    node.set_input(i, name);
  }
  for (const char* table : {"cos", "sin"}) {
    Input(table, {9, 2});
    node.add_input(table);
  }
  SetInt(node, "do_rotary", 1);
  SetInt(node, "local_window_size", 4);
  node.add_output("k_present");
  node.add_output("v_present");
  model_.Input("given", {"2"}, TensorProto::INT32);
  inputs_["given"] = HostTensor::Of<int32_t>({2}, {6, 4});
  NodeProto& running = model_.Node("", {}, {});
  running = model_.graph.node(0);
  running.set_input(5, "given");
  for (int i = 0; i < 3; ++i) running.set_output(i, StrCat("run_", running.output(i)));
  auto out = Evaluate({"y", "run_y", "k_present", "run_k_present", "v_present", "run_v_present"});
  for (size_t i = 0; i < out.size(); i += 2) EXPECT_EQ(out[i], out[i + 1]) << i;
  EXPECT_EQ(out[2].shape(), (Shape{2, 2, 7, 4}));
}

// A cache of more places than tokens gives what one of just those gives, and keeps the rest.
TEST_F(FusedConverters, ACacheMayBeFilledInPart) {
  for (int64_t past : {0, 4}) {
    Restart();
    model_.Opset("com.microsoft", 1);
    GroupQuery(past + 3, {past + 2, past + 2});
    model_.Ints("from", {1}, {0});
    model_.Ints("to", {1}, {past});
    model_.Ints("axis", {1}, {2});
    for (int i : {3, 4}) {
      const std::string name = StrCat("past", i);
      Input(name, {2, 2, 9, 4});
      model_.Node("Slice", {name, "from", "to", "axis"}, {name + "_filled"});
    }
    NodeProto node = model_.graph.node(0);
    model_.graph.mutable_node()->DeleteSubrange(0, 1);
    for (const char* filled : {"", "_filled"}) {
      NodeProto& own = *model_.graph.add_node();
      own = node;
      own.clear_output();
      for (const char* name : {"y", "k", "v"}) own.add_output(StrCat(name, "_out", filled));
      for (int i : {3, 4}) own.set_input(i, StrCat("past", i, filled));
    }
    auto out = Evaluate({"y_out", "y_out_filled", "k_out", "k_out_filled"});
    EXPECT_EQ(out[0], out[1]) << past;
    ASSERT_EQ(out[2].shape(), (Shape{2, 2, 9, 4}));
    ASSERT_EQ(out[3].shape(), (Shape{2, 2, past + 3, 4}));
    const HostTensor& cache = inputs_.at("past3");
    for (int64_t i = 0; i < out[2].num_elements(); ++i) {
      const int64_t place = i / 4 % 9, from = i / 36 * (past + 3) * 4 + place * 4 + i % 4;
      EXPECT_EQ(out[2].AsDouble(i), place < past + 3 ? out[3].AsDouble(from) : cache.AsDouble(i));
    }
  }
}

TEST_F(FusedConverters, LengthsOfOtherSequencesAreRefused) {
  NodeProto& node = GroupQuery(8, {7, 7});
  for (int i : {3, 4}) {
    Input(StrCat("past", i), {2, 2, 5, 4});
    node.set_input(i, StrCat("past", i));
  }
  model_.Input("given", {"3"}, TensorProto::INT64);
  node.set_input(5, "given");
  ExpectRefused("E1303", "seqlens_k has shape [3] for a batch of 2");
}

TEST_F(FusedConverters, APastOfOtherDimsIsRefused) {
  NodeProto& node = GroupQuery(8, {7, 7});
  Input("past", {6});
  node.set_input(3, "past");
  node.set_input(4, "past");
  ExpectRefused("E1303", "have shape [6], not [batch, heads, past, head size]");
}

TEST_F(FusedConverters, APastOfOtherHeadsIsRefused) {
  NodeProto& node = GroupQuery(8, {7, 7});
  Input("past", {2, 1, 5, 4});
  node.set_input(3, "past");
  node.set_input(4, "past");
  ExpectRefused("E1303", "have shape [2, 1, 5, 4], not [2, 2, past, 4]");
}

TEST_F(FusedConverters, MoreTokensThanThereAreIsRefused) {
  GroupQuery(5);
  ExpectRefused("E1301", "total_sequence_length is 5 for a past of 0 and 3 new tokens");
}

TEST_F(FusedConverters, ConstantLengthsThatDifferAreRefused) {
  GroupQuery(3, {2, 1});
  ExpectRefused("E1301", "sequences of different lengths");
}

TEST_F(FusedConverters, OptionsOfGroupQueryAttentionThatAreRefused) {
  SetString(GroupQuery(), "k_quant_type", "PER_TENSOR");
  ExpectRefused("E1301", "a quantized cache");
}

TEST_F(FusedConverters, SinksOfOtherHeadsAreRefused) {
  NodeProto& node = GroupQuery();
  Input("sinks", {3});
  for (int i = 7; i < 11; ++i) node.add_input("");
  node.add_input("sinks");
  ExpectRefused("E1303", "head_sink has shape [3], not [4]");
}

TEST_F(FusedConverters, APastOfAttentionOfOtherDimsIsRefused) {
  Input("x", {2, 3, 8});
  Input("w", {8, 24});
  Input("past", {2, 2, 2, 5, 3});
  SetInt(Fused("Attention", {"x", "w", "", "", "past"}), "num_heads", 2);
  ExpectRefused("E1303", "have shape [2, 2, 2, 5, 3], not [2, 2, 2, past, 4]");
}

TEST_F(FusedConverters, AttentionInASharedBufferIsRefused) {
  Input("x", {2, 3, 8});
  Input("w", {8, 24});
  NodeProto& node = Fused("Attention", {"x", "w"});
  SetInt(node, "num_heads", 2);
  SetInt(node, "past_present_share_buffer", 1);
  ExpectRefused("E1301", "past_present_share_buffer");
}

TEST_F(FusedConverters, RotaryOfAttentionIsRefused) {
  Input("x", {2, 3, 8});
  Input("w", {8, 24});
  NodeProto& node = Fused("Attention", {"x", "w"});
  SetInt(node, "num_heads", 2);
  SetInt(node, "do_rotary", 1);
  ExpectRefused("E1301", "do_rotary");
}

TEST_F(FusedConverters, MasksThatFitNothingAreRefused) {
  Input("x", {2, 3, 8});
  Input("w", {8, 24});
  model_.Ints("mask", {5}, {1, 2, 3, 4, 5});
  SetInt(Fused("Attention", {"x", "w", "", "mask"}), "num_heads", 2);
  ExpectRefused("E1303", "its mask has shape [5]");
}

TEST_F(FusedConverters, WeightsThatAreNoQkvAreRefused) {
  Input("x", {2, 3, 8});
  Input("w", {8, 25});
  SetInt(Fused("Attention", {"x", "w"}), "num_heads", 2);
  ExpectRefused("E1303", "weights of 25 columns");
}

// What ONNX Runtime adds to its ops is not guessed to be nothing.
TEST_F(FusedConverters, WhatNobodyReadsIsRefused) {
  Input("q", {2, 3, 8});
  model_.Ints("past", {1}, {2});
  NodeProto& node = Fused("MultiHeadAttention", {"q", "q", "q", "", "", "", "", "", "past"});
  SetInt(node, "num_heads", 2);
  ExpectRefused("E1301", "its input 8, 'past', is not supported");
  model_.graph.clear_node();
  SetInt(Fused("FastGelu", {"q"}), "steepness", 2);
  ExpectRefused("E1301", "its attribute 'steepness' is not supported");
}

TEST_F(FusedConverters, RotationWithoutTablesIsRefused) {
  SetInt(GroupQuery(), "do_rotary", 1);
  ExpectRefused("E1302", "has do_rotary, and no cos_cache");
}

TEST_F(FusedConverters, TablesOfAnotherTypeThanWhatTheyTurnAreRefused) {
  model_.Input("x", {"2", "3", "8"}, TensorProto::FLOAT16);
  model_.Input("t", {"3", "2"}, TensorProto::FLOAT);
  model_.Ints("at", {1}, {0});
  Fused("RotaryEmbedding", {"x", "at", "t", "t"});
  ExpectRefused("E1303", "are f32, what they turn is f16");

  Restart();
  model_.Opset("com.microsoft", 1);
  NodeProto& node = GroupQuery();
  for (const char* table : {"cos", "sin"}) {
    model_.Input(table, {"9", "2"}, TensorProto::FLOAT);
    while (node.input_size() < 7) node.add_input("");
    node.add_input(table);
  }
  SetInt(node, "do_rotary", 1);
  ExpectRefused("E1303", "are f32, what they turn is f64");
}

TEST_F(FusedConverters, ScaledRotaryEmbeddingIsRefused) {
  Input("x", {2, 3, 8});
  Input("t", {3, 2});
  model_.Ints("at", {1}, {0});
  SetInt(Fused("RotaryEmbedding", {"x", "at", "t", "t"}), "is_packed_batching", 1);
  ExpectRefused("E1301", "is_packed_batching");
}

// Refused with what to do about it.
TEST_F(FusedConverters, OpsThatStandForOtherModels) {
  const std::pair<const char*, const char*> cases[] = {
      {"PackedAttention", "before its sequences were packed"},
      {"DecoderMaskedMultiHeadAttention", "without a cache"},
      {"MatMulNBits", "before it was quantized"},
      {"QAttention", "before it was quantized"},
      {"DynamicQuantizeMatMul", "before it was quantized"},
      {"BifurcationDetector", "before ONNX Runtime optimized it"},
  };
  Input("x", {2, 3});
  model_.Output("y");
  for (auto [op, advice] : cases) {
    model_.graph.clear_node();
    Fused(op, {"x"});
    Diagnostic d = Failure(model_.proto);
    EXPECT_EQ(d.id(), "E1301") << op;
    EXPECT_THAT(d.fix(), HasSubstr(advice)) << op;
  }
  model_.graph.clear_node();
  model_.Opset("com.microsoft.nchwc", 1);
  model_.Node("Conv", {"x", "x"}, {"y"}).set_domain("com.microsoft.nchwc");
  EXPECT_THAT(Failure(model_.proto).fix(), HasSubstr("before ONNX Runtime optimized it"));
  model_.graph.clear_node();
  model_.Node("QLinearConv", {"x", "x"}, {"y"});
  EXPECT_THAT(Failure(model_.proto).fix(), HasSubstr("before it was quantized"));
}

TEST_F(FusedConverters, BiasedActivations) {
  for (const char* name : {"x", "skip"}) Input(name, {2, 3, 4});
  Input("w", {4, 6});
  Input("b", {4});
  Input("c", {6});
  Fused("BiasAdd", {"x", "b", "skip"}, {"added"});
  model_.Node("Add", {"x", "b"}, {"xb"});
  model_.Node("Add", {"xb", "skip"}, {"want_added"});
  Fused("GemmFastGelu", {"x", "w", "c"}, {"product"});
  model_.Node("MatMul", {"x", "w"}, {"xw"});
  Fused("FastGelu", {"xw", "c"}, {"want_product"});
  Fused("BiasSplitGelu", {"x", "b"}, {"halves"});
  SetInt(model_.Node("Split", {"xb"}, {"left", "right"}), "axis", -1);
  Fused("Gelu", {"right"}, {"active"});
  model_.Node("Mul", {"left", "active"}, {"want_halves"});
  auto out = Evaluate({"added", "want_added", "product", "want_product", "halves", "want_halves"});
  for (size_t i = 0; i < out.size(); i += 2) EXPECT_EQ(out[i], out[i + 1]) << i;
}

// The activations that a fused node names are those that have nodes of their own.
TEST_F(FusedConverters, ActivationsOfGemm) {
  Input("a", {2, 3});
  Input("b", {3, 4});
  const std::vector<std::string> names = {"Relu",     "Tanh",     "Sigmoid",    "LeakyRelu",
                                          "Softplus", "Softsign", "HardSigmoid"};
  model_.Node("Gemm", {"a", "b"}, {"product"});
  std::vector<std::string> outputs;
  for (const std::string& name : names) {
    SetString(Fused("FusedGemm", {"a", "b"}, {name}), "activation", name);
    model_.Node(name, {"product"}, {"want_" + name});
    outputs.insert(outputs.end(), {name, "want_" + name});
  }
  for (const std::string name : {"Elu", "ThresholdedRelu"}) {
    NodeProto& fused = Fused("FusedGemm", {"a", "b"}, {name});
    SetString(fused, "activation", name);
    SetFloat(fused, "activation_alpha", 0.5F);
    SetFloat(model_.Node(name, {"product"}, {"want_" + name}), "alpha", 0.5F);
    outputs.insert(outputs.end(), {name, "want_" + name});
  }
  const auto out = Evaluate(outputs);
  for (size_t i = 0; i < out.size(); i += 2) EXPECT_EQ(out[i], out[i + 1]) << outputs[i];
}

// ONNX Runtime's threshold is another than ONNX's where the node gives none.
TEST_F(FusedConverters, ActivationWithoutItsParameterIsRefused) {
  Input("a", {2, 3});
  Input("b", {3, 4});
  SetString(Fused("FusedGemm", {"a", "b"}), "activation", "ThresholdedRelu");
  ExpectRefused("E1301", "FusedGemm with the activation ThresholdedRelu");
}

// As T5 has them: with 8 rows for distances up to 20, one for each of the first 4 (in both
// directions of the first 2 on each side), then wider ranges. ONNX Runtime computes it on GPUs
// alone.
TEST_F(FusedConverters, RelativePositionsHaveRowsOfATable) {
  for (const bool both : {false, true}) {
    Restart();
    model_.Opset("com.microsoft", 1);
    Input("table", {8, 2});  // of which the data are [2, 8]
    model_.Ints("n", {}, {12});
    NodeProto& node = Fused("RelativePositionBias", {"table", "n", "n"});
    SetInt(node, "max_distance", 20);
    SetInt(node, "is_bidirectional", both ? 1 : 0);
    const HostTensor y = Evaluate()[0];
    ASSERT_EQ(y.shape(), (Shape{1, 2, 12, 12}));
    const std::vector<int> rows = both ? std::vector<int>{0, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3}
                                       : std::vector<int>{0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6};
    for (int head = 0; head < 2; ++head) {
      for (int query = 0; query < 12; ++query) {
        for (int key = 0; key < 12; ++key) {
          int row = query >= key ? rows[query - key] : both ? 4 + rows[key - query] : 0;
          EXPECT_EQ(y.AsDouble((head * 12 + query) * 12 + key),
                    inputs_["table"].AsDouble(head * 8 + row))
              << both << head << " " << query << " " << key;
        }
      }
    }
  }
}

TEST_F(FusedConverters, TablesThatAreTooSmallForTheirDistancesAreRefused) {
  Input("table", {8, 2});
  model_.Ints("n", {}, {12});
  SetInt(Fused("RelativePositionBias", {"table", "n", "n"}), "max_distance", 4);
  ExpectRefused("E1303", "a table of 8 rows for distances up to 4, 12 queries and 12 keys");
}

}  // namespace
}  // namespace shardc::import_testing
