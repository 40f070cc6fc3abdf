// Constants that an exporter folded from tensors of the file.
#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::ImportTest;
using import_testing::Model;
using import_testing::ParamNames;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class FoldedConstants : public ImportTest {};

// dynamo_export of PyTorch 2.4 and 2.5 folds what functions compute of the weights alone, and keeps
// the weights, which nothing reads then.
TEST_F(FoldedConstants, ConstantsFoldedFromTensorsOfTheFileAreMadeOfThemAgain) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("fc.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  m.Floats("wpe.weight", {4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  m.Floats("norm.weight", {3}, {.1f, .2f, .3f});
  m.Floats("bias.weight", {3, 3}, {1, 2, 4, 3, 5, 7, 6, 8, 9});
  m.Floats("rotary.cos", {4, 3}, {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f, .9f, 0, .01f, .02f});
  m.ConstantFloats("fc_t", {2, 3}, {1, 3, 5, 2, 4, 6});
  m.ConstantFloats("positions", {1, 2, 3}, {7, 8, 9, 10, 11, 12});
  m.ConstantFloats("scale", {3}, {.1f + 1, .2f + 1, .3f + 1});
  m.ConstantFloats("cos", {2, 3}, {.1f, .2f, .3f, .4f, .5f, .6f});
  m.ConstantFloats("other", {2, 3}, {1, 3, 5, 2, 4, 7});
  m.ConstantFloats("head_t", {3, 2}, {1, 3, 5, 2, 4, 7});
  m.Node("MatMul", {"x", "fc_t"}, {"a"});
  m.Node("Add", {"a", "positions"}, {"b"});
  m.Node("Mul", {"b", "scale"}, {"c"});
  m.Node("Mul", {"c", "cos"}, {"d"});
  m.Node("Mul", {"d", "other"}, {"e"});
  m.Node("MatMul", {"e", "head_t"}, {"y"});
  m.Output("y");
  Graph graph = Import(m.proto);
  EXPECT_THAT(ParamNames(graph),
              UnorderedElementsAre("fc.weight", "wpe.weight", "norm.weight", "head_t"));
  EXPECT_THAT(graph.notes, ElementsAre("4 constants are made of the file's tensors again, of which "
                                       "the exporter folded them; of 1 more, which became a "
                                       "tensor, it has none",
                                       "nothing reads 'bias.weight': unused, or what the exporter "
                                       "folded of it is not trained",
                                       "kept as constants, not trained: 'rotary.cos'"));
}

// Of nn.TransformerEncoder, which copies its layer: each layer keeps its own weight.
TEST_F(FoldedConstants, ConstantsFoldedFromEqualLayersAreOfTheirOwn) {
  for (const char* module : {"", "/l/1/fc/"}) {
    Model m;
    m.Input("x", {"2", "2"});
    for (const char* name : {"l.0.fc.weight", "l.1.fc.weight"}) {
      m.Floats(name, {2, 2}, {1, 2, 3, 4});
    }
    m.ConstantFloats("t0", {2, 2}, {1, 3, 2, 4});
    m.proto.mutable_graph()->mutable_node()->rbegin()->set_name(StrCat(module, "Constant_0"));
    m.ConstantFloats("t1", {2, 2}, {1, 3, 2, 4});
    m.Node("MatMul", {"x", "t0"}, {"a"});
    m.Node("Tanh", {"a"}, {"b"});
    m.Node("MatMul", {"b", "t1"}, {"y"});
    m.Output("y");
    Graph graph = Import(m.proto);
    ASSERT_THAT(ParamNames(graph), ElementsAre("l.0.fc.weight", "l.1.fc.weight"));
    std::map<std::string, const Op*> of;
    for (const auto& op : graph.ops()) {
      if (op->operands.size() != 2) continue;
      const Op* weight = op->operands[1]->producer;
      while (weight->name() != "param") weight = weight->operands[0]->producer;
      of.emplace(weight->attrs.String("name"), op.get());
    }
    ASSERT_EQ(of.size(), 2u);
    const Op* first = of[*module ? "l.1.fc.weight" : "l.0.fc.weight"];
    EXPECT_EQ(first->operands[0]->producer, nullptr) << "the input";
  }
}

TEST_F(FoldedConstants, ConstantsWithoutNumbersAreOfNoTensor) {
  const float nan = std::nanf("");
  Model m;
  m.Input("x", {"2", "3"});
  m.Floats("fc.bias", {3}, {nan, nan, nan});
  m.ConstantFloats("c", {3}, {nan, nan, nan});
  m.Node("Add", {"x", "c"}, {"y"});
  m.Output("y");
  EXPECT_THAT(ParamNames(Import(m.proto)), ::testing::Not(::testing::Contains("fc.bias")));
}

TEST_F(FoldedConstants, AProductOfOneTensorBesideFoldedConstantsIsRefused) {
  Model m;
  m.Input("x", {"2", "2"});
  m.Floats("fc.weight", {2, 2}, {1, 2, 3, 4});
  m.ConstantFloats("t", {2, 2}, {1, 3, 2, 4});
  m.Node("MatMul", {"x", "t"}, {"a"});
  m.Node("MatMul", {"a"}, {"y"});
  m.Output("y");
  EXPECT_EQ(Failure(m.proto).id(), "E1302");
}

}  // namespace
}  // namespace shardc
