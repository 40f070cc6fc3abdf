// Tensors without elements, inputs with a value of their own, and dims that are expressions: what a
// model with a cache needs to run without one; and weights in unusual places.
#include <cmath>

#include "frontend/onnx/dim_expression.h"
#include "tests/frontend/import_testing.h"
#include "tests/ir/interpreter.h"

namespace shardc {
namespace {

using import_testing::AddModel;
using import_testing::ImportTest;
using import_testing::Model;
using ::testing::HasSubstr;

class ImportEmpty : public ImportTest {
 protected:
  static int CountOps(const Graph& graph, std::string_view name) {
    int count = 0;
    for (const auto& op : graph.ops()) count += op->name() == name;
    return count;
  }
};

TEST_F(ImportEmpty, ACacheOfNoTokensIsLeftOut) {
  Model m;
  m.Input("x", {"2", "3", "4"});
  m.Input("past", {"2", "past", "4"});
  m.Input("mask", {"2", "past + 3"}, onnx::TensorProto::INT64);
  auto* axis = m.Node("Concat", {"past", "x"}, {"present"}).add_attribute();
  axis->set_name("axis");
  axis->set_type(onnx::AttributeProto::INT);
  axis->set_i(1);
  m.Node("Relu", {"past"}, {"positive"});
  m.Node("ReduceSum", {"positive"}, {"nothing"});
  m.Node("Add", {"present", "nothing"}, {"y"});
  m.Output("y");
  m.Output("mask");
  Graph graph = Import(m.proto, {{{"past", 0}}, {}});
  EXPECT_EQ(graph.FindInput("past"), nullptr);
  EXPECT_EQ(graph.FindInput("mask")->type.shape, (Shape{2, 3}));
  EXPECT_EQ(CountOps(graph, "concat"), 0);
  EXPECT_EQ(CountOps(graph, "reduce_sum"), 0);
  EXPECT_EQ(graph.outputs[0].value->type.shape, (Shape{2, 3, 4}));
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_THAT(graph.notes[0], HasSubstr("'past'"));
  EXPECT_EQ(CountOps(Import(m.proto, {{{"past", 5}}, {}}), "concat"), 1);
}

TEST_F(ImportEmpty, PiecesThatHoldNothing) {
  Model m;
  m.Input("x", {"4", "3"});
  m.Ints("sizes", {4}, {0, 1, 0, 3});
  m.Node("Split", {"x", "sizes"}, {"a", "b", "c", "d"});
  m.Node("Concat", {"d", "a", "b", "c"}, {"y"}).add_attribute()->set_name("axis");
  auto* axis = m.graph.mutable_node(1)->mutable_attribute(0);
  axis->set_type(onnx::AttributeProto::INT);
  m.Output("y");
  Graph graph = Import(m.proto);
  EXPECT_EQ(graph.outputs[0].value->type.shape, (Shape{4, 3}));
  testing::Values given;
  HostTensor x = HostTensor::Of<float>({4, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  given[graph.FindInput("x")] = x;
  EXPECT_EQ(testing::Interpret(graph, given).at(graph.FindOutput("y")),
            HostTensor::Of<float>({4, 3}, {3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2}));
}

// Such one does not make the others fit: ONNX Runtime leaves part of the result unwritten.
TEST_F(ImportEmpty, APieceThatHoldsNothingFitsToo) {
  for (const char* axis_size : {"0", "3"}) {
    Model m = AddModel();
    m.Input("nothing", {"0", axis_size});
    auto* axis = m.Node("Concat", {"nothing", "y"}, {"z"}).add_attribute();
    axis->set_name("axis");
    axis->set_type(onnx::AttributeProto::INT);
    axis->set_i(1);
    m.Output("z");
    if (axis_size[0] == '0') {
      EXPECT_EQ(Import(m.proto).FindOutput("z")->type.shape, (Shape{2, 4}));
    } else {
      EXPECT_EQ(Failure(m.proto).id(), "E1101");
    }
  }
}

TEST_F(ImportEmpty, AnOutputThatHoldsNothingIsRefused) {
  Diagnostic d = Failure(AddModel({"batch", "4"}).proto, {{{"batch", 0}}, {}});
  EXPECT_EQ(d.id(), "E1204");
  EXPECT_THAT(d.message(), HasSubstr("every output is empty"));
  EXPECT_EQ(Failure(AddModel({"batch", "4"}).proto, {{{"batch", -1}}, {}}).id(), "E1204");
  EXPECT_EQ(Failure(AddModel({"n - 3", "4"}).proto, {{{"n", 2}}, {}}).id(), "E1204");
}

// Its statistics would be of nothing.
TEST_F(ImportEmpty, ANormOverNothingIsRefused) {
  Model m;
  m.Input("x", {"2", "width"});
  m.Floats("w", {0}, {});
  m.Node("LayerNormalization", {"x", "w"}, {"y"});
  m.Output("y");
  Diagnostic d = Failure(m.proto, {{{"width", 0}}, {}});
  EXPECT_EQ(d.id(), "E1101");
  EXPECT_THAT(d.message(), HasSubstr("which has no elements"));
}

// Two models in one file, as optimum merges a decoder with and without a cache.
TEST_F(ImportEmpty, AnInputThatChoosesABranch) {
  Model m;
  m.Input("x", {"2"});
  m.Input("use_cache", {"1"}, onnx::TensorProto::BOOL);
  auto& node = m.Node("If", {"use_cache"}, {"y"});
  for (const char* branch : {"then_branch", "else_branch"}) {
    auto* attr = node.add_attribute();
    attr->set_name(branch);
    attr->set_type(onnx::AttributeProto::GRAPH);
    auto* inner = attr->mutable_g()->add_node();
    inner->set_op_type(branch[0] == 't' ? "Exp" : "Neg");
    inner->add_input("x");
    inner->add_output(branch);
    attr->mutable_g()->add_output()->set_name(branch);
  }
  m.Output("y");
  Diagnostic d = Failure(m.proto);
  EXPECT_EQ(d.id(), "E1307");
  EXPECT_THAT(d.fix(), HasSubstr("--bind use_cache=0"));
  Graph without = Import(m.proto, {{{"use_cache", 0}}, {}});
  EXPECT_EQ(CountOps(without, "neg"), 1);
  EXPECT_EQ(CountOps(without, "exp"), 0);
  EXPECT_EQ(without.FindInput("use_cache"), nullptr);
  EXPECT_EQ(CountOps(Import(m.proto, {{{"use_cache", 1}}, {}}), "exp"), 1);
}

// ONNX Runtime writes a table into each branch that reads it, and calls in each what it computes of
// it as it likes.
TEST_F(ImportEmpty, ABranchThatIsNotTakenSaysNothingOfItsNames) {
  Model m = AddModel();
  m.Input("use_cache", {"1"}, onnx::TensorProto::BOOL);
  auto& node = m.Node("If", {"use_cache"}, {"z"});
  for (const char* branch : {"then_branch", "else_branch"}) {
    auto* attr = node.add_attribute();
    attr->set_name(branch);
    attr->set_type(onnx::AttributeProto::GRAPH);
    onnx::GraphProto& graph = *attr->mutable_g();
    onnx::TensorProto& table = *graph.add_initializer();
    table.set_name("table");
    table.set_data_type(onnx::TensorProto::FLOAT);
    for (int i : {2, 4}) table.add_dims(i);
    for (int i = 0; i < 8; ++i) table.add_float_data(std::sin(static_cast<float>(i)));
    for (const char* op : {"Identity", branch[0] == 't' ? "Mul" : "Add"}) {
      onnx::NodeProto& inner = *graph.add_node();
      inner.set_op_type(op);
      const bool first = op[0] == 'I';
      if (!first) inner.add_input("y");
      inner.add_input(first ? "table" : "part");
      inner.add_output(first ? "part" : branch);
    }
    graph.add_output()->set_name(branch);
  }
  m.Output("z");
  EXPECT_EQ(Import(m.proto, {{{"use_cache", 0}}, {}}).Params().size(), 2u);
  EXPECT_EQ(Import(m.proto, {{{"use_cache", 1}}, {}}).Params().size(), 1u);
}

// Some tools write no tensors but these.
TEST_F(ImportEmpty, WeightsThatAreConstantNodes) {
  for (bool alone : {true, false}) {
    Model m;
    m.Input("x", {"2", "2"});
    m.ConstantFloats("w", {2, 2}, {1, 2, 3, 4});
    if (!alone) m.Floats("w2", {2, 2}, {1, 2, 3, 4});
    m.Node("MatMul", {"x", "w"}, {"h"});
    m.Node("MatMul", {"h", alone ? "w" : "w2"}, {"y"});
    m.Output("y");
    Graph graph = Import(m.proto);
    ASSERT_EQ(graph.Params().size(), 1u);
    EXPECT_EQ(graph.Params()[0]->attrs.String("name"), alone ? "w" : "w2");
    EXPECT_EQ(graph.sources.size(), 1u);
    EXPECT_THAT(graph.notes, ::testing::ElementsAre(::testing::HasSubstr(
                                 alone ? "weights are Constant nodes" : "not trained: 'w'")));
  }
}

TEST_F(ImportEmpty, DimsThatAreExpressions) {
  Model m = AddModel({"batch", "(a + b)*2 - c"});
  const Diagnostic unbound = Failure(m.proto, {{{"batch", 2}, {"a", 1}}, {}});
  EXPECT_EQ(unbound.id(), "E1202");
  EXPECT_NE(std::string(unbound.what()).find("pass --bind b=2,c=2 or"), std::string::npos)
      << unbound.what();
  Graph graph = Import(m.proto, {{{"batch", 2}, {"a", 1}, {"b", 2}, {"c", 2}}, {}});
  EXPECT_EQ(graph.outputs[0].value->type.shape, (Shape{2, 4}));
  // The whole text is a symbol too.
  EXPECT_EQ(Import(m.proto, {{{"batch", 2}, {"(a + b)*2 - c", 4}}, {}}).outputs.size(), 1u);
}

TEST(DimExpression, Forms) {
  auto size = [](const std::string& name) -> std::optional<int64_t> {
    if (name == "a") return 3;
    if (name == "big") return int64_t{1} << 62;
    return std::nullopt;
  };
  using onnx_import::EvaluateDim;
  EXPECT_EQ(EvaluateDim("a", size), 3);
  EXPECT_EQ(EvaluateDim(" 2 + a*a - 1", size), 10);
  EXPECT_EQ(EvaluateDim("(2+a)*a", size), 15);
  for (const char* text : {"", "a b", "a +", "(a", "a)", "unk_0", "a + missing", "2a", "a / 2",
                           "big + big", "big * 4", "99999999999999999999"}) {
    EXPECT_EQ(EvaluateDim(text, size), std::nullopt) << text;
  }
  EXPECT_EQ(EvaluateDim(std::string(1000, '(') + "a" + std::string(1000, ')'), size), std::nullopt);
  EXPECT_EQ(onnx_import::SymbolsIn("past + 2*sequence"),
            (std::set<std::string>{"past", "sequence"}));
  EXPECT_TRUE(onnx_import::SymbolsIn("floor(a / 2)").empty());
}

}  // namespace
}  // namespace shardc
