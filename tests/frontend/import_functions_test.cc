// Functions of a model are written out.
#include "ir/op_def.h"
#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::AddBytes;
using import_testing::AddMetadata;
using import_testing::AddModel;
using import_testing::Model;
using import_testing::OpNames;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void SetInt(onnx::NodeProto& node, const std::string& name, int64_t value) {
  auto* attr = node.add_attribute();
  attr->set_name(name);
  attr->set_type(onnx::AttributeProto::INT);
  attr->set_i(value);
}

void Refer(onnx::NodeProto& node, const std::string& name, const std::string& to) {
  auto* attr = node.add_attribute();
  attr->set_name(name);
  attr->set_type(onnx::AttributeProto::INT);
  attr->set_ref_attr_name(to);
}

class ImportFunctions : public import_testing::ImportTest {};

TEST_F(ImportFunctions, FunctionsAreWrittenOut) {
  Model m;
  m.Opset("local", 1);
  m.Input("x", {"2"}, onnx::TensorProto::INT64);
  auto* f = m.proto.add_functions();
  f->set_domain("local");
  f->set_name("CastTwice");
  f->add_input("a");
  f->add_output("b");
  f->add_attribute("type");
  for (auto [in, out] : {std::pair("a", "t"), std::pair("t", "b")}) {
    auto* node = f->add_node();
    node->set_op_type("Cast");
    node->add_input(in);
    node->add_output(out);
    Refer(*node, "to", "type");
  }
  for (auto [in, out] : {std::pair("x", "t"), std::pair("t", "y")}) {
    auto& call = m.Node("CastTwice", {in}, {out});
    call.set_domain("local");
    SetInt(call, "type", onnx::TensorProto::FLOAT);
  }
  m.Output("y");
  Graph graph = Import(m.proto);
  EXPECT_EQ(graph.outputs[0].value->type.dtype, DType::kF32);
  EXPECT_THAT(OpNames(graph), ElementsAre("cast"));

  auto* again = f->add_node();
  again->set_domain("local");
  again->set_op_type("CastTwice");
  again->add_input("b");
  again->add_output("c");
  EXPECT_EQ(Failure(m.proto).id(), "E1305");
}

TEST_F(ImportFunctions, ModulesAsPythonWritesThem) {
  const std::pair<const char*, const char*> paths[] = {
      {"L['self'].h[0].mlp", "h.0.mlp"}, {"L['self']", "node_tanh"}, {"h.0.mlp", "h.0.mlp"}};
  for (const auto& [written, module] : paths) {
    Model m;
    m.Input("x", {"2"});
    AddMetadata(m.Node("Tanh", {"x"}, {"y"}, "node_tanh"), 9, "pkg.torch.onnx.name_scopes",
                StrCat("['', \"", written, "\", 'tanh']"));
    m.Output("y");
    EXPECT_EQ(Import(m.proto).ops().back()->site, module);
  }
}

// dynamo_export and export_modules_as_functions make a function of every module, and the first one
// of every operator: the ops belong to the module whose tensors the function is given.
TEST_F(ImportFunctions, OpsOfAFunctionBelongToItsModule) {
  Model m;
  m.Opset("local", 1);
  m.Input("x", {"2", "2"});
  m.Floats("h.0.fc.weight", {2, 2}, {1, 2, 3, 4});
  m.Floats("h.0.fc.bias", {2}, {1, 2});
  m.Floats("h.0.ln.weight", {2}, {3, 4});
  auto function = [&](const std::string& name, const Strings& inputs) {
    auto* f = m.proto.add_functions();
    f->set_domain("local");
    f->set_name(name);
    for (const std::string& input : inputs) f->add_input(input);
    f->add_output("out");
    return f;
  };
  auto node = [](onnx::FunctionProto* f, const std::string& op, const Strings& inputs,
                 const std::string& output) {
    auto* n = f->add_node();
    n->set_op_type(op);
    n->set_name(op + "_1");
    if (op.find('_') != op.npos) n->set_domain("local");
    for (const std::string& input : inputs) n->add_input(input);
    n->add_output(output);
  };
  auto* relu = function("aten_relu", {"a"});
  node(relu, "Relu", {"a"}, "out");
  auto* linear = function("torch_Linear", {"a", "w", "b"});
  node(linear, "MatMul", {"a", "w"}, "product");
  node(linear, "Add", {"product", "b"}, "out");
  auto* block = function("model_Block", {"a", "w", "b", "scale"});
  node(block, "torch_Linear", {"a", "w", "b"}, "fc");
  node(block, "aten_relu", {"fc"}, "relu");
  node(block, "Mul", {"relu", "scale"}, "out");
  auto& call = m.Node("model_Block", {"x", "h.0.fc.weight", "h.0.fc.bias", "h.0.ln.weight"}, {"y"});
  call.set_domain("local");
  m.Output("y");
  Graph graph = Import(m.proto);
  std::map<std::string_view, std::string> sites;
  for (const auto& op : graph.ops()) sites[op->name()] = op->site;
  EXPECT_EQ(sites["matmul"], "h.0.fc");
  EXPECT_EQ(sites["add"], "h.0.fc");
  EXPECT_EQ(sites["relu"], "h.0");
  EXPECT_EQ(sites["mul"], "h.0");
}

// Since IR version 10: their overloads are told apart by a third name.
TEST_F(ImportFunctions, OverloadsAreFunctionsOfTheirOwn) {
  constexpr int kNodeOverload = 8, kFunctionOverload = 13;
  for (const char* called : {"one", "other", ""}) {
    Model m;
    m.Opset("local", 1);
    m.Input("x", {"2"});
    for (const auto& [overload, op] : {std::pair("one", "Tanh"), std::pair("other", "Exp")}) {
      auto* f = m.proto.add_functions();
      f->set_domain("local");
      f->set_name("f");
      f->add_input("a");
      f->add_output("b");
      auto* node = f->add_node();
      node->set_op_type(op);
      node->add_input("a");
      node->add_output("b");
      AddBytes(*f, kFunctionOverload, overload);
    }
    auto& call = m.Node("f", {"x"}, {"y"});
    call.set_domain("local");
    if (*called) AddBytes(call, kNodeOverload, called);
    m.Output("y");
    if (*called) {
      const char* op = called == std::string("one") ? "tanh" : "exp";
      EXPECT_THAT(OpNames(Import(m.proto)), ElementsAre(op));
      m.proto.mutable_functions(1)->CopyFrom(m.proto.functions(0));
      EXPECT_EQ(Failure(m.proto).id(), "E1305");  // which of the two is meant?
    } else {
      EXPECT_EQ(Failure(m.proto).id(), "E1301");
    }
  }
}

// ONNX Runtime takes them for ops of the model's opset, onnx for ones of the function's.
TEST_F(ImportFunctions, AFunctionOfAnOpsetWithOtherOpsIsRefused) {
  for (bool inner : {false, true}) {
    Model m;
    m.Opset("local", 1);
    m.Input("x", {"2", "3", "4"});
    auto* f = m.proto.add_functions();
    f->set_domain("local");
    f->set_name("f");
    f->add_input("a");
    f->add_output("b");
    auto* opset = f->add_opset_import();
    opset->set_version(12);
    auto add = [](auto* nodes, const std::string& op, const std::string& in) {
      auto* node = nodes->Add();
      node->set_op_type(op);
      if (!in.empty()) node->add_input(in);
      node->add_output("b");
      return node;
    };
    if (inner) {
      auto* branch = add(f->mutable_node(), "If", "a")->add_attribute();
      branch->set_name("then_branch");
      branch->set_type(onnx::AttributeProto::GRAPH);
      add(branch->mutable_g()->mutable_node(), "Softmax", "a");
    } else {
      add(f->mutable_node(), "Tanh", "a");
    }
    m.Node("f", {"x"}, {"y"}).set_domain("local");
    m.Output("y");
    if (!inner) {
      EXPECT_THAT(OpNames(Import(m.proto)), ElementsAre("tanh"));
      f->mutable_node(0)->set_op_type("Softmax");
    }
    EXPECT_EQ(Failure(m.proto).id(), "E1305");
    if (inner) continue;
    opset->set_version(13);
    EXPECT_THAT(OpNames(Import(m.proto)), ElementsAre("softmax"));
  }
}

// f40 calls f39 twice, which calls f38 twice, ...
Model CallsThatDouble(bool leave_nodes) {
  Model m;
  m.Opset("local", 1);
  m.Input("x", {"2"});
  for (int level = 0; level <= 40; ++level) {
    auto* f = m.proto.add_functions();
    f->set_domain("local");
    f->set_name("f" + std::to_string(level));
    f->add_input("a");
    f->add_output(leave_nodes ? "b" : "a");
    if (level == 0 && !leave_nodes) continue;
    for (auto [in, out] : {std::pair("a", "t"), std::pair(leave_nodes ? "t" : "a", "b")}) {
      auto* node = f->add_node();
      node->set_op_type(level == 0 ? "Tanh" : "f" + std::to_string(level - 1));
      if (level > 0) node->set_domain("local");
      node->add_input(in);
      node->add_output(out);
    }
  }
  m.Node("f40", {"x"}, {"y"}).set_domain("local");
  m.Output("y");
  return m;
}

TEST_F(ImportFunctions, FunctionsThatGrowWithoutBoundAreRefused) {
  for (bool leave_nodes : {true, false}) {
    Diagnostic d = Failure(CallsThatDouble(leave_nodes).proto);
    EXPECT_EQ(d.id(), "E1305");
    EXPECT_THAT(d.message(), HasSubstr("too many"));
  }
}

}  // namespace
}  // namespace shardc
