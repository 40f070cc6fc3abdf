// What graph comes out: sites, folding, branches, loops.
#include <limits>
#include <map>

#include "ir/op_def.h"
#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::AddBytes;
using import_testing::AddMetadata;
using import_testing::AddModel;
using import_testing::ImportTest;
using import_testing::Model;
using import_testing::OpNames;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ImportGraph : public ImportTest {};

TEST_F(ImportGraph, SitesAreModules) {
  Model m = AddModel();
  AddMetadata(m.Node("Tanh", {"y"}, {"t"}, "node_tanh"), 9, "pkg.torch.onnx.name_scopes",
              "['', 'h.0', 'h.0.act', 'tanh']");
  m.Node("Tanh", {"t"}, {"z"}, "node_tanh_1");
  m.Output("z");
  Graph graph = Import(m.proto);
  std::vector<std::string> sites;
  for (const auto& op : graph.ops()) sites.push_back(op->site);
  EXPECT_THAT(sites, ElementsAre("", "h.0.fc", "h.0.act", "node_tanh_1"));
}

TEST_F(ImportGraph, InputsAndOutputsKeepTheirNamesAndOrder) {
  Model m = AddModel();
  m.Input("unused", {"7"}, onnx::TensorProto::BOOL);
  m.Output("x");
  Graph graph = Import(m.proto);
  ASSERT_EQ(graph.inputs().size(), 2u);
  EXPECT_EQ(graph.inputs()[1]->name, "unused");
  EXPECT_EQ(graph.inputs()[1]->type.dtype, DType::kBool);
  EXPECT_EQ(graph.outputs[0].name, "y");
  EXPECT_EQ(graph.outputs[1].value, graph.FindInput("x"));
}

TEST_F(ImportGraph, ShapeArithmeticIsGone) {
  Model m;
  m.Input("x", {"batch", "seq", "2"});
  m.Ints("first", {1}, {0});
  m.Ints("second", {1}, {1});
  m.Node("Shape", {"x"}, {"s"});
  m.Node("Gather", {"s", "first"}, {"b"});
  m.Node("Gather", {"s", "second"}, {"q"});
  m.Node("Mul", {"b", "q"}, {"bq"});
  m.Node("Add", {"bq", "bq"}, {"twice"});
  m.Node("Reshape", {"x", "twice"}, {"y"});
  m.Output("y");
  Graph graph = Import(m.proto, {{{"batch", 4}, {"seq", 2}}, {}});
  EXPECT_THAT(OpNames(graph), ElementsAre("reshape"));
  EXPECT_EQ(graph.outputs[0].value->type.shape, (Shape{16}));
}

TEST_F(ImportGraph, ConstantsAreNotBlownUp) {
  for (int64_t rows : {1 << 10, 1 << 12}) {
    Model m;
    m.Input("x", {"512"});
    m.ConstantFloats("c", {}, {3});
    m.Ints("shape", {2}, {rows, 512});
    m.Node("Expand", {"c", "shape"}, {"e"});
    m.Node("Add", {"x", "e"}, {"y"});
    m.Output("y");
    std::vector<std::string> ops = OpNames(Import(m.proto));
    if (rows == 1 << 10) {
      EXPECT_THAT(ops, ElementsAre("constant", "add"));
    } else {
      EXPECT_THAT(ops, ElementsAre("constant", "broadcast_to", "add"));
    }
  }
}

TEST_F(ImportGraph, ABranchWithAConstantConditionIsTaken) {
  for (int64_t condition : {0, 1}) {
    Model m = AddModel();
    m.Ints("condition", {1}, {condition});
    auto& node = m.Node("If", {"condition"}, {"z"});
    for (const char* name : {"then_branch", "else_branch"}) {
      auto* attr = node.add_attribute();
      attr->set_name(name);
      attr->set_type(onnx::AttributeProto::GRAPH);
      auto* inner = attr->mutable_g()->add_node();
      inner->set_op_type(name == std::string("then_branch") ? "Tanh" : "Cos");
      inner->add_input("y");
      inner->add_output(name);
      attr->mutable_g()->add_output()->set_name(name);
    }
    m.Output("z");
    EXPECT_THAT(OpNames(Import(m.proto)), ElementsAre("param", "add", condition ? "tanh" : "cos"));
    m.graph.clear_initializer();
    m.Floats("w", {4}, {1, 2, 3, 4});
    m.Input("condition", {"1"}, onnx::TensorProto::BOOL);
    EXPECT_EQ(Failure(m.proto).id(), "E1307");
  }
}

// As Optimum merges a decoder for the prompt with one for the steps: the branches make what they
// hand on under its own name, and both have weights of the graph around them.
TEST_F(ImportGraph, ABranchMayUseTheNamesOfWhatTheNodeMakes) {
  for (int64_t condition : {0, 1}) {
    Model m = AddModel();
    m.Ints("condition", {1}, {condition});
    auto& node = m.Node("If", {"condition"}, {"z", "k"});
    for (const char* name : {"then_branch", "else_branch"}) {
      auto* attr = node.add_attribute();
      attr->set_name(name);
      attr->set_type(onnx::AttributeProto::GRAPH);
      for (const char* made : {"inner", "k", "z"}) {
        auto* inner = attr->mutable_g()->add_node();
        inner->set_op_type(made[0] == 'i'                       ? "Add"
                           : name == std::string("then_branch") ? "Tanh"
                                                                : "Cos");
        inner->add_input(made[0] == 'i' ? "y" : "inner");
        if (made[0] == 'i') inner->add_input("w");
        inner->add_output(made);
      }
      attr->mutable_g()->add_output()->set_name("z");
      attr->mutable_g()->add_output()->set_name("k");
    }
    m.Node("Add", {"z", "k"}, {"inner"});
    m.Output("inner");
    m.Output("z");
    const char* op = condition ? "tanh" : "cos";
    EXPECT_THAT(OpNames(Import(m.proto)), ElementsAre("param", "add", "add", op, op, "add"));
  }
}

// ONNX Runtime sorts the nodes of what it loads, and its tools leave them as they come.
TEST_F(ImportGraph, NodesMayBeInAnyOrder) {
  Model m;
  m.Input("x", {"2", "4"});
  m.Floats("w", {4}, {1, 2, 3, 4});
  m.Node("Add", {"b", "c"}, {"y"});
  m.Node("Cos", {"a"}, {"c"});
  m.Node("Tanh", {"a"}, {"b"});
  m.Node("Mul", {"x", "w"}, {"a"});
  m.Output("y");
  EXPECT_THAT(OpNames(Import(m.proto)), ElementsAre("param", "mul", "cos", "tanh", "add"));
  // What waits for itself is no order.
  m.graph.mutable_node(3)->set_input(0, "y");
  Diagnostic d = Failure(m.proto);
  EXPECT_EQ(d.id(), "E1308");
}

// A node with a branch of those nodes, taken; the other has none.
onnx::GraphProto* AddBranch(Model& m, const std::string& result) {
  auto& node = m.Node("If", {"condition"}, {result});
  onnx::GraphProto* taken = nullptr;
  for (const char* name : {"else_branch", "then_branch"}) {
    auto* attr = node.add_attribute();
    attr->set_name(name);
    attr->set_type(onnx::AttributeProto::GRAPH);
    taken = attr->mutable_g();
  }
  return taken;
}

onnx::NodeProto& AddNode(onnx::GraphProto& graph, const std::string& type,
                         std::initializer_list<std::string> reads, const std::string& makes) {
  auto& node = *graph.add_node();
  node.set_op_type(type);
  for (const std::string& name : reads) node.add_input(name);
  node.add_output(makes);
  return node;
}

// Also those of a branch, which makes values of the names that the graph around it uses after it.
TEST_F(ImportGraph, NodesOfBranchesMayBeInAnyOrder) {
  Model m = AddModel();
  m.Ints("condition", {1}, {1});
  m.Node("Exp", {"inner"}, {"out"});
  m.Node("Sqrt", {"z"}, {"inner"});
  onnx::GraphProto& branch = *AddBranch(m, "z");
  AddNode(branch, "Cos", {"inner"}, "z");
  AddNode(branch, "Tanh", {"outer"}, "inner");
  branch.add_output()->set_name("z");
  m.Node("Abs", {"y"}, {"outer"});
  m.Output("out");
  EXPECT_THAT(OpNames(Import(m.proto)),
              ElementsAre("param", "add", "abs", "tanh", "cos", "sqrt", "exp"));
}

TEST_F(ImportGraph, BranchesOfTwoNodesCannotHaveWeightsOfOneName) {
  Model m = AddModel();
  m.Ints("condition", {1}, {1});
  for (const char* result : {"first", "second"}) {
    onnx::GraphProto& branch = *AddBranch(m, result);
    auto& weight = *branch.add_initializer();
    weight.set_name("own");
    weight.set_data_type(onnx::TensorProto::FLOAT);
    weight.add_dims(4);
    for (int i = 0; i < 4; ++i) weight.add_float_data(result[0] == 'f' ? 1.5f + i : 7.5f - i);
    AddNode(branch, "Mul", {"y", "own"}, "made");
    branch.add_output()->set_name("made");
  }
  m.Node("Add", {"first", "second"}, {"z"});
  m.Output("z");
  EXPECT_EQ(Failure(m.proto).id(), "E1308");
}

TEST_F(ImportGraph, AConstantThatIsNoTuplesOfPositionsIsRefused) {
  Model m = AddModel();
  m.Ints("at", {}, {1});
  m.Node("GatherND", {"y", "at"}, {"z"});
  m.Output("z");
  EXPECT_EQ(Failure(m.proto).id(), "E1101");
}

// A loop that runs y through a tanh and adds w, and stacks what it had before: "out" and "stack".
onnx::GraphProto& AddLoop(Model& m, const std::string& rounds, const std::string& condition) {
  auto* attr = m.Node("Loop", {rounds, condition, "y"}, {"out", "stack"}).add_attribute();
  attr->set_name("body");
  attr->set_type(onnx::AttributeProto::GRAPH);
  onnx::GraphProto& body = *attr->mutable_g();
  for (const char* name : {"round", "goes", "state"}) body.add_input()->set_name(name);
  AddNode(body, "Identity", {"goes"}, "goes_on");
  AddNode(body, "Tanh", {"state"}, "t");
  AddNode(body, "Add", {"t", "w"}, "next");
  AddNode(body, "Identity", {"t"}, "piece");
  for (const char* name : {"goes_on", "next", "piece"}) body.add_output()->set_name(name);
  return body;
}

TEST_F(ImportGraph, ALoopThatRunsAKnownNumberOfTimesIsUnrolled) {
  Model m = AddModel();
  m.Ints("three", {1}, {3});
  AddLoop(m, "three", "");
  m.Node("Cos", {"out"}, {"t"});  // a name of the body's
  m.Output("t");
  m.Output("stack");
  Graph graph = Import(m.proto);
  EXPECT_THAT(OpNames(graph), ElementsAre("param", "add", "tanh", "add", "reshape", "tanh", "add",
                                          "reshape", "tanh", "add", "reshape", "concat", "cos"));
  EXPECT_EQ(graph.outputs.back().value->type.shape, (Shape{3, 2, 4}));
}

// Its counter is a constant: that of while loops, and of what exporters write with lists.
TEST_F(ImportGraph, ALoopEndsWhereItsConditionSaysSo) {
  Model m = AddModel();
  m.Ints("two", {}, {2});
  onnx::GraphProto& body = AddLoop(m, "", "");
  body.mutable_node(0)->set_op_type("Less");
  body.mutable_node(0)->set_input(0, "round");
  body.mutable_node(0)->add_input("two");
  m.Output("stack");
  EXPECT_EQ(Import(m.proto).outputs.back().value->type.shape, (Shape{3, 2, 4}));
}

TEST_F(ImportGraph, AWeightOfABranchInALoopIsOne) {
  Model m = AddModel();
  m.Ints("two", {1}, {2});
  m.Ints("condition", {1}, {1});
  onnx::GraphProto& body = AddLoop(m, "two", "");
  onnx::GraphProto& branch = *AddBranch(m, "scaled");
  auto& weight = *branch.add_initializer();
  weight.set_name("own");
  weight.set_data_type(onnx::TensorProto::FLOAT);
  weight.add_dims(4);
  for (float x : {1, 2, 3, 5}) weight.add_float_data(x);
  AddNode(branch, "Mul", {"t", "own"}, "made");
  branch.add_output()->set_name("made");
  body.add_node()->Swap(m.graph.mutable_node(m.graph.node_size() - 1));
  m.graph.mutable_node()->RemoveLast();
  body.mutable_output(1)->set_name("scaled");
  m.Output("out");
  EXPECT_THAT(OpNames(Import(m.proto)),
              ElementsAre("param", "add", "tanh", "param", "mul", "tanh", "mul"));
}

TEST_F(ImportGraph, ALoopMayFillASequence) {
  Model m = AddModel();
  m.Ints("two", {1}, {2});
  m.Node("SequenceEmpty", {}, {"none"});
  auto* attr = m.Node("Loop", {"two", "", "none"}, {"all"}).add_attribute();
  attr->set_name("body");
  attr->set_type(onnx::AttributeProto::GRAPH);
  onnx::GraphProto& body = *attr->mutable_g();
  for (const char* name : {"round", "goes", "before"}) body.add_input()->set_name(name);
  AddNode(body, "Identity", {"goes"}, "goes_on");
  AddNode(body, "SequenceInsert", {"before", "y"}, "after");
  for (const char* name : {"goes_on", "after"}) body.add_output()->set_name(name);
  auto* axis = m.Node("ConcatFromSequence", {"all"}, {"z"}).add_attribute();
  axis->set_name("axis");
  axis->set_type(onnx::AttributeProto::INT);
  m.Output("z");
  EXPECT_EQ(Import(m.proto).outputs.back().value->type.shape, (Shape{4, 4}));
}

// Of bytes, which wrap at 256 behind it, too.
TEST_F(ImportGraph, ABranchMayMakeASequence) {
  Model m;
  m.Input("x", {"2"}, onnx::TensorProto::INT32);
  m.Ints("condition", {1}, {1});
  m.Ints("first", {}, {0});
  auto* to = m.Node("Cast", {"x"}, {"bytes"}).add_attribute();
  to->set_name("to");
  to->set_type(onnx::AttributeProto::INT);
  to->set_i(onnx::TensorProto::UINT8);
  onnx::GraphProto& branch = *AddBranch(m, "pieces");
  auto* type = AddNode(branch, "SequenceEmpty", {}, "none").add_attribute();
  type->set_name("dtype");
  type->set_type(onnx::AttributeProto::INT);
  type->set_i(onnx::TensorProto::UINT8);
  AddNode(branch, "SequenceInsert", {"none", "bytes"}, "made");
  branch.add_output()->set_name("made");
  m.Node("SequenceAt", {"pieces", "first"}, {"piece"});
  m.Node("Add", {"piece", "piece"}, {"y"});
  m.Output("y", {}, onnx::TensorProto::UINT8);
  EXPECT_THAT(OpNames(Import(m.proto)), ElementsAre("constant", "mod", "add", "constant", "mod"));
}

TEST_F(ImportGraph, LoopsThatInputDataEndsAreRefused) {
  Model m = AddModel();
  m.Input("rounds", {"1", "1"}, onnx::TensorProto::INT64);
  AddLoop(m, "rounds", "");
  m.Output("out");
  EXPECT_EQ(Failure(m.proto).id(), "E1307");
  // No end.
  Model endless = AddModel();
  AddLoop(endless, "", "");
  endless.Output("out");
  Diagnostic d = Failure(endless.proto);
  EXPECT_EQ(d.id(), "E1307");
  EXPECT_THAT(d.message(), HasSubstr("too often"));
  // It hands on what its body does not make.
  Model other = AddModel();
  other.Ints("two", {1}, {2});
  AddLoop(other, "two", "").mutable_output(1)->set_name("nothing");
  other.Output("out");
  EXPECT_EQ(Failure(other.proto).id(), "E1308");
}

// What a loop runs through is an activation in its body too: a vector there is a parameter.
TEST_F(ImportGraph, VectorsInALoopAreParameters) {
  Model m = AddModel();
  m.Ints("two", {1}, {2});
  onnx::GraphProto& body = AddLoop(m, "two", "");
  onnx::TensorProto& t = *body.add_initializer();
  t.set_name("h.fc.bias");
  t.set_data_type(onnx::TensorProto::FLOAT);
  t.add_dims(4);
  for (float x : {4.0f, 3.0f, 2.0f, 1.0f}) t.add_float_data(x);
  body.mutable_node(2)->set_input(1, "h.fc.bias");
  m.Output("out");
  EXPECT_THAT(OpNames(Import(m.proto)),
              ElementsAre("param", "add", "param", "tanh", "add", "tanh", "add"));
}

TEST_F(ImportGraph, IdentityOfAParameterIsTheParameter) {
  Model m = AddModel();
  m.Node("Identity", {"w"}, {"h.1.fc.bias"}, "Identity_7");
  m.Node("Add", {"y", "h.1.fc.bias"}, {"z"});
  m.Output("z");
  Graph graph = Import(m.proto);
  ASSERT_EQ(graph.Params().size(), 1u);
  EXPECT_THAT(graph.Params()[0]->attrs.StringList("aliases"), ElementsAre("h.1.fc.bias"));
  EXPECT_EQ(graph.Params()[0]->result()->users.size(), 2u);
}

// TorchScript keeps one of equal tensors, and writes Identity nodes of it for the others. Those of
// one value are new ones.
TEST_F(ImportGraph, MergedFillsOfTorchScriptAreSeparate) {
  Model m;
  m.proto.set_producer_name("pytorch");
  m.Input("x", {"2", "2"});
  m.Floats("scale", {2}, {0, 0});
  m.Floats("onnx::MatMul_1", {2, 2}, {0, 0, 0, 0});
  m.Node("Identity", {"scale"}, {"bias"});
  m.Node("Identity", {"onnx::MatMul_1"}, {"onnx::MatMul_2"});
  m.Node("Add", {"x", "bias"}, {"b"});
  m.Node("Mul", {"b", "scale"}, {"c"});
  m.Node("MatMul", {"c", "onnx::MatMul_1"}, {"d"}, "/h.0/up_1/MatMul");
  m.Node("MatMul", {"d", "onnx::MatMul_2"}, {"e"}, "/h.0/up_3/MatMul");
  m.Node("MatMul", {"e", "onnx::MatMul_1"}, {"y"}, "/h.1/up/MatMul");
  m.Output("y");
  const Graph graph = Import(m.proto);
  ASSERT_EQ(graph.Params().size(), 4);
  EXPECT_EQ(graph.FindState("scale")->result()->users[0]->name(), "mul");
  EXPECT_EQ(graph.FindState("bias")->result()->users[0]->name(), "add");
  EXPECT_EQ(graph.FindState("onnx::MatMul_1")->result()->users.size(), 2);
  EXPECT_EQ(graph.FindState("onnx::MatMul_1@h.1.up")->result()->users.size(), 1);
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("2 tensors of one value")));
  // What is no fill may be tied.
  for (auto& t : *m.graph.mutable_initializer()) t.set_float_data(0, 3);
  EXPECT_EQ(Import(m.proto).Params().size(), 2);
}

}  // namespace
}  // namespace shardc
