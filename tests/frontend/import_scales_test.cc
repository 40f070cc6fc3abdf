// Which constants of a file are parameters, of those that scale: weights do, and tables of rotary
// positions, schedules, slopes.
#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::ImportTest;
using import_testing::Model;
using import_testing::ParamNames;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class ScaleRules : public ImportTest {};

// tf2onnx makes an input of what a Keras model holds.
TEST_F(ScaleRules, ATableWhoseRowsAnInputScalesIsAParameter) {
  Model m;
  m.Input("ids", {"2"}, onnx::TensorProto::INT64);
  m.Input("factor", {});
  m.graph.mutable_input(1)->mutable_type()->mutable_tensor_type()->mutable_shape();
  m.Floats("table", {3, 2}, {0, 1, 2, 3, 4, 5});
  m.Floats("w", {2, 2}, {1, 2, 3, 4});
  m.Node("Gather", {"table", "ids"}, {"rows"});
  m.Node("Mul", {"rows", "factor"}, {"scaled"});
  m.Node("MatMul", {"scaled", "w"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), UnorderedElementsAre("table", "w"));
}

// Of 5 heads; what was trained, or scales what is computed, is a parameter.
TEST_F(ScaleRules, SlopesThatScaleDistancesAreConstants) {
  Model m;
  m.Input("x", {"5", "3"});
  m.Floats("slopes", {5, 1}, {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f});
  m.Floats("trained", {5, 1}, {0.26f, 0.06f, 0.015f, 0.004f, 0.5f});
  m.Floats("scale", {5, 1}, {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f});
  m.Ints("places", {3}, {-2, -1, 0});
  auto* to = m.Node("Cast", {"places"}, {"distances"}).add_attribute();
  to->set_name("to"), to->set_type(onnx::AttributeProto::INT), to->set_i(onnx::TensorProto::FLOAT);
  m.Node("Mul", {"slopes", "distances"}, {"alibi"});
  m.Node("Mul", {"trained", "distances"}, {"bias"});
  m.Node("Mul", {"x", "scale"}, {"scaled"});
  m.Node("Add", {"scaled", "alibi"}, {"a"});
  m.Node("Add", {"a", "bias"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), UnorderedElementsAre("trained", "scale"));
}

// As Mamba keeps the rates of its states.
TEST_F(ScaleRules, AMatrixThatScalesThroughItsLogarithmIsAParameter) {
  Model m;
  m.Input("x", {"3", "2"});
  m.Floats("A_log", {3, 2}, {0.5f, 1.5f, 0.1f, 0.7f, -0.2f, 0.3f});
  m.Floats("table", {3, 2}, {0.5f, 1.5f, 0.1f, 0.7f, -0.2f, 0.3f});
  m.Node("Exp", {"A_log"}, {"rate"});
  m.Node("Neg", {"rate"}, {"A"});
  m.Node("Mul", {"x", "A"}, {"decayed"});
  m.Node("Mul", {"decayed", "table"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("A_log"));
}

TEST_F(ScaleRules, ATableThatOnlyScalesIsAConstantAndAVectorIsNot) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("cos", {2, 2}, {.1f, .2f, .3f, .4f});
  m.Floats("scale", {2}, {.1f, .2f});
  m.Node("Mul", {"x", "cos"}, {"a"});
  m.Node("Mul", {"scale", "a"}, {"y"});
  m.Output("y");
  Graph graph = Import(m.proto);
  EXPECT_THAT(ParamNames(graph), ElementsAre("scale"));
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_THAT(graph.notes[0], ::testing::HasSubstr("'cos'"));
}

// As the scales of residuals and skips that a model keeps in one vector.
TEST_F(ScaleRules, AnElementThatScalesIsOfAParameter) {
  for (const bool one : {true, false}) {
    Model m;
    m.Input("x", {"2", "2"});
    m.Floats("lambdas", {2}, {.1f, .2f});
    one ? m.ConstantInts("at", {}, {0}) : m.ConstantInts("at", {2}, {0, 1});
    m.Node("Gather", {"lambdas", "at"}, {"lambda"});
    m.Node("Mul", {"x", "lambda"}, {"y"});
    m.Output("y");
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), one ? 1 : 0);
  }
}

// As those of a residual and of what the first layer read, a row for each layer.
TEST_F(ScaleRules, AnElementOfATableThatScalesIsOfAParameter) {
  for (const bool one : {true, false}) {
    Model m;
    m.Input("x", {"2", "2"});
    m.Floats("lambdas", {2, 2}, {.1f, .2f, .3f, .4f});
    m.ConstantInts("at", {}, {1});
    m.Node("Gather", {"lambdas", "at"}, {"row"});
    if (one) m.Node("Gather", {"row", "at"}, {"lambda"});
    m.Node("Mul", {"x", one ? "lambda" : "row"}, {"y"});
    m.Output("y");
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), one ? 1 : 0);
  }
}

// As of DyT; a cap of logits may be a constant.
TEST_F(ScaleRules, TheSlopeOfWhatIsSquashedIsAParameter) {
  for (const char* function : {"Tanh", "Sigmoid", "Softmax"}) {
    Model m;
    m.proto.set_producer_name("pytorch");
    m.Input("x", {"2", "2"});
    m.Floats("alpha", {1}, {.5f});
    m.Floats("w", {2, 2}, {1, 2, 3, 5});
    m.Node("MatMul", {"x", "w"}, {"h"});
    m.Node("Mul", {"h", "alpha"}, {"scaled"});
    m.Node(function, {"scaled"}, {"y"});
    m.Output("y");
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), function[1] == 'o' ? 1 : 2) << function;
  }
}

TEST_F(ScaleRules, OnesOfWhichATriangleOrPositionsAreMadeAreConstants) {
  for (const char* function : {"Trilu", "CumSum"}) {
    for (const float last : {1.f, 2.f}) {
      Model m;
      m.Input("x", {"2", "2"});
      m.Floats("w", {2, 2}, {1, 1, 1, last});
      std::vector<std::string> inputs = {"w"};
      if (function[0] == 'C') {
        m.ConstantInts("axis", {}, {0});
        inputs.push_back("axis");
      }
      m.Node(function, inputs, {"made"});
      m.Node("MatMul", {"x", "made"}, {"y"});
      m.Output("y");
      EXPECT_EQ(ParamNames(Import(m.proto)).size(), last == 1 ? 0 : 1) << function;
    }
  }
}

TEST_F(ScaleRules, ANoteTellsOfNumbersThatMayBeConstants) {
  Model m;
  m.proto.set_producer_name("pytorch");
  m.Input("x", {"2", "2"});
  m.Floats("alpha", {}, {.5f});
  m.Floats("w", {2, 2}, {1, 2, 3, 5});
  m.Node("MatMul", {"x", "w"}, {"h"});
  m.Node("Mul", {"h", "alpha"}, {"scaled"});
  m.Node("Tanh", {"scaled"}, {"y"});
  m.Output("y");
  const Graph graph = Import(m.proto);
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_EQ(graph.notes[0],
            "trained, though they may be constants of the module (then --freeze them): 'alpha'");
}

// They are looked at before it is known that they have all that their ops need.
TEST_F(ScaleRules, NodesThatLackInputsAreRefusedAndNoMore) {
  using Names = std::vector<std::string>;
  for (const auto& [op, inputs] :
       std::vector<std::pair<std::string, Names>>{{"Mul", {"gate"}},
                                                  {"Mul", {"h", "h", "gate"}},
                                                  {"Add", {"gate"}},
                                                  {"Add", {"h"}},
                                                  {"Div", {"table"}},
                                                  {"Pow", {"table"}},
                                                  {"Gather", {"table"}},
                                                  {"Unsqueeze", {}},
                                                  {"Max", {}},
                                                  {"MatMul", {"table"}},
                                                  {"Trilu", {}}}) {
    Model m;
    m.proto.set_producer_name("pytorch");
    m.Input("x", {"2", "2"});
    m.Floats("table", {2, 2}, {1, 2, 3, 5});
    m.Floats("gate", {}, {.5f});
    m.Node("MatMul", {"x", "table"}, {"h"});
    m.Node(op, inputs, {"lacks"});
    m.Node("Mul", {"h", "lacks"}, {"scaled"});
    m.Node("Add", {"h", "scaled"}, {"y"});
    m.Output("y");
    EXPECT_THROW(Import(m.proto), Diagnostic) << op;
  }
}

// In dynamo's files, if their metadata are gone, numbers of functions as gelu's are initializers.
TEST_F(ScaleRules, TheSlopeInAFileOfDynamosMayBeAConstant) {
  for (const char* name : {"/act/Mul", "Mul_7", "", "node_Mul_7"}) {
    Model m;
    m.proto.set_producer_name("pytorch");
    m.Input("x", {"2", "2"});
    m.Floats("alpha", {}, {.5f});
    m.Floats("w", {2, 2}, {1, 2, 3, 5});
    m.Node("MatMul", {"x", "w"}, {"h"});
    m.Node("Mul", {"h", "alpha"}, {"scaled"}).set_name(name);
    m.Node("Tanh", {"scaled"}, {"y"});
    m.Output("y");
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), name[0] == 'n' ? 1 : 2) << name;
  }
}

// As of the layers that ELMo mixes.
TEST_F(ScaleRules, NumbersOfWhichTheSharesScaleAreParameters) {
  for (const bool shares : {true, false}) {
    Model m;
    m.proto.set_producer_name("pytorch");
    m.Input("x", {"2", "2"});
    m.Floats("a", {1}, {.5f});
    m.Floats("b", {1}, {.25f});
    auto* axis = m.Node("Concat", {"a", "b"}, {"ab"}).add_attribute();
    axis->set_name("axis"), axis->set_type(onnx::AttributeProto::INT), axis->set_i(0);
    m.Node(shares ? "Softmax" : "Identity", {"ab"}, {"scale"});
    m.Node("Mul", {"x", "scale"}, {"y"});
    m.Output("y");
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), shares ? 2 : 0);
  }
}

// A number that TorchScript names: as of ReZero and of GIN, and where it may be a buffer of what a
// layer scales by.
TEST_F(ScaleRules, TheGateOfABranchIsAParameter) {
  for (const char* form : {"branch", "residual", "one", "two"}) {
    const std::string how = form;
    Model m;
    m.proto.set_producer_name("pytorch");
    m.Input("x", {"2", "2"});
    m.Floats("w", {2, 2}, {1, 2, 3, 5});
    m.Floats("gate", {}, {.5f});
    m.Node("MatMul", {"x", "w"}, {"xw"});
    m.Node("Tanh", {"xw"}, {"branch"});
    m.ConstantFloats("number", {}, {how == "one" ? 1.f : 2.f});
    m.Node("Add", {"gate", "number"}, {"sum"});
    const bool scaled = how == "branch" || how == "residual";
    m.Node("Mul", {how == "residual" ? "xw" : "branch", scaled ? "gate" : "sum"}, {"a"});
    m.Node("Add", {how == "residual" ? "branch" : "xw", "a"}, {"y"});
    if (scaled) m.graph.mutable_node()->DeleteSubrange(3, 1);
    m.Output("y");
    const bool trained = how == "branch" || how == "one";
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), trained ? 2 : 1) << how;
  }
}

// Of a weight that was pruned, and of its norm where power iterations estimated that.
TEST_F(ScaleRules, MasksAndNormsOfAWeightAreConstants) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("w", {2, 2}, {1, 2, 3, 5});
  m.Floats("mask", {2, 2}, {1, 0, 1, 1});
  m.Floats("gain", {2, 2}, {1, .5f, 1, 1});
  m.Floats("u", {2}, {.6f, .8f});
  m.Floats("v", {2}, {.8f, .6f});
  m.Node("Mul", {"w", "mask"}, {"pruned"});
  m.Node("Mul", {"pruned", "gain"}, {"scaled"});
  m.Node("MatMul", {"scaled", "v"}, {"wv"});
  m.Node("MatMul", {"u", "wv"}, {"sigma"});
  m.Node("Div", {"scaled", "sigma"}, {"normed"});
  m.Node("MatMul", {"x", "normed"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), UnorderedElementsAre("w", "gain"));
}

// As of the splines of a KAN, and of positions that turn what is not summed.
TEST_F(ScaleRules, TablesOfProductsWhoseSumIsSummedAreParameters) {
  for (const bool summed : {true, false}) {
    Model m;
    m.Input("x", {"3", "2"});
    m.Input("spline", {"3", "2"});
    m.Floats("base", {3, 2}, {.1f, .2f, .3f, .4f, .5f, .7f});
    m.Floats("scale", {3, 2}, {.5f, .2f, .1f, .4f, .3f, .6f});
    m.Floats("mask", {3, 2}, {1, 1, 0, 1, 1, 1});
    m.Node("Mul", {"base", "x"}, {"a"});
    m.Node("Mul", {"scale", "spline"}, {"b"});
    m.Node("Add", {"a", "b"}, {"sum"});
    m.Node("Mul", {"mask", "sum"}, {"masked"});
    m.Node(summed ? "ReduceSum" : "Tanh", {"masked"}, {"y"});
    m.Output("y");
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), summed ? 2 : 0);
  }
}

// As xPos scales its tables of cosines and sines; a rate of decay turns nothing.
TEST_F(ScaleRules, PowersThatScaleARotationAreOfAConstant) {
  for (const bool rotates : {true, false}) {
    Model m;
    m.Input("x", {"3", "2"});
    m.Floats("scale", {2}, {.4f, .9f});
    m.Floats("cos", {3, 2}, {1, 1, .5f, .9f, -.4f, .6f});
    m.Floats("sin", {3, 2}, {0, 0, .8f, .4f, .9f, .8f});
    m.ConstantFloats("position", {3, 1}, {0, 1, 2});
    m.Node("Pow", {"scale", "position"}, {"powers"});
    m.Node("Mul", {"cos", "powers"}, {"c"});
    m.Node("Mul", {"sin", "powers"}, {"s"});
    m.Node("Mul", {"x", "c"}, {"a"});
    m.Node("Neg", {"x"}, {"turned"});
    m.Node("Mul", {"turned", "s"}, {"b"});
    m.Node(rotates ? "Add" : "Max", {"a", "b"}, {"y"});
    m.Output("y");
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), rotates ? 0 : 1);
  }
}

// A norm of each head's q before its positions turn it, in a file that says nothing of the module.
TEST_F(ScaleRules, WhatScalesANormIsAParameter) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("gamma", {2, 2}, {.1f, .2f, .3f, .4f});
  m.Floats("cos", {2, 2}, {.5f, .6f, .7f, .8f});
  m.Floats("sin", {2, 2}, {.9f, 1, 1.1f, 1.2f});
  m.Node("Mul", {"x", "x"}, {"squares"});
  m.Ints("axes", {1}, {1});
  m.Node("ReduceSum", {"squares", "axes"}, {"sum"});
  m.Node("Sqrt", {"sum"}, {"length"});
  m.Node("Div", {"x", "length"}, {"direction"});
  m.Node("Mul", {"direction", "gamma"}, {"q"});
  m.Node("Neg", {"q"}, {"turned"});
  m.Node("Mul", {"q", "cos"}, {"a"});
  m.Node("Mul", {"turned", "sin"}, {"b"});
  m.Node("Add", {"a", "b"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("gamma"));
}

// As q and k that a gated attention unit makes of one product.
TEST_F(ScaleRules, ATableThatScalesBeforeOneIsAddedIsAParameter) {
  for (const bool alike : {true, false}) {
    Model m;
    m.Input("x", {"5", "1", "3"});
    m.Floats("gamma", {2, 3}, {.1f, .2f, .3f, .4f, .5f, .6f});
    if (alike) {
      m.Floats("beta", {2, 3}, {.2f, .1f, .3f, .4f, .5f, .7f});
    } else {
      m.Floats("beta", {3}, {.2f, .1f, .3f});
    }
    m.Node("Mul", {"x", "gamma"}, {"scaled"});
    m.Node("Add", {"scaled", "beta"}, {"y"});
    m.Output("y");
    EXPECT_EQ(ParamNames(Import(m.proto)).size(), alike ? 2 : 1);
  }
}

// As of numbers that a model of tables embeds, each by a vector of its own (FT-Transformer,
// addcmul).
TEST_F(ScaleRules, ATableThatScalesNumbersBeforeOneIsAddedIsAParameter) {
  Model m;
  m.Input("x", {"5", "2"});
  m.Floats("weight", {2, 3}, {.1f, .2f, .3f, .4f, .5f, .6f});
  m.Floats("bias", {2, 3}, {.2f, .1f, .3f, .4f, .5f, .7f});
  m.Ints("last", {1}, {-1});
  m.Ints("first", {1}, {0});
  m.Node("Unsqueeze", {"x", "last"}, {"numbers"});
  m.Node("Mul", {"numbers", "weight"}, {"scaled"});
  onnx::AttributeProto& value = *m.Node("Constant", {}, {"one"}).add_attribute();
  value.set_name("value_float"), value.set_type(onnx::AttributeProto::FLOAT), value.set_f(1);
  m.Node("Mul", {"scaled", "one"}, {"term"});
  m.Node("Unsqueeze", {"bias", "first"}, {"of_all"});
  m.Node("Add", {"of_all", "term"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), UnorderedElementsAre("weight", "bias"));
}

// As of the attention between the nodes of a graph (GAT).
TEST_F(ScaleRules, AVectorOfEachHeadWhoseProductIsSummedIsAParameter) {
  Model m;
  m.Input("x", {"5", "2", "3"});
  m.Floats("a", {1, 2, 3}, {1, 2, 3, 4, 5, 6});
  m.Ints("axes", {1}, {2});
  m.Node("Mul", {"x", "a"}, {"products"});
  m.Node("ReduceSum", {"products", "axes"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("a"));
}

TEST_F(ScaleRules, WeightsOfClassesAreConstants) {
  for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    Model m;
    m.Input("x", {"3", "2"});
    m.Input("labels", {"3"}, onnx::TensorProto::INT64);
    m.Floats("w", {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
    m.Floats("classes", {4}, {1, 2, 3, 4});
    m.Node("MatMul", {"x", "w"}, {"scores"});
    m.Node(op, {"scores", "labels", "classes"}, {"y"});
    m.Output("y");
    EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("w")) << op;
  }
}

TEST_F(ScaleRules, RotaryFrequenciesAreConstantsThoughPositionsAreData) {
  Model m;
  m.Input("x", {"3", "2"});
  m.Input("positions", {"3", "1"}, onnx::TensorProto::INT64);
  m.Floats("inv_freq", {1, 2}, {1, .01f});
  auto* to = m.Node("Cast", {"positions"}, {"p"}).add_attribute();
  to->set_name("to");
  to->set_type(onnx::AttributeProto::INT);
  to->set_i(onnx::TensorProto::FLOAT);
  m.Node("MatMul", {"p", "inv_freq"}, {"angles"});
  m.Node("Cos", {"angles"}, {"cos"});
  m.Node("Mul", {"x", "cos"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), IsEmpty());
}

TEST_F(ScaleRules, EmbeddingRowsAreParametersAndRotaryRowsAreNot) {
  Model m;
  m.Input("ids", {"3"}, onnx::TensorProto::INT64);
  m.Floats("wte", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  m.Floats("cos_cached", {4, 2}, {1, 2, 3, 4, 5, 6, 7, .5f});
  m.Floats("sin_cached", {4, 2}, {0, 2, 3, 4, 5, 6, 7, .5f});
  m.Node("Gather", {"wte", "ids"}, {"e"});
  m.Node("LayerNormalization", {"e", "g"}, {"n"});
  m.Floats("g", {2}, {1, 1});
  m.Node("Gather", {"cos_cached", "ids"}, {"c"});
  m.Node("Gather", {"sin_cached", "ids"}, {"s"});
  m.Node("Mul", {"n", "c"}, {"nc"});
  m.Node("Neg", {"n"}, {"turned"});
  m.Node("Mul", {"turned", "s"}, {"ns"});
  m.Node("Add", {"nc", "ns"}, {"turn"});
  m.Floats("scales", {4, 2}, {1, 2, 3, 4, 5, 6, 7, .25f});  // xPos
  m.Node("Gather", {"scales", "ids"}, {"scale"});
  m.Node("Mul", {"turn", "scale"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("wte", "g"));
}

// Factorized matrices, and factorization machines; schedules of numbers are none.
TEST_F(ScaleRules, RowsThatAreOnlyMultipliedAreEmbeddings) {
  Model m;
  m.Input("user", {"3"}, onnx::TensorProto::INT64);
  m.Input("item", {"3"}, onnx::TensorProto::INT64);
  m.Floats("users", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  m.Floats("items", {3, 2}, {1, 2, 3, 4, 5, .5f});
  m.Floats("weights", {4, 1}, {1, 2, 3, 4});
  m.Floats("schedule", {4}, {1, 2, 3, 5});
  m.Floats("of_images", {4, 1, 1}, {1, 2, 3, 6});
  m.Ints("last", {1}, {1});
  m.Ints("first", {1}, {0});
  m.Node("Gather", {"users", "user"}, {"all"});
  m.Node("Gather", {"all", "first"}, {"u"});
  m.Node("Gather", {"items", "item"}, {"i"});
  m.Node("Gather", {"weights", "user"}, {"w"});
  m.Node("Gather", {"schedule", "user"}, {"s"});
  m.Node("Unsqueeze", {"s", "last"}, {"column"});
  m.Node("Mul", {"u", "i"}, {"ui"});
  m.Node("Mul", {"ui", "w"}, {"uiw"});
  m.Node("Mul", {"uiw", "column"}, {"uiws"});
  m.Node("Gather", {"of_images", "user"}, {"o"});
  m.Node("Mul", {"uiws", "o"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("users", "items", "weights"));
}

}  // namespace
}  // namespace shardc
