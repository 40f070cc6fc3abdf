// What a model detached, as dynamo's metadata tell of it.
#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::AddMetadata;
using import_testing::Model;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ImportDetached : public import_testing::ImportTest {
 protected:
  ImportDetached() {
    m.Input("x", {"2", "2"});
    m.Floats("w", {2, 2}, {1, 2, 3, 4});
    m.Floats("val_0", {2, 2}, {1, 3, 2, 4});
    m.Floats("b", {2}, {5, 6});
    Call("MatMul", {"x", "val_0"}, "a", "%a", "mm.default](args = (%x, %t)");
    Call("Sigmoid", {"a"}, "s", "%s", "sigmoid.default](args = (%a,)");
  }

  void Call(const std::string& op, const std::vector<std::string>& inputs,
            const std::string& output, const std::string& result, const std::string& call) {
    AddMetadata(m.Node(op, inputs, {output}), 9, "pkg.torch.onnx.fx_node",
                result + " : [num_users=1] = call_function[target=torch.ops.aten." + call +
                    ", kwargs = {})");
  }

  // What is kept from having a gradient, by what makes it.
  std::vector<std::string> Detached(const std::string& output) {
    m.Output(output);
    graph = Import(m.proto);
    std::vector<std::string> found;
    for (const auto& op : graph.ops()) {
      if (!op->attrs.Bool("detached", false)) continue;
      found.emplace_back(op->operands[0]->producer->name());
      for (const Op* user : op->result()->users) found.emplace_back(user->name());
    }
    return found;
  }

  Model m;
  Graph graph;
  int calls = 0;
};

// As an export with optimize=False has it.
TEST_F(ImportDetached, ANodeOfItsOwn) {
  Call("Identity", {"s"}, "detach", "%detach", "detach.default](args = (%s,)");
  Call("Mul", {"a", "detach"}, "y", "%mul", "mul.Tensor](args = (%a, %detach)");
  Call("Identity", {"x"}, "detach_1", "%detach_1", "detach.default](args = (%x,)");
  Call("Mul", {"y", "detach_1"}, "z", "%mul_1", "mul.Tensor](args = (%mul, %detach_1)");
  EXPECT_THAT(Detached("z"), ElementsAre("sigmoid", "mul"));
  EXPECT_THAT(graph.notes, IsEmpty());
}

// Where the exporter's optimizer left it out, calls name what they were given.
TEST_F(ImportDetached, WhatACallWasGiven) {
  Call("Mul", {"a", "s"}, "mul", "%mul", "mul.Tensor](args = (%a, %detach)");
  EXPECT_THAT(Detached("mul"), ElementsAre("sigmoid", "mul"));
  EXPECT_THAT(graph.notes, IsEmpty());
}

// Beside what was not.
TEST_F(ImportDetached, OneOfTwoUsesOfATensor) {
  Call("Mul", {"s", "s"}, "mul", "%mul", "mul.Tensor](args = (%s, %detach)");
  EXPECT_THAT(Detached("mul"), ElementsAre("sigmoid", "mul"));
  const Op* mul = graph.outputs[0].value->producer;
  EXPECT_EQ(mul->operands[0]->producer->name(), "sigmoid");
  EXPECT_EQ(mul->operands[1]->producer->name(), "sub");
  EXPECT_THAT(graph.notes, IsEmpty());
}

// Of a call that is several nodes, one of which multiplies by what the exporter made.
TEST_F(ImportDetached, APartOfACall) {
  AddMetadata(m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature",
              "p_w: PARAMETER target='w'\np_b: PARAMETER target='b'\n");
  const std::string call = "linear.default](args = (%detach_1, %p_w, %p_b)";
  Call("MatMul", {"s", "val_0"}, "val_1", "%linear", call);
  Call("Add", {"val_1", "b"}, "linear", "%linear", call);
  EXPECT_THAT(Detached("linear"), ElementsAre("sigmoid", "matmul"));
  EXPECT_THAT(graph.notes, IsEmpty());
}

// What views nothing anew is the tensor itself, which the exporter's optimizer found.
TEST_F(ImportDetached, BesideATensorUnderAnotherName) {
  Call("Mul", {"s", "s"}, "mul", "%mul", "mul.Tensor](args = (%view, %detach)");
  EXPECT_THAT(Detached("mul"), ElementsAre("sigmoid", "mul"));
  EXPECT_EQ(graph.outputs[0].value->producer->operands[0]->producer->name(), "sigmoid");
  EXPECT_THAT(graph.notes, IsEmpty());
}

// Of a call that is several nodes which of two inputs was detached is not known.
TEST_F(ImportDetached, NodesHaveTheirOwnOrder) {
  const std::string call = "lerp.Scalar](args = (%s, %detach, 0.5)";
  Call("Sub", {"s", "s"}, "diff", "%lerp", call);
  Call("Add", {"s", "diff"}, "lerp", "%lerp", call);
  EXPECT_THAT(Detached("lerp"), IsEmpty());
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("the model detaches 1 value")));
}

// sigmoid(a.detach()) and sigmoid(a) are one node, and so is what is computed of both.
TEST_F(ImportDetached, CallsThatWereMerged) {
  Call("Sigmoid", {"a"}, "sigmoid", "%sigmoid", "sigmoid.default](args = (%detach,)");
  Call("Relu", {"sigmoid"}, "relu", "%relu", "relu.default](args = (%sigmoid,)");
  Call("Mul", {"relu", "relu"}, "mul", "%mul", "mul.Tensor](args = (%relu, %relu_1)");
  EXPECT_THAT(Detached("mul"), IsEmpty());
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("the model detaches 1 value")));
}

// One use of a detached value is known, the other is not.
TEST_F(ImportDetached, EachUseIsNoted) {
  Call("Mul", {"a", "s"}, "mul", "%mul", "mul.Tensor](args = (%a, %detach)");
  Call("Concat", {"s", "mul", "a"}, "cat", "%cat", "cat.default](args = (%detach, %other)");
  m.proto.mutable_graph()->mutable_node()->rbegin()->add_attribute()->set_name("axis");
  auto* axis = m.proto.mutable_graph()->mutable_node()->rbegin()->mutable_attribute(0);
  axis->set_type(onnx::AttributeProto::INT);
  axis->set_i(0);
  EXPECT_THAT(Detached("cat"), ElementsAre("sigmoid", "mul"));
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("the model detaches 1 value")));
}

TEST_F(ImportDetached, WhatIsNotToBeFoundIsNoted) {
  Call("Add", {"a", "s"}, "y", "%y", "addcmul.default](args = (%detach, %detach_12, %other)");
  EXPECT_THAT(Detached("y"), IsEmpty());
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("the model detaches 2 values")));
}

// Of constants of a module's code, and not what depends on parameters.
TEST_F(ImportDetached, OtherNamesSayNothing) {
  Call("Mul", {"a", "s"}, "y", "%y", "mul.Tensor](args = (%a, %detach_)");
  Call("Add", {"y", "s"}, "z", "%z", "add.Tensor](args = (%y, %detached)");
  EXPECT_THAT(Detached("z"), IsEmpty());
  EXPECT_THAT(graph.notes, IsEmpty());
}

// ONNX's Gather has no word for the row of padding that torch.nn.Embedding does not train.
TEST_F(ImportDetached, TheRowOfPadding) {
  m.Input("ids", {"2"}, onnx::TensorProto::INT64);
  auto row_of = [this](const std::string& call) {
    const std::string y = StrCat("y", ++calls);
    Call("Gather", {"w", "ids"}, y, "%embedding", call);
    m.Output(y);
    const Graph g = Import(m.proto);
    return g.FindOutput(y)->producer->attrs.Int("padding_idx", -1);
  };
  EXPECT_EQ(row_of("embedding.default](args = (%p_w, %ids, 1)"), 1);
  EXPECT_EQ(row_of("embedding.default](args = (%p_w, %ids, 0, False, False)"), 0);
  EXPECT_EQ(row_of("embedding.default](args = (%p_w, %ids)"), -1);
  EXPECT_EQ(row_of("embedding.default](args = (%p_w, %ids, -1)"), -1);
  EXPECT_EQ(row_of("embedding.default](args = (%p_w, %ids, 2)"), -1);
  EXPECT_EQ(row_of("index_select.default](args = (%p_w, 0, %ids)"), -1);
}

}  // namespace
}  // namespace shardc
