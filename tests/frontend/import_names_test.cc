// What dynamo's metadata say of a file's tensors.
#include "frontend/recover.h"
#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::AddFoldedFrom;
using import_testing::AddMetadata;
using import_testing::ImportTest;
using import_testing::ListParameters;
using import_testing::Model;
using import_testing::ParamNames;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class DynamoNames : public ImportTest {};

// dynamo says of a single number whether the module trains it.
TEST_F(DynamoNames, ANumberFoldedFromAParameterIsOne) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("onnx::Mul_1", {}, {.5f});
  m.Floats("h.scale", {}, {.1f});
  m.Node("Mul", {"x", "onnx::Mul_1"}, {"a"});
  m.Node("Mul", {"a", "h.scale"}, {"y"});
  m.Output("y");
  for (const char* name : {"onnx::Mul_1", "h.scale"}) {
    AddFoldedFrom(m, name, name[0] == 'o' ? "['h.0.lambdas', 'val_1']" : "['val_2']");
  }
  // Nothing says what the module has.
  Graph unknown = Import(m.proto);
  EXPECT_THAT(ParamNames(unknown), IsEmpty());
  EXPECT_THAT(unknown.notes,
              ElementsAre("kept as constants, not trained: 'onnx::Mul_1', 'h.scale'"));
  AddMetadata(m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature",
              "p_h_0_lambdas: PARAMETER target='h.0.lambdas'");
  Graph graph = Import(m.proto);
  EXPECT_THAT(ParamNames(graph), ElementsAre("onnx::Mul_1"));
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("'onnx::Mul_1' [] from 'h.0.lambdas'")));
  // A number that was made of the parameter alone is still not the parameter: exp(logit_scale);
  // nor is a vector.
  m.graph.clear_value_info();
  AddFoldedFrom(m, "onnx::Mul_1", "['h.0.lambdas']");
  EXPECT_THAT(Import(m.proto).notes, ElementsAre(HasSubstr("'onnx::Mul_1' [] from 'h.0.lambdas'")));
  m.graph.mutable_initializer(0)->add_dims(1);
  EXPECT_THAT(Import(m.proto).notes,
              ElementsAre(HasSubstr("'onnx::Mul_1' [1] from 'h.0.lambdas'")));
  m.graph.mutable_initializer(0)->add_dims(1);
  EXPECT_THAT(Import(m.proto).notes,
              ElementsAre(HasSubstr("'onnx::Mul_1' [1, 1] from 'h.0.lambdas'")));
}

// dynamo keeps any of the names of equal tensors: the module of each use tells whose it is there.
TEST_F(DynamoNames, AMergedTensorMayHaveTheNameOfALaterUse) {
  for (bool known : {true, false}) {
    Model m;
    m.Input("x", {"2", "2"});
    m.Floats("b.bias", {2}, {0, 0});
    m.Node("Add", {"x", "b.bias"}, {"u"});
    m.Node("Add", {"u", "b.bias"}, {"v"});
    m.Node("Add", {"v", "b.bias"}, {"y"});
    m.Output("y");
    for (int i = 0; known && i < 3; ++i) {
      const std::string module(1, "abc"[i]);
      AddMetadata(*m.graph.mutable_node(i), 9, "pkg.torch.onnx.name_scopes",
                  "['', '" + module + "', 'add']");
    }
    ListParameters(m, {"a.bias", "b.bias", "c.bias"});
    const Graph graph = Import(m.proto);
    EXPECT_THAT(ParamNames(graph), ElementsAre("b.bias"));
    EXPECT_THAT(graph.Params()[0]->attrs.StringList("aliases"), ElementsAre("a.bias", "c.bias"));
    EXPECT_THAT(graph.notes, IsEmpty());
    // Without the modules in the order of their uses.
    Graph recovered = Import(m.proto);
    RecoverPatterns(recovered);
    std::vector<std::string> order;
    for (const auto& op : recovered.ops()) {
      if (op->name() == "add") {
        order.push_back(op->operands[1]->producer->attrs.String("name"));
      }
    }
    EXPECT_EQ(order, known ? (std::vector<std::string>{"a.bias", "b.bias", "c.bias"})
                           : (std::vector<std::string>{"b.bias", "a.bias", "c.bias"}));
  }
}

// What the exporter computed of the first step of a cell, whose state is zero, is of the cell that
// reads it, and of none that the model has besides; with a bias also where nothing says who does.
TEST_F(DynamoNames, WhatWasFoldedIsOfTheModuleThatReadsIt) {
  for (const bool bias : {false, true}) {
    Model m;
    m.Input("x", {"2", "2"});
    m.Floats("a.weight", {2, 2}, {1, 2, 3, 5});
    m.Floats("linear", {2, 2}, {.5f, .25f, .5f, .25f});
    m.Node("MatMul", {"x", "a.weight"}, {"h1"});
    m.Node("MatMul", {"h1", "a.weight"}, {"h2"});
    m.Node("Add", {"h2", "linear"}, {"y"});
    m.Output("y");
    for (int i = 0; i < (bias ? 2 : 3); ++i) {
      AddMetadata(*m.graph.mutable_node(i), 9, "pkg.torch.onnx.name_scopes", "['', 'a', 'linear']");
    }
    AddFoldedFrom(m, "linear", bias ? "['zeros', 'a.weight', 'a.bias']" : "['zeros', 'a.weight']");
    ListParameters(m, {"a.weight", "a.bias", "b.weight"});
    const Graph graph = Import(m.proto);
    EXPECT_THAT(ParamNames(graph), UnorderedElementsAre("a.weight", "linear"));
    for (const Op* param : graph.Params()) {
      EXPECT_THAT(param->attrs.StringList("aliases", {}), Not(Contains("b.weight"))) << bias;
    }
  }
}

// A Linear layer of one feature (a value head, a router) is one as of several.
TEST_F(DynamoNames, AFoldedTransposeOfOneRowIsOne) {
  Model m;
  m.Input("x", {"2", "4"});
  m.Floats("t", {4, 1}, {1, 2, 3, 4});
  m.Node("MatMul", {"x", "t"}, {"y"});
  m.Output("y");
  AddFoldedFrom(m, "t", "['v_head.weight']");
  ListParameters(m, {"v_head.weight"});
  const Graph graph = Import(m.proto);
  EXPECT_EQ(graph.Params()[0]->attrs.String("transpose_of", ""), "v_head.weight");
  EXPECT_THAT(graph.notes, IsEmpty());
}

// What a module writes as x @ w.t() is folded under that name; other folded tensors may be
// anything, also a permute, which may be of no dim.
TEST_F(DynamoNames, AFoldedTransposeIsKnownByItsName) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Output("y");
  std::string at = "x";
  for (const std::string name : {"permute", "t_1", "t", "mul_2", "val_3"}) {
    m.Floats(name, {2, 2}, {1, 2, 3, 4});
    m.Node("MatMul", {at, name}, {name == "val_3" ? "y" : "after_" + name});
    at = "after_" + name;
    AddFoldedFrom(m, name, "['w_" + name + "']");
  }
  ListParameters(m, {"w_permute", "w_t_1", "w_t", "w_mul_2", "w_val_3"});
  std::vector<std::string> of;
  const Graph graph = Import(m.proto);
  for (const Op* param : graph.Params()) {
    of.push_back(param->attrs.String("transpose_of", ""));
  }
  EXPECT_THAT(of, ElementsAre("", "w_t_1", "w_t", "", ""));
}

TEST_F(DynamoNames, WhatTheFileLacksOfTheModuleIsNoted) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("a.bias", {2}, {0, 1});
  m.Node("Add", {"x", "a.bias"}, {"y"});
  m.Output("y");
  ListParameters(m, {"a.bias", "b.bias"});
  EXPECT_THAT(Import(m.proto).notes,
              ElementsAre(HasSubstr("nothing of 1 parameter of the module, 'b.bias'")));
}

// As of layers that began as copies: which of them are tied in the module nobody can say.
TEST_F(DynamoNames, OneMatrixOfSeveralLayersIsNoted) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("a.0.weight", {2, 2}, {1, 2, 3, 4});
  m.Node("MatMul", {"x", "a.0.weight"}, {"h"});
  m.Node("MatMul", {"h", "a.0.weight"}, {"y"});
  m.Output("y");
  ListParameters(m, {"a.0.weight", "a.1.weight"});
  EXPECT_THAT(Import(m.proto).notes,
              ElementsAre(HasSubstr("trained as one: 'a.0.weight' and 'a.1.weight' (")));
}

// Its optimizer leaves out a bias of zeros; nodes of which nothing is written never had one.
TEST_F(DynamoNames, ABiasOfZerosThatWasLeftOutIsAParameter) {
  Model m;
  m.Input("x", {"2", "3"});
  m.Input("image", {"1", "2", "4", "4"});
  m.Floats("a.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  m.Floats("b.weight", {3, 2}, {6, 5, 4, 3, 2, 1});
  m.Floats("none.weight", {3, 3}, {1, 0, 2, 0, 3, 0, 4, 5, 6});
  m.Floats("c.weight", {3, 2, 1, 1}, {1, 2, 3, 4, 5, 6});
  m.Floats("d.weight", {3, 1, 1, 1}, {1, 2, 3});
  auto fx = [&](onnx::NodeProto& node, const std::string& call, bool lost = true) {
    AddMetadata(
        node, 9, "pkg.torch.onnx.fx_node",
        "%v : [num_users=1] = call_function[target=torch.ops.aten." + call + ", kwargs = {})");
    if (!lost) return;
    AddMetadata(node, 9, "pkg.onnxscript.rewriter.rule_name",
                "RemoveOptionalBiasFrom" + node.op_type());
  };
  fx(m.Node("Gemm", {"x", "a.weight"}, {"a"}),
     "addmm.default](args = (%p_a.bias, %x, %p_a.weight)");
  auto& linear = m.Node("Gemm", {"a", "b.weight"}, {"b"});
  fx(linear, "linear.default](args = (%a, %p_b.weight, %p_b.bias)");
  auto* turned = linear.add_attribute();
  turned->set_name("transB");
  turned->set_type(onnx::AttributeProto::INT);
  turned->set_i(1);
  fx(m.Node("Gemm", {"b", "none.weight"}, {"y"}), "linear.default](args = (%b, %p_none.weight)",
     false);
  fx(m.Node("Conv", {"image", "c.weight"}, {"c"}),
     "conv2d.default](args = (%image, %p_c.weight, %p_c.bias, [1, 1])");
  fx(m.Node("ConvTranspose", {"c", "d.weight"}, {"z"}),
     "conv_transpose2d.input](args = (%c, %p_d.weight, %p_d.bias)");
  m.Output("y");
  m.Output("z");
  std::vector<std::string> names;
  for (const char* module : {"a", "b", "none", "c", "d"}) {
    names.push_back(std::string(module) + ".weight");
    names.push_back(std::string(module) + ".bias");
  }
  ListParameters(m, names);
  const Graph graph = Import(m.proto);
  const std::map<std::string, Shape> biases = {
      {"a.bias", {2}}, {"b.bias", {3}}, {"c.bias", {3}}, {"d.bias", {1}}};
  for (const auto& [name, shape] : biases) {
    const Op* bias = graph.FindState(name);
    ASSERT_NE(bias, nullptr) << name;
    EXPECT_EQ(bias->out().shape, shape);
    HostTensor data(DType::kF32, shape);
    data.SetDouble(0, 1);
    graph.sources.at(name)->Read({0}, shape, data.raw());
    EXPECT_EQ(data, HostTensor(DType::kF32, shape));
  }
  EXPECT_EQ(graph.Params().size(), 5 + biases.size());
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("4 biases of zeros"), HasSubstr("'none.bias'")));
}

// As of a module that is called twice.
TEST_F(DynamoNames, ABiasOfZerosThatSeveralNodesLostIsOneOfAll) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("a.weight", {2, 2}, {1, 2, 3, 4});
  const std::string to[] = {"h", "y"};
  for (const std::string from : {"x", "h"}) {
    auto& node = m.Node("Gemm", {from, "a.weight"}, {to[from == "h"]});
    AddMetadata(node, 9, "pkg.torch.onnx.fx_node",
                "%v : [...] = call_function[target=torch.ops.aten.linear.default](args = (%" +
                    from + ", %p_a.weight, %p_a.bias), kwargs = {})");
    AddMetadata(node, 9, "pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromGemm");
    AddMetadata(node, 9, "pkg.torch.onnx.name_scopes", "['', 'a', 'linear']");
  }
  m.Output("y");
  ListParameters(m, {"a.weight", "a.bias"});
  const Graph graph = Import(m.proto);
  EXPECT_EQ(graph.FindState("a.bias")->result()->users.size(), 2);
  EXPECT_THAT(ParamNames(graph), UnorderedElementsAre("a.weight", "a.bias"));
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("1 bias of zeros")));
}

// A file of the module's tensors is held to those that the graph has as constants.
TEST_F(DynamoNames, WhatIsKeptAsAConstantIsTold) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("a.bias", {2}, {2, 3});
  m.Floats("table", {2, 2}, {1, 2, 3, 4});
  m.Node("Add", {"x", "a.bias"}, {"h"});
  m.Node("Mul", {"h", "table"}, {"y"});
  m.Output("y");
  FixedTensors fixed;
  Import(m.proto, {{}, {}, {}, &fixed});
  const auto table = HostTensor::Of<float>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(fixed, (FixedTensors{{"table", FixedTensorOf(table)}}));
}

// A rate of each channel that was expanded to the batch is one row; a new table may have equal
// ones.
TEST_F(DynamoNames, RowsExpandedToTheBatchAreOne) {
  for (const char* from : {"['expand_5', 'rate']", "['rate']"}) {
    Model m;
    m.Input("x", {"2", "3"});
    m.Floats("val_1", {2, 3}, {1, 2, 4, 1, 2, 4});
    m.Node("Mul", {"x", "val_1"}, {"xr"});
    m.Node("Add", {"xr", "val_1"}, {"y"});
    m.Output("y");
    AddFoldedFrom(m, "val_1", from);
    ListParameters(m, {"rate"});
    const bool expanded = from[2] == 'e';
    EXPECT_EQ(Import(m.proto).Params()[0]->out().shape, (Shape{expanded ? 1 : 2, 3})) << from;
  }
}

// A weight that was expanded to the batch before it was folded is trained as one; the weights of
// experts that began as copies are not.
TEST_F(DynamoNames, AnExpandedWeightIsOneParameter) {
  for (const char* from : {"['expand_5', 'val_3', 'w']", "['val_3', 'w']"}) {
    Model m;
    m.Input("x", {"2", "3", "2"});
    m.Floats("view_5", {2, 2, 2}, {1, 2, 3, 4, 1, 2, 3, 4});
    m.Node("MatMul", {"x", "view_5"}, {"y"});
    m.Output("y");
    AddFoldedFrom(m, "view_5", from);
    ListParameters(m, {"w"});
    const Graph graph = Import(m.proto);
    ASSERT_EQ(graph.Params().size(), 1u);
    const bool expanded = from[2] == 'e';
    EXPECT_EQ(graph.Params()[0]->out().shape, (Shape{expanded ? 1 : 2, 2, 2})) << from;
    EXPECT_THAT(graph.notes, Contains(HasSubstr("computed from parameters")));
  }
}

// 1 + w is trained as w is, and -exp(w) is not.
TEST_F(DynamoNames, AFunctionOfAVectorIsNoted) {
  for (const char* from :
       {"['val_3', 'w']", "['exp', 'w']", "['exp_12', 'w']", "['expand_1', 'w']"}) {
    Model m;
    m.Input("x", {"2", "3"});
    m.Floats("neg", {3}, {-1.5f, -2, -3});
    m.Node("Mul", {"x", "neg"}, {"y"});
    m.Output("y");
    AddFoldedFrom(m, "neg", from);
    ListParameters(m, {"w"});
    const Graph graph = Import(m.proto);
    EXPECT_THAT(ParamNames(graph), ElementsAre("neg"));
    const bool is_function = std::string_view(from).find("'exp'") != std::string_view::npos ||
                             std::string_view(from).find("'exp_") != std::string_view::npos;
    EXPECT_EQ(graph.notes.size(), is_function ? 1 : 0) << from;
  }
}

// One scale for the first stream and one for all others (hyper-connections).
TEST_F(DynamoNames, AVectorOfTwoParametersIsNoted) {
  const std::vector<std::pair<std::string, std::string>> made = {
      {"['cat', 'b']", "from 'b' ("},
      {"['cat', 'expand', 'a', 'b']", "from 'a' and 'b' ("},
      {"['a', 'b', 'c']", "from 'a' and 'b' and 1 more ("}};
  for (const auto& [from, noted] : made) {
    Model m;
    m.Input("x", {"2", "3"});
    m.Floats("view_2", {3}, {1, 2, 2});
    m.Node("Mul", {"x", "view_2"}, {"y"});
    m.Output("y");
    AddFoldedFrom(m, "view_2", from);
    ListParameters(m, {"a", "b", "c"});
    EXPECT_THAT(Import(m.proto).notes, Contains(HasSubstr("'view_2' [3] " + noted))) << from;
  }
}

// As the scales of nGPT, which are kept small for the optimizer; but not 1 + w.
TEST_F(DynamoNames, AMultipleOfAVectorIsNoted) {
  for (const std::string tensor : {"mul", "abs_1", "silu", "add"}) {
    Model m;
    m.Input("x", {"2", "3"});
    m.Floats(tensor, {3}, {1.5f, 2, 3});
    m.Node("Mul", {"x", tensor}, {"y"});
    m.Output("y");
    AddFoldedFrom(m, tensor, "['val_3', 'w']");
    ListParameters(m, {"w"});
    EXPECT_EQ(Import(m.proto).notes.size(), tensor == "add" ? 0 : 1) << tensor;
  }
}

// What the code of the module made, with torch.tensor: which without optimize is a tensor of the
// file.
TEST_F(DynamoNames, AConstantOfTheCodeIsNoParameter) {
  Model m;
  m.Input("x", {"2", "3"});
  m.Floats("b", {3}, {.5f, .2f, .3f});
  m.Floats("lifted_tensor_0", {3}, {.25f, .125f, .0625f});
  m.Node("Add", {"x", "b"}, {"a"});
  m.Node("Mul", {"a", "lifted_tensor_0"}, {"y"});
  m.Output("y");
  AddMetadata(m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature",
              "p_b: PARAMETER target='b'\n"
              "c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'\n");
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("b"));
}

// PyTorch up to 2.7 lists what the module has as Python shows it, and up to 2.8 does not say what
// was folded.
TEST_F(DynamoNames, AreReadAsOlderVersionsWriteThem) {
  Model m;
  m.Input("x", {"2", "3"});
  m.Floats("b", {3}, {.5f, .2f, .3f});
  m.Floats("new", {3}, {0, 0, 0});
  m.Floats("val_7", {3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  m.Node("Add", {"x", "b"}, {"a"});
  m.Node("Add", {"a", "new"}, {"c"});
  AddMetadata(m.Node("MatMul", {"c", "val_7"}, {"y"}), 9, "pkg.torch.onnx.fx_node",
              "%linear : [...] = call_function[target=torch.ops.aten.linear.default](args = (%c, "
              "%p_w), kwargs = {})");
  m.Output("y");
  AddMetadata(
      m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature",
      "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, "
      "arg=TensorArgument(name='p_b'), target='b', persistent=None), "
      "InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_w'), target='w', "
      "persistent=None), InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_u'), "
      "target='u', persistent=None), InputSpec(kind=<InputKind.BUFFER: 3>, "
      "arg=TensorArgument(name='b_new'), target='new', persistent=True), "
      "InputSpec(kind=<InputKind.USER_INPUT: 1>, arg=TensorArgument(name='x'), target=None, "
      "persistent=None)], output_specs=[OutputSpec(kind=<OutputKind.USER_OUTPUT: 1>, "
      "arg=TensorArgument(name='linear'), target=None)])");
  const Graph graph = Import(m.proto);
  EXPECT_THAT(ParamNames(graph), ElementsAre("b", "val_7"));
  EXPECT_EQ(graph.Params()[1]->attrs.String("transpose_of", ""), "w");
  EXPECT_THAT(graph.notes, Contains(HasSubstr("not trained: 'new'")));
  EXPECT_THAT(graph.notes, Contains(HasSubstr("nothing of 1 parameter of the module, 'u'")));
}

// New scales are equal, and the file has one of them; a norm may have none.
TEST_F(DynamoNames, MergedFillsAreWhatTheCallsWereGiven) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("a.weight", {2}, {1, 1});
  m.Floats("val_0", {2, 2}, {0, 0, 0, 0});
  m.Floats("tied.weight", {2}, {1, 2});
  std::string from = "x";
  auto add = [&](const std::string& op, const std::string& tensor, const std::string& call) {
    const std::string to = from + "_";
    AddMetadata(m.Node(op, {from, tensor}, {to}), 9, "pkg.torch.onnx.fx_node",
                "%v : [...] = call_function[target=torch.ops.aten." + call + ", kwargs = {})");
    from = to;
  };
  add("LayerNormalization", "a.weight", "layer_norm.default](args = (%v, [2], %p_a.weight, None)");
  add("LayerNormalization", "a.weight", "layer_norm.default](args = (%v, [2], %p_b.weight, None)");
  add("LayerNormalization", "a.weight", "layer_norm.default](args = (%v, [2], None, None)");
  add("LayerNormalization", "a.weight", "layer_norm.default](args = (%v, [2], %p_b.weight, None)");
  add("Mul", "a.weight", "mul.Tensor](args = (%v, %b_scale)");
  add("MatMul", "val_0", "linear.default](args = (%v, %p_l.weight)");
  add("MatMul", "val_0", "linear.default](args = (%v, %p_k.weight)");
  add("Mul", "tied.weight", "mul.Tensor](args = (%v, %p_tied.weight)");
  add("Mul", "tied.weight", "mul.Tensor](args = (%v, %p_other.weight)");
  m.Output(from);
  AddFoldedFrom(m, "val_0", "['l.weight']");
  std::string signature = "b_scale: BUFFER target='scale' persistent=True\n";
  for (const std::string name : {"a", "b", "l", "k", "tied", "other"}) {
    signature += "p_" + name + ".weight: PARAMETER target='" + name + ".weight'\n";
  }
  AddMetadata(m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature", signature);
  const Graph graph = Import(m.proto);
  EXPECT_THAT(ParamNames(graph), UnorderedElementsAre("a.weight", "b.weight", "val_0",
                                                      "val_0@k.weight", "tied.weight"));
  EXPECT_EQ(graph.FindState("a.weight")->result()->users.size(), 1);
  EXPECT_EQ(graph.FindState("b.weight")->result()->users.size(), 2);
  EXPECT_EQ(graph.FindState("val_0@k.weight")->attrs.String("transpose_of", ""), "k.weight");
  EXPECT_THAT(graph.notes, Contains(HasSubstr("4 tensors of one value")));
  EXPECT_THAT(graph.notes, Contains(HasSubstr("not trained: 'a.weight@x___', 'scale'")));
}

// As the rate of ReZero, which scales both branches of a block. Of what the calls were not given by
// its name, or beside a parameter that the file lacks, nobody knows.
TEST_F(DynamoNames, AVectorThatAllCallsWereGivenIsOne) {
  struct Case {
    std::string given;  // to the second call
    size_t params;
  };
  for (const Case& c : {Case{"%p_a, %v", 1}, Case{"%w, %v", 2}, Case{"%p_a, %p_b", 2}}) {
    SCOPED_TRACE(c.given);
    Model m;
    m.Input("x", {"2", "2"});
    m.Floats("h.0.a", {1}, {.1f});
    AddMetadata(m.Node("Mul", {"h.0.a", "x"}, {"v"}), 9, "pkg.torch.onnx.fx_node",
                "%v : [...] = call_function[target=torch.ops.aten.mul](args = (%p_a, %x), kwargs "
                "= {})");
    m.Node("Tanh", {"v"}, {"w"});
    AddMetadata(m.Node("Mul", {"h.0.a", "w"}, {"y"}), 9, "pkg.torch.onnx.fx_node",
                "%y : [...] = call_function[target=torch.ops.aten.mul](args = (" + c.given +
                    "), kwargs = {})");
    m.Output("y");
    AddMetadata(m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature",
                "p_a: PARAMETER target='h.0.a'\np_b: PARAMETER target='h.0.b'\n"
                "p_c: PARAMETER target='unused.a'\n");
    Graph graph = Import(m.proto);
    RecoverPatterns(graph);
    EXPECT_EQ(graph.Params().size(), c.params);
    for (const Op* param : graph.Params()) EXPECT_FALSE(param->attrs.Has("single"));
    if (c.params > 1) continue;
    EXPECT_FALSE(graph.Params()[0]->attrs.Has("aliases"));
    EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("nothing of 2 parameters of the module")));
  }
}

// The scale that a norm has not is one of the exporter's, another may be the module's.
TEST_F(DynamoNames, WhatTheCallWasNotGivenIsNoParameter) {
  Model m;
  m.Input("x", {"2", "3"});
  std::string from = "x";
  for (const std::string given : {"", ", %view"}) {
    const std::string scale = given.empty() ? "val_1" : "val_2";
    m.Floats(scale, {3}, {1, 1, 1});
    AddMetadata(
        m.Node("LayerNormalization", {from, scale}, {"n" + scale}), 9, "pkg.torch.onnx.fx_node",
        "%layer_norm : [...] = call_function[target=torch.ops.aten.layer_norm.default](args "
        "= (%_to_copy, [%sym_size]" +
            given + "), kwargs = {})");
    from = "n" + scale;
  }
  m.Output(from);
  ListParameters(m, {"w"});
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("val_2"));
}

// As of a batch norm, folded into the matrix before it, which keeps its name.
TEST_F(DynamoNames, WhatWasComputedIntoAnotherTensorIsSaidOfThat) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("l.weight", {2, 2}, {1, 2, 3, 4});
  m.Floats("k.weight", {2, 2}, {1, 2, 3, 5});
  AddMetadata(m.Node("MatMul", {"x", "l.weight"}, {"l"}), 9, "pkg.torch.onnx.fx_node",
              "%bn : [...] = call_function[target=torch.ops.aten.bn](args = (%l, %p_n.weight, "
              "%b_n.mean, 1e-05), kwargs = {})");
  AddMetadata(m.Node("MatMul", {"l", "k.weight"}, {"y"}), 9, "pkg.torch.onnx.fx_node",
              "%k : [...] = call_function[target=torch.ops.aten.k](args = (%l, %p_k.weight))");
  m.Output("y");
  AddMetadata(m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature",
              "p_l.weight: PARAMETER target='l.weight'\np_n.weight: PARAMETER target='n.weight'\n"
              "p_k.weight: PARAMETER target='k.weight'\n"
              "b_n.mean: BUFFER target='n.mean' persistent=True\n");
  const Graph graph = Import(m.proto);
  EXPECT_THAT(graph.Params()[0]->attrs.StringList("merged"), ElementsAre("n.mean", "n.weight"));
  EXPECT_FALSE(graph.Params()[1]->attrs.Has("merged"));
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("2 tensors of the module, 'n.mean' the first")));
}

// As transformers 5 looks the matrices of a token's experts up. What is indexed elsewhere than at
// its first dims was turned; of two tensors nobody can say which is which.
TEST_F(DynamoNames, AParameterThatIsIndexedHasItsOwn) {
  struct Case {
    std::string indices, from, second, name;
  };
  for (const Case& c :
       {Case{"[%i]", "['experts']", "", "experts"}, Case{"[None, %i]", "['experts']", "", "val_1"},
        Case{"[%i]", "['experts', 'val_3']", "", "val_1"},
        Case{"[%i]", "['experts']", "['experts']", "val_1"}}) {
    SCOPED_TRACE(c.indices + c.from + c.second);
    Model m;
    m.Input("i", {"4", "1"}, onnx::TensorProto::INT64);
    m.Floats("val_1", {3, 2}, {1, 2, 3, 4, 5, 6});
    AddMetadata(m.Node("GatherND", {"val_1", "i"}, {"y"}), 9, "pkg.torch.onnx.fx_node",
                "%index : [num_users=1] = call_function[target=torch.ops.aten.index.Tensor](args "
                "= (%p_experts, " +
                    c.indices + "), kwargs = {})");
    m.Output("y");
    ListParameters(m, {"experts"});
    AddFoldedFrom(m, "val_1", c.from);
    if (!c.second.empty()) {
      m.Floats("val_2", {2, 3}, {1, 2, 3, 4, 5, 7});
      AddFoldedFrom(m, "val_2", c.second);
      m.Node("Neg", {"val_2"}, {"z"});
      m.Output("z");
    }
    const Graph graph = Import(m.proto);
    EXPECT_EQ(ParamNames(graph)[0], c.name);
    if (c.name == "experts") {
      EXPECT_THAT(graph.notes, IsEmpty());
    }
  }
}

// Further than recursion goes.
TEST_F(DynamoNames, AParameterThatWasFoldedVeryManyTimes) {
  constexpr int kTimes = 200'000;
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("t0", {2, 2}, {1, 2, 3, 4});
  m.Node("MatMul", {"x", "t0"}, {"y"});
  m.Output("y");
  for (int i = 0; i < kTimes; ++i)
    AddFoldedFrom(m, StrCat("t", i), i + 1 < kTimes ? StrCat("['t", i + 1, "']") : "['w']");
  ListParameters(m, {"w"});
  EXPECT_THAT(ParamNames(Import(m.proto)), ElementsAre("t0"));
}

}  // namespace
}  // namespace shardc
