// What the node tests of tests/conformance do not reach: forms, opsets and refusals of single ops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

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

TEST_F(Converters, SequencesOfASplit) {
  Input("x", {2, 6});
  Integers("sizes", {1, 2, 3});
  Integers("last", {-1}, true);
  SetInt(Node("SplitToSequence", {"x", "sizes"}, {"pieces"}), "axis", 1);
  Node("SequenceAt", {"pieces", "last"});
  HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{2, 3}));
  EXPECT_EQ(y.AsDouble(0), inputs_["x"].AsDouble(3));
  EXPECT_EQ(y.AsDouble(5), inputs_["x"].AsDouble(11));
}

TEST_F(Converters, SliceClampsExtremes) {
  Input("x", {5, 4});
  Integers("starts", {kMax, kMin});
  Integers("ends", {kMin, kMax});
  Integers("axes", {0, -1});
  Integers("steps", {-2, kMax});
  Node("Slice", {"x", "starts", "ends", "axes", "steps"});
  HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{3, 1}));
  EXPECT_EQ(y.AsDouble(0), inputs_["x"].AsDouble(16));
  EXPECT_EQ(y.AsDouble(1), inputs_["x"].AsDouble(8));
  EXPECT_EQ(y.AsDouble(2), inputs_["x"].AsDouble(0));
}

TEST_F(Converters, GatherOfOnePositionIsASlice) {
  Input("x", {3, 2, 4});
  Integers("at", {-2}, true);
  SetInt(Node("Gather", {"x", "at"}), "axis", 0);
  Graph graph = Imported({"y"});
  EXPECT_EQ(CountOps(graph, "gather"), 0);
  HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{2, 4}));
  EXPECT_EQ(y.AsDouble(0), inputs_["x"].AsDouble(8));
}

// Each row k times, one behind the other or all in turns, as of tokens that go to k experts: no
// lookup, which would mix the rows. What is repeated otherwise is one.
TEST_F(Converters, GatherThatRepeatsIsABroadcast) {
  struct Case {
    Ints at;
    int64_t axis;
    bool repeats;
  };
  const Case cases[] = {{{0, 0, 1, -1}, 1, true},
                        {{0, 0, 0, 1, 1, 1, 2, 2, 2}, 0, true},
                        {{0, 1, 0, 1, 0, 1}, 1, true},
                        {{0, 0, 1, 1, 2}, 0, false},
                        {{0, 1, 1, 0}, 1, false}};
  for (const Case& c : cases) {
    for (bool nd : {false, true}) {
      if (nd && c.axis != 0) continue;
      SCOPED_TRACE(StrCat(c.at.size(), " of dim ", c.axis, nd ? ", GatherND" : ""));
      model_.graph.Clear();
      Input("x", {3, 2, 4});
      const auto n = static_cast<int64_t>(c.at.size());
      Integers("at", c.at);
      Integers("shape", nd ? Ints{n, 1} : Ints{n});
      Node("Reshape", {"at", "shape"}, {"places"});
      NodeProto& node = Node(nd ? "GatherND" : "Gather", {"x", "places"});
      if (!nd) SetInt(node, "axis", c.axis);
      Graph graph = Imported({"y"});
      EXPECT_EQ(CountOps(graph, nd ? "gather_nd" : "gather"), c.repeats ? 0 : 1);
      HostTensor y = Evaluate()[0];
      ASSERT_EQ(y.shape(), c.axis == 0 ? (Shape{n, 2, 4}) : (Shape{3, n, 4}));
      const int64_t size = c.axis == 0 ? 3 : 2, behind = c.axis == 0 ? 8 : 4;
      for (int64_t i = 0; i < y.num_elements(); ++i) {
        const int64_t row = c.at[static_cast<size_t>(i / behind % n)];
        const int64_t from = (i / behind / n * size + (row < 0 ? row + size : row)) * behind;
        EXPECT_EQ(y.AsDouble(i), inputs_["x"].AsDouble(from + i % behind));
      }
    }
  }
}

TEST_F(Converters, EpsilonIsTheFloatExactly) {
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
TEST_F(Converters, NormWithABroadcastScale) {
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

TEST_F(Converters, LossOfALogSoftmaxIsOneCrossEntropy) {
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

TEST_F(Converters, BiasGeluOfMicrosoft) {
  model_.Opset("com.microsoft", 1);
  Input("x", {2, 4});
  Input("b", {4});
  Node("BiasGelu", {"x", "b"}).set_domain("com.microsoft");
  HostTensor y = Evaluate()[0];
  double v = inputs_["x"].AsDouble(5) + inputs_["b"].AsDouble(1);
  EXPECT_NEAR(y.AsDouble(5), v * 0.5 * (1 + std::erf(v / std::sqrt(2.0))), 1e-15);
}

TEST_F(Converters, MatMulOfVectors) {
  Input("a", {3});
  Input("b", {2, 3, 4});
  Node("MatMul", {"a", "b"});
  EXPECT_EQ(Evaluate()[0].shape(), (Shape{2, 4}));
}

struct EinsumCase {
  std::string equation;
  std::vector<Shape> shapes;
};

// By the definition: a loop over all labels. The ellipsis is written "...", for two labels.
HostTensor NaiveEinsum(std::string equation, const std::vector<HostTensor>& operands) {
  for (size_t at; (at = equation.find("...")) != std::string::npos;) {
    equation.replace(at, 3, "YZ");
  }
  const size_t arrow = equation.find("->");
  const std::string out = equation.substr(arrow + 2);
  std::vector<std::string> terms = {""};
  for (char label : equation.substr(0, arrow)) {
    label == ',' ? void(terms.emplace_back()) : terms.back().push_back(label);
  }
  std::map<char, int64_t> size, at;
  for (size_t i = 0; i < terms.size(); ++i) {
    for (size_t d = 0; d < terms[i].size(); ++d) {
      int64_t& n = size[terms[i][d]];
      n = std::max(n, operands[i].shape()[d]);
    }
  }
  auto index = [&](const std::string& labels, const Shape& dims) {
    int64_t i = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      i = i * dims[d] + (dims[d] == 1 ? 0 : at[labels[d]]);
    }
    return i;
  };
  Shape shape;
  int64_t steps = 1;
  for (char label : out) shape.push_back(size[label]);
  for (const auto& [label, n] : size) steps *= n;
  HostTensor y(DType::kF64, shape);
  for (int64_t step = 0; step < steps; ++step) {
    int64_t rest = step;
    for (const auto& [label, n] : size) {
      at[label] = rest % n;
      rest /= n;
    }
    double product = 1;
    for (size_t i = 0; i < terms.size(); ++i) {
      product *= operands[i].AsDouble(index(terms[i], operands[i].shape()));
    }
    y.SetDouble(index(out, shape), y.AsDouble(index(out, shape)) + product);
  }
  return y;
}

TEST_F(Converters, EinsumForms) {
  const EinsumCase cases[] = {
      {"ij,jk->ik", {{2, 3}, {3, 4}}},
      {"bij,bjk->bik", {{2, 3, 4}, {2, 4, 2}}},
      {"bqhd,bkhd->bhqk", {{2, 3, 2, 4}, {2, 5, 2, 4}}},
      {"bhqk,bkhd->bqhd", {{2, 2, 3, 5}, {2, 5, 2, 4}}},
      {"bsi,ij->bsj", {{2, 3, 4}, {4, 5}}},
      {"i,j->ji", {{3}, {4}}},
      {"i,i->", {{3}, {3}}},
      {"ij,ij->ij", {{3, 2}, {3, 2}}},
      {"ijk,jl->il", {{2, 3, 4}, {3, 5}}},
      {"ii,ij->j", {{3, 3}, {3, 2}}},
      {"...ij,...jk->...ik", {{2, 3, 4, 5}, {2, 3, 5, 2}}},
      {"bshd,hdm->bsm", {{2, 3, 2, 4}, {2, 4, 5}}},
      {"bsd,edf->bsef", {{2, 3, 1}, {2, 4, 5}}},
      {"bsd,edf->bsef", {{1, 3, 4}, {2, 1, 5}}},
      {"ij,ij->", {{1, 4}, {3, 1}}},
      {"bij,bjk->bik", {{1, 3, 4}, {2, 4, 2}}},
      {"ijk->ki", {{2, 3, 4}}},
      {"i,i,i->", {{3}, {3}, {3}}},
      {"tk,tke,tkc->tec", {{5, 2}, {5, 2, 3}, {5, 2, 4}}},
      {"ab,bc,cd,de->ae", {{2, 3}, {3, 4}, {4, 2}, {2, 5}}},
      {"i,j,ij->", {{3}, {4}, {3, 4}}},
      {"bq,bk,bkd->bqd", {{2, 3}, {2, 4}, {2, 4, 5}}},
      {"ij,ij,ij->j", {{1, 4}, {3, 1}, {3, 4}}},
      {"...i,ij,...j->...", {{2, 3, 4}, {4, 5}, {2, 3, 5}}},
  };
  for (const EinsumCase& c : cases) {
    model_.graph.Clear();
    std::vector<std::string> names;
    std::vector<HostTensor> operands;
    for (const Shape& shape : c.shapes) {
      names.push_back(StrCat("x", names.size()));
      Input(names.back(), shape);
      operands.push_back(inputs_[names.back()]);
    }
    SetString(Node("Einsum", names), "equation", c.equation);
    HostTensor expected = NaiveEinsum(c.equation, operands);
    EXPECT_LT(testing::MaxError(Evaluate()[0], expected), 1e-12) << c.equation;
  }
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

// Without a bound it is the op attention, whose rows without keys are 0: under a bound that bounds
// nothing they are, too, and not infinity less infinity.
TEST_F(Converters, CappedScoresOfNoKeysGiveNothing) {
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

// Opset 18 scales each group as a whole, 21 every channel.
TEST_F(Converters, GroupNormalizationScalesGroupsOrChannels) {
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

TEST_F(Converters, GroupsOfNoChannelsAreRefused) {
  Restart(21);
  Input("x", {2, 4, 3});
  Input("v", {4});
  SetInt(Node("GroupNormalization", {"x", "v", "v"}), "num_groups", 3);
  ExpectRefused("E1303", "[2, 4, 3] has no channels for 3 groups");
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

// ONNX lets masks and tables of positions broadcast one way only.
TEST_F(Converters, MasksThatWouldMakeTheScoresLargerAreRefused) {
  for (const Shape& mask : {Shape{3, 1, 3, 3}, Shape{2, 3}, Shape{3, 5}, Shape{1, 1, 1, 3, 3}}) {
    Restart(23);
    for (const char* name : {"q", "k", "v"}) Input(name, {1, 2, 3, 4}, name[0]);
    Input("mask", mask);
    Node("Attention", {"q", "k", "v", "mask"});
    ExpectRefused("E1303", StrCat("its mask of shape ", ShapeToString(mask),
                                  " does not broadcast to [1, 2, 3, 3]"));
  }
}

TEST_F(Converters, TablesOfOtherPositionsAreRefused) {
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
TEST_F(Converters, TablesOfAnotherTypeThanWhatTheyTurnAreRefused) {
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

TEST_F(Converters, RotaryEmbeddingIsOneOp) {
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

TEST_F(Converters, SlopesThatWouldMakeTheResultLargerAreRefused) {
  Input("x", {1, 3});
  Input("slope", {2, 3});
  Node("PRelu", {"x", "slope"});
  ExpectRefused("E1303", "input 1 of shape [2, 3] does not broadcast to [1, 3]");
}

TEST_F(Converters, LossesHaveTheTypeOfTheirScores) {
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

// Of the type that stash_type says, float without it.
TEST_F(Converters, StatisticsHaveATypeOfTheirOwn) {
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

TEST_F(Converters, FusedActivationsWithoutAMeaningAreRefused) {
  model_.Opset("com.microsoft", 1);
  Input("a", {3, 3});
  NodeProto& fused = Node("FusedGemm", {"a", "a"});
  fused.set_domain("com.microsoft");
  SetString(fused, "activation", "Clip");
  ExpectRefused("E1301", "FusedGemm with the activation Clip");
}

// Dims that the indices cover whole stay batch dims, which sharding can cut.
TEST_F(Converters, GatherElementsKeepsBatchDims) {
  Input("x", {2, 3, 4});
  model_.Input("at", {"2", "3", "1"}, TensorProto::INT64);
  inputs_["at"] = HostTensor::Of<int64_t>({2, 3, 1}, {0, 3, -1, 1, 2, -4});
  SetInt(Node("GatherElements", {"x", "at"}), "axis", -1);
  Graph graph = Imported({"y"});
  for (const auto& op : graph.ops()) {
    if (op->name() == "gather_nd") {
      EXPECT_EQ(op->attrs.Int("batch_dims"), 2);
    }
  }
  EXPECT_EQ(CountOps(graph, "gather_nd"), 1);
  HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{2, 3, 1}));
  const int64_t at[] = {0, 3, 3, 1, 2, 0};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(y.AsDouble(i), inputs_["x"].AsDouble(i * 4 + at[i])) << i;
  }
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

// A spectrum and its inverse, of more and of fewer elements than there are.
TEST_F(Converters, DftOfAnotherLength) {
  model_.proto.mutable_opset_import(0)->set_version(20);
  for (int64_t length : {3, 8}) {
    SCOPED_TRACE(length);
    model_.graph.Clear();
    inputs_.clear();
    Input("x", {5, 2, 1});
    Integers("length", {length}, true);
    Integers("axis", {0}, true);
    Node("DFT", {"x", "length", "axis"}, {"spectrum"});
    SetInt(Node("DFT", {"spectrum", "", "axis"}, {"y"}), "inverse", 1);
    SetInt(Node("DFT", {"x", "length", "axis"}, {"half"}), "onesided", 1);
    NodeProto& back = Node("DFT", {"half", "length", "axis"}, {"z"});
    SetInt(back, "onesided", 1);
    SetInt(back, "inverse", 1);
    auto out = Evaluate({"y", "z"});
    ASSERT_EQ(out[0].shape(), (Shape{length, 2, 2}));
    ASSERT_EQ(out[1].shape(), (Shape{length, 2, 1}));
    const HostTensor x = Numbers({5, 2, 1});
    for (int64_t i = 0; i < 2 * length; ++i) {
      const double expected = i < 10 ? x.AsDouble(i) : 0;
      EXPECT_NEAR(out[0].AsDouble(2 * i), expected, 1e-14) << i;
      EXPECT_NEAR(out[0].AsDouble(2 * i + 1), 0, 1e-14) << i;
      EXPECT_NEAR(out[1].AsDouble(i), expected, 1e-14) << i;
    }
  }
}

// As numpy.fft.irfft: what the length needs not is no part of the sum.
TEST_F(Converters, DftOfMoreThanHalfASpectrum) {
  for (int64_t length : {3, 4, 7}) {
    SCOPED_TRACE(length);
    model_.graph.Clear();
    inputs_.clear();
    model_.proto.mutable_opset_import(0)->set_version(20);
    Input("x", {5, 1, 2});
    Integers("length", {length}, true);
    Integers("axis", {0}, true);
    NodeProto& node = Node("DFT", {"x", "length", "axis"}, {"y"});
    SetInt(node, "onesided", 1);
    SetInt(node, "inverse", 1);
    const HostTensor x = Numbers({5, 1, 2}), y = Evaluate({"y"})[0];
    for (int64_t t = 0; t < length; ++t) {
      double sum = x.AsDouble(0);
      for (int64_t j = 1; 2 * j <= length; ++j) {
        const double angle = 2 * std::numbers::pi * static_cast<double>(j * t % length) /
                             static_cast<double>(length);
        const double part = x.AsDouble(2 * j) * std::cos(angle);
        sum += 2 * j == length ? part : 2 * (part - x.AsDouble(2 * j + 1) * std::sin(angle));
      }
      EXPECT_NEAR(y.AsDouble(t), sum / static_cast<double>(length), 1e-14) << t;
    }
  }
}

TEST_F(Converters, DftOfThePartsIsRefused) {
  model_.proto.mutable_opset_import(0)->set_version(19);
  Input("x", {1, 5, 2});
  SetInt(Node("DFT", {"x"}), "axis", 2);
  ExpectRefused("E1303", "real and imaginary parts");
}

TEST_F(Converters, DftOfTooManyElementsIsRefused) {
  model_.proto.mutable_opset_import(0)->set_version(19);
  Input("x", {1, 8193, 1});
  SetInt(Node("DFT", {"x"}), "axis", 1);
  ExpectRefused("E1301", "too long");
}

TEST_F(Converters, AShapeThatDependsOnDataIsRefused) {
  Input("x", {4});
  model_.Input("shape", {"2"}, TensorProto::INT64);
  Node("Reshape", {"x", "shape"});
  ExpectRefused("E1304", "known when compiling");
}

TEST_F(Converters, ReshapeThatDoesNotFitIsRefused) {
  Input("x", {5, 2});
  Integers("shape", {-1, 3});
  Node("Reshape", {"x", "shape"});
  ExpectRefused("E1303", "10 elements");
}

TEST_F(Converters, IndexOutOfRangeIsRefused) {
  Input("x", {3});
  Integers("at", {3}, true);
  Node("Gather", {"x", "at"});
  ExpectRefused("E1303", "out of range");
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

// Masks that send tokens to experts are products by elements, in the type of their operands.
TEST_F(Converters, AnEinsumThatSumsNothingIsNoMatrixProduct) {
  Input("x", {3, 2});
  Input("mask", {3, 2, 4});
  SetString(Node("Einsum", {"x", "mask"}), "equation", "tk,tke->tke");
  Graph g = Imported({"y"});
  for (const auto& op : g.ops()) EXPECT_NE(op->name(), "matmul");
}

}  // namespace
}  // namespace shardc::import_testing
