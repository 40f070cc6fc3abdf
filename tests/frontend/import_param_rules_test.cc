// Which tensors are parameters where only the graph says so, and their data.
#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::ImportTest;
using import_testing::Model;
using import_testing::ParamNames;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class ParamRules : public ImportTest {};

TEST_F(ParamRules, AMaskThatIsAddedIsAConstant) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("mask", {2, 2}, {0, -3.4028235e38f, 0, 0});
  m.Floats("subtracted", {2, 2}, {0, 1e10f, 0, 0});
  m.Floats("bias", {2, 2}, {0, -3, 0, 0});
  m.Node("Sub", {"x", "subtracted"}, {"x0"});
  m.Node("Add", {"x0", "mask"}, {"a"});
  m.Node("Add", {"a", "bias"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("bias"));
}

// What ONNX Runtime folds of zeros_like and masked_fill has no name that says what it is.
TEST_F(ParamRules, ZerosThatAreWrittenOrMaskedOverAreConstants) {
  Model m;
  const std::vector<float> zeros(8, 0);
  m.Input("x", {"2", "2", "2"});
  m.Input("mask", {"2", "2", "2"}, onnx::TensorProto::BOOL);
  m.Input("at", {"2", "2", "2"}, onnx::TensorProto::INT64);
  m.Floats("empty", {2, 2, 2}, zeros);
  m.Floats("unseen", {2, 2, 2}, std::vector<float>(8, -INFINITY));
  m.Floats("padding", {2, 2, 2}, zeros);
  m.Node("Where", {"mask", "unseen", "padding"}, {"filled"});
  m.Node("Add", {"x", "empty"}, {"unpadded"});
  m.Node("Add", {"unpadded", "filled"}, {"scores"});
  m.Node("Where", {"mask", "scores", "x"}, {"masked"});
  m.Node("Reshape", {"masked", "shape"}, {"rows"});
  m.Node("Softmax", {"rows"}, {"p"});
  m.Floats("weights", {2, 2, 2}, zeros);
  m.Node("ScatterElements", {"weights", "at", "x"}, {"written"});
  m.Floats("hidden", {2, 2, 2}, zeros);
  m.Node("Where", {"mask", "hidden", "written"}, {"seen"});
  m.Floats("token", {1, 1, 2}, {0, 0});  // as of masked modelling
  m.Node("Where", {"mask", "token", "seen"}, {"y"});
  auto* shape = m.graph.add_initializer();
  shape->set_name("shape");
  shape->set_data_type(onnx::TensorProto::INT64);
  shape->add_dims(2);
  for (int64_t d : {4, 2}) shape->add_int64_data(d);
  m.Output("p");
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("token"));
}

// What dynamo folds of a static shape's ones(batch, sequence), expanded.
TEST_F(ParamRules, OnesThatAreSubtractedForAMaskAreConstants) {
  Model m;
  m.Input("x", {"2", "2", "2"});
  m.Floats("one", {}, {1});
  m.Floats("lowest", {}, {-3.4028235e38f});
  m.Floats("all", {2, 2, 2}, std::vector<float>(8, 1));
  m.Floats("gates", {2, 2, 2}, std::vector<float>(8, 1));
  m.Node("Sub", {"one", "all"}, {"none"});
  auto* to = m.Node("Cast", {"none"}, {"padded"}).add_attribute();
  to->set_name("to"), to->set_type(onnx::AttributeProto::INT), to->set_i(onnx::TensorProto::BOOL);
  m.Node("Where", {"padded", "lowest", "none"}, {"mask"});
  m.Node("Add", {"x", "mask"}, {"scores"});
  m.Node("Softmax", {"scores"}, {"p"});
  m.Node("Sub", {"one", "gates"}, {"open"});
  m.Node("Add", {"p", "open"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("gates"));
}

// As MPT's mask of what comes later, which dynamo folds but for its last step.
TEST_F(ParamRules, WhatDecidesAChoiceIsAConstant) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("later", {2, 2}, {0, 1, 0, 0});
  m.Floats("lowest", {}, {-3.4028235e38f});
  auto* to = m.Node("Cast", {"later"}, {"hidden"}).add_attribute();
  to->set_name("to"), to->set_type(onnx::AttributeProto::INT), to->set_i(onnx::TensorProto::BOOL);
  m.Node("Where", {"hidden", "lowest", "x"}, {"seen"});
  m.Node("Softmax", {"seen"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), IsEmpty());
}

// ALiBi as TorchScript stores it, with and without what is masked, and one to both sides. What was
// trained is no ramp, and a vector may begin as one.
TEST_F(ParamRules, DistancesThatAreAddedAreConstants) {
  Model m;
  const float none = -INFINITY;
  m.Input("x", {"2", "5"});
  m.Floats("alibi", {2, 5}, {-2, -1.5, -1, -0.5, 0, -1.2f, -0.9f, -0.6f, -0.3f, 0});
  m.Floats("causal", {2, 5}, {-0.9f, -0.6f, -0.3f, 0, none, -1.2f, -0.9f, -0.6f, -0.3f, 0});
  m.Floats("both_sides", {2, 5}, {0, -1, -2, -3, -4, -2, -1, 0, -1, -2});
  m.Floats("trained", {2, 5}, {-2, -1.5, -1, -0.5, 0, -2, -1.4f, -1, -0.6f, 0});
  m.Floats("fill", {2, 5}, std::vector<float>(10, 0.5f));
  m.Floats("ramp", {1, 5}, {0, 0.25, 0.5, 0.75, 1});
  m.Floats("flat", {2, 5}, {1, 1.01f, 1.02f, 1.03f, 1.04f, 1, 1.02f, 1.04f, 1.06f, 1.08f});
  std::string sum = "x";
  for (const char* table : {"alibi", "causal", "both_sides", "trained", "fill", "ramp", "flat"}) {
    m.Node("Add", {sum, table}, {StrCat(table, "_sum")});
    sum = StrCat(table, "_sum");
  }
  m.Output(sum);
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("trained", "fill", "ramp", "flat"));
}

// As of a diffusion's time step, which scales what is computed.
TEST_F(ParamRules, AMatrixThatIsMultipliedWithWhatANumberMakesIsAParameter) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Input("time", {});
  m.graph.mutable_input(1)->mutable_type()->mutable_tensor_type()->mutable_shape();
  m.Ints("one_row", {2}, {1, 1});
  m.Floats("w", {2, 2}, {1, 2, 3, 4});
  m.Node("Reshape", {"time", "one_row"}, {"row"});
  m.Node("Concat", {"row", "row"}, {"features"}).add_attribute();
  auto* axis = m.graph.mutable_node(1)->mutable_attribute(0);
  axis->set_name("axis"), axis->set_type(onnx::AttributeProto::INT), axis->set_i(1);
  m.Node("MatMul", {"features", "w"}, {"scale"});
  m.Node("Mul", {"x", "scale"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("w"));
}

TEST_F(ParamRules, OnesAndZerosOfANormAreParameters) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("w", {2}, {1, 1});
  m.Floats("b", {2}, {0, 0});
  m.Node("LayerNormalization", {"x", "w", "b"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("w", "b"));
}

// Positions that are the same for all examples are folded, and are not what projects them.
TEST_F(ParamRules, WhatAModuleWorksOnHasNotTheNameOfItsWeight) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("onnx::MatMul_3", {2, 2}, {1, 2, 3, 4});
  m.Floats("onnx::MatMul_4", {2, 2}, {5, 6, 7, 8});
  m.Node("MatMul", {"onnx::MatMul_3", "onnx::MatMul_4"}, {"r"}, "/h.0/r_proj/MatMul");
  m.Node("MatMul", {"x", "r"}, {"y"});
  m.Output("y");
  const Graph graph = Import(m.proto);
  ASSERT_EQ(graph.Params().size(), 2u);
  EXPECT_FALSE(graph.Params()[0]->attrs.Has("aliases"));
  EXPECT_THAT(graph.Params()[1]->attrs.StringList("aliases"), ElementsAre("h.0.r_proj.weight"));
}

TEST_F(ParamRules, AZeroMatrixIsAParameter) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("lora_b", {2, 2}, {0, 0, 0, 0});
  m.Node("MatMul", {"x", "lora_b"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("lora_b"));
}

// TorchScript does not say which of the module's numbers are trained; that they are not here is
// said. Whoever keeps a logarithm trains it.
TEST_F(ParamRules, NumbersOfTorchScriptAreNoted) {
  Model m;
  m.proto.set_producer_name("pytorch");
  m.Input("x", {"2", "2"});
  for (const char* name : {"alpha", "shift", "slope", "onnx::Mul_9", "/Constant_output_0"}) {
    m.Floats(name, {1}, {.5f});
  }
  m.Floats("logit_scale", {}, {2.6f});
  m.Floats("masked_bias", {}, {-1e4f});
  m.Floats("none", {1}, {0});
  m.Node("Mul", {"x", "alpha"}, {"a"});
  m.Node("Add", {"a", "shift"}, {"b"});
  m.Node("PRelu", {"b", "slope"}, {"c"});
  m.Node("Mul", {"c", "onnx::Mul_9"}, {"d"});
  m.Node("Div", {"d", "/Constant_output_0"}, {"e"});
  m.Node("Exp", {"logit_scale"}, {"scale"});
  m.Node("Mul", {"e", "scale"}, {"f"});
  m.Node("Greater", {"f", "none"}, {"positive"});
  m.Node("Where", {"positive", "f", "masked_bias"}, {"y"});
  m.Output("y");
  Graph graph = Import(m.proto);
  EXPECT_THAT(ParamNames(graph), UnorderedElementsAre("slope", "logit_scale"));
  EXPECT_THAT(
      graph.notes,
      ElementsAre("kept as constants, not trained: 'alpha', 'shift', 'onnx::Mul_9'",
                  "trained, though they may be constants of the module (then --freeze them): "
                  "'logit_scale'"));
  m.proto.set_producer_name("");
  graph = Import(m.proto);
  EXPECT_THAT(ParamNames(graph), ElementsAre("slope"));
  EXPECT_THAT(graph.notes, IsEmpty());
}

// As of weights that are symmetric, of thresholds that grow, and of rates with a bound.
TEST_F(ParamRules, TrianglesSumsAndBoundsOfAParameterAreTrained) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("w", {2, 2}, {1, 2, 3, 5});
  m.Floats("steps", {2}, {.5f, .25f});
  m.Ints("axis", {}, {0});
  m.Node("Trilu", {"w"}, {"upper"});
  m.Node("Transpose", {"upper"}, {"lower"});
  m.Node("Add", {"upper", "lower"}, {"symmetric"});
  m.Node("MatMul", {"x", "symmetric"}, {"h"});
  m.Node("CumSum", {"steps", "axis"}, {"thresholds"});
  m.Node("Sub", {"h", "thresholds"}, {"a"});
  m.Floats("rates", {2}, {.5f, .25f});
  m.Floats("low", {}, {.3f});
  m.Node("Max", {"rates", "low"}, {"bounded"});
  m.Node("Mul", {"a", "bounded"}, {"b"});
  m.Floats("most", {2}, {.5f, .75f});
  m.Node("Min", {"b", "most"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), UnorderedElementsAre("w", "steps", "rates"));
}

// A head of one output, as of rewards, has a bias of one element.
TEST_F(ParamRules, ABiasOfOneOutputIsAParameter) {
  Model m;
  m.Input("x", {"2", "3"});
  m.Floats("w", {3, 1}, {1, 2, 3});
  m.Floats("b", {1}, {.5f});
  m.Floats("w2", {2, 1}, {1, 2});
  m.Floats("b2", {1}, {.25f});
  m.Floats("number", {1}, {.75f});
  m.Node("MatMul", {"x", "w"}, {"xw"});
  m.Node("Add", {"b", "xw"}, {"y"});
  m.Node("Transpose", {"y"}, {"yt"});
  m.Node("Gemm", {"yt", "w2", "b2"}, {"z"});
  m.Node("Add", {"z", "number"}, {"out"});
  m.Output("out");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("w", "b", "w2", "b2"));
}

// TorchScript without folding, of Linear(3, 1), Linear(1, 1) and PReLU.
TEST_F(ParamRules, ABiasOfOneOutputIsAParameterWhereTheWeightIsTransposed) {
  Model m;
  m.Input("x", {"2", "3"});
  m.Floats("w", {1, 3}, {1, 2, 3});
  m.Floats("b", {1}, {.5f});
  m.Floats("w2", {1, 1}, {2});
  m.Floats("b2", {1}, {.25f});
  m.Node("Transpose", {"w"}, {"wt"});
  m.Node("MatMul", {"x", "wt"}, {"xw"});
  m.Node("Add", {"b", "xw"}, {"y"});
  m.Node("Transpose", {"w2"}, {"w2t"});
  m.Node("MatMul", {"y", "w2t"}, {"yw"});
  m.Node("Add", {"b2", "yw"}, {"z"});
  m.Floats("slope", {1}, {.1f});
  m.Ints("dim", {1}, {1});
  m.Node("Unsqueeze", {"slope", "dim"}, {"slopes"});
  m.Node("PRelu", {"z", "slopes"}, {"out"});
  m.Output("out");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("w", "b", "w2", "b2", "slope"));
}

// dynamo_export of PyTorch 2.1 to 2.5: a table of sines and cosines is looked up, and split as a
// sequence of tensors is. The name of one tells, too.
TEST_F(ParamRules, TablesThatAreSplitAsSequencesAreConstants) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Input("at", {"2"}, onnx::TensorProto::INT64);
  m.Floats("table", {3, 4}, {0, 0, 1, 1, .84f, .1f, .54f, .99f, .91f, .2f, -.42f, .98f});
  m.Floats("_tensor_constant0", {2}, {.5f, .25f});
  m.Floats("scale", {2}, {.5f, .25f});
  m.Ints("half", {}, {2});
  m.Ints("first", {}, {0});
  m.Ints("second", {}, {1});
  m.Node("Gather", {"table", "at"}, {"rows"});
  auto* axis = m.Node("SplitToSequence", {"rows", "half"}, {"parts"}).add_attribute();
  axis->set_name("axis");
  axis->set_type(onnx::AttributeProto::INT);
  axis->set_i(1);
  m.Node("SequenceAt", {"parts", "first"}, {"sine"});
  m.Node("SequenceAt", {"parts", "second"}, {"cosine"});
  m.Node("Mul", {"x", "sine"}, {"a"});
  m.Node("Mul", {"x", "cosine"}, {"b"});
  m.Node("Add", {"a", "b"}, {"c"});
  m.Node("Mul", {"c", "_tensor_constant0"}, {"d"});
  m.Node("Mul", {"d", "scale"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("scale"));
}

// dynamo_export of PyTorch 2.1 to 2.3 writes x + y as x + y * alpha, with alpha a 1 of y's type. Of
// RoBERTa the ids of positions are computed from the input.
TEST_F(ParamRules, ATensorThatOnlyGivesItsTypeIsNoFactor) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Input("at", {"2"}, onnx::TensorProto::INT64);
  m.Floats("words", {2, 2}, {1, 2, 3, 4});
  m.Floats("positions", {3, 2}, {1, 2, 3, 4, 5, 6});
  m.Floats("type", {2}, {1, 2});
  m.Ints("alpha", {}, {1});
  m.Node("MatMul", {"x", "words"}, {"a"});
  m.Node("Gather", {"positions", "at"}, {"rows"});
  m.Node("CastLike", {"alpha", "rows"}, {"factor"});
  m.Node("Mul", {"rows", "factor"}, {"b"});
  m.Node("Add", {"a", "b"}, {"c"});
  m.Node("CastLike", {"alpha", "type"}, {"offset"});
  m.Node("Add", {"c", "offset"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), UnorderedElementsAre("words", "positions"));
}

// DeepSeek-V3: a bias by which experts are chosen, but that is no part of their scores, is not
// trained by gradients.
TEST_F(ParamRules, WhatOnlyChoosesIsAConstant) {
  for (bool scores : {false, true}) {
    Model m;
    m.Input("x", {"3", "2"});
    m.Floats("router", {2, 4}, {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f});
    m.Floats("correction", {1, 4}, {.3f, .1f, .2f, .5f});
    auto* k = m.graph.add_initializer();
    k->set_name("k");
    k->set_data_type(onnx::TensorProto::INT64);
    k->add_dims(1);
    k->add_int64_data(2);
    m.Node("MatMul", {"x", "router"}, {"logits"});
    m.Node("Add", {"logits", "correction"}, {"corrected"});
    m.Node("TopK", {"corrected", "k"}, {"largest", "at"});
    auto* axis = m.Node("GatherElements", {"logits", "at"}, {"picked"}).add_attribute();
    axis->set_name("axis");
    axis->set_type(onnx::AttributeProto::INT);
    axis->set_i(1);
    if (scores) {
      m.Node("Add", {"picked", "largest"}, {"y"});
    } else {
      m.Node("Neg", {"picked"}, {"y"});
    }
    m.Output("y");
    Graph graph = Import(m.proto);
    if (scores) {
      EXPECT_THAT(ParamNames(graph), ::testing::UnorderedElementsAre("router", "correction"));
    } else {
      EXPECT_THAT(ParamNames(graph), ElementsAre("router"));
      EXPECT_THAT(graph.notes, ElementsAre("kept as constants, not trained: 'correction'"));
    }
  }
}

// Shapes that are computed as floats, as the sizes of a Resize are.
TEST_F(ParamRules, WhatIsCastToIntegersIsAConstant) {
  Model m;
  m.Input("x", {"2", "3"});
  m.Floats("w", {3, 2}, {1, 2, 3, 4, 5, 6});
  m.Floats("size", {3}, {-1, 2, 1});
  m.Node("MatMul", {"x", "w"}, {"h"});
  auto* to = m.Node("Cast", {"size"}, {"shape"}).add_attribute();
  to->set_name("to");
  to->set_type(onnx::AttributeProto::INT);
  to->set_i(onnx::TensorProto::INT64);
  m.Node("Reshape", {"h", "shape"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("w"));
}

// Keys of a memory, of which the norm is made 1 with that of the others.
TEST_F(ParamRules, WhatIsJoinedWithWhatIsComputedIsAParameter) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("w", {2, 2}, {1, 2, 3, 5});
  m.Floats("memory", {2, 2}, {3, 2, 7, 4});
  m.Floats("grid", {2, 4}, {0, 1, 2, 3, 0, 1, 2, 3});
  m.Node("MatMul", {"x", "w"}, {"k"});
  auto* axis = m.Node("Concat", {"memory", "k"}, {"keys"}).add_attribute();
  axis->set_name("axis");
  axis->set_type(onnx::AttributeProto::INT);
  axis->set_i(1);
  m.Node("Mul", {"keys", "keys"}, {"squares"});
  m.Node("ReduceMean", {"squares"}, {"mean"});
  m.Node("Div", {"keys", "mean"}, {"y"});
  m.Node("Concat", {"y", "grid"}, {"yg"}).add_attribute()->CopyFrom(*axis);
  m.Node("Mul", {"yg", "mean"}, {"z"});
  m.Output("z");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("w", "memory"));
}

TEST_F(ParamRules, InitializersThatAreInputsTooAreNoInputs) {
  Model m = import_testing::AddModel();
  m.proto.set_ir_version(3);
  m.Input("w", {"4"});
  Graph graph = Import(m.proto);
  EXPECT_EQ(graph.inputs().size(), 1u);
  EXPECT_THAT(ParamNames(graph), ElementsAre("w"));
}

// Every way of storing the same numbers gives the same boxes, also when pages were let go in
// between.
TEST_F(ParamRules, DataIsReadInBoxes) {
  std::vector<float> values(640 * 48);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::string raw(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  Write("12345678" + raw, "w.data");
  for (const char* how : {"typed", "raw", "external"}) {
    Model m;
    m.Input("x", {"2", "640"});
    auto& w = m.Floats("w", {640, 48}, {});
    if (how == std::string("typed")) {
      w.mutable_float_data()->Add(values.begin(), values.end());
    } else if (how == std::string("raw")) {
      w.set_raw_data(raw);  // larger than what stays in the parsed model
    } else {
      w.set_data_location(onnx::TensorProto::EXTERNAL);
      for (auto [key, value] : {std::pair("location", "w.data"), std::pair("offset", "8")}) {
        auto* entry = w.add_external_data();
        entry->set_key(key);
        entry->set_value(value);
      }
    }
    m.Node("MatMul", {"x", "w"}, {"y"});
    m.Output("y");
    Graph graph = Import(m.proto);
    const TensorSource& source = *graph.sources.at("w");
    std::vector<float> box(6), all(values.size());
    source.Read({5, 7}, {2, 3}, box.data());
    EXPECT_THAT(box, ElementsAre(247, 248, 249, 295, 296, 297)) << how;
    source.Read({0, 0}, {640, 48}, all.data());
    EXPECT_EQ(all, values) << how;
  }
}

}  // namespace
}  // namespace shardc
