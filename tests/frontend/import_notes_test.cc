// What an import tells of a model that its user should know.
#include <cmath>
#include <limits>

#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::AddModel;
using import_testing::Model;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ImportNotes : public import_testing::ImportTest {};

// As torch.export does where input_ids and labels were one tensor.
TEST_F(ImportNotes, OfAnInputThatAnotherOneStandsFor) {
  Model m;
  m.Input("input_ids", {"2", "3"}, onnx::TensorProto::INT64);
  m.Input("labels", {"2", "3"}, onnx::TensorProto::INT64);
  m.Input("mask", {"2", "4"}, onnx::TensorProto::INT64);
  m.Node("Neg", {"labels"}, {"y"});
  m.Output("y");
  EXPECT_THAT(Import(m.proto).notes,
              ElementsAre(HasSubstr("nothing reads input 'input_ids': if it and 'labels'")));
}

// dynamo writes the node of a cross entropy that smooths nothing.
TEST_F(ImportNotes, SmoothingThatTheFileLacksIsTold) {
  struct Case {
    std::string rest;
    bool written, lost;
  };
  for (const Case& c : {Case{", None, 1, -100, 0.1), kwargs = {})", false, true},
                        Case{"), kwargs = {label_smoothing: 0.1})", false, true},
                        Case{", None, 1, -100, 0.1), kwargs = {})", true, false},
                        Case{", None, 1, -100, 0.0), kwargs = {})", false, false},
                        Case{"), kwargs = {})", false, false}}) {
    Model m;
    m.Input("x", {"2", "3"});
    m.Input("labels", {"2"}, onnx::TensorProto::INT64);
    m.Node("SoftmaxCrossEntropyLoss", {"x", "labels"}, {"loss"});
    if (c.written) m.Node("Neg", {"loss"}, {"y"});
    for (onnx::NodeProto& node : *m.graph.mutable_node()) {
      import_testing::AddMetadata(
          node, 9, "pkg.torch.onnx.fx_node",
          "%l : [...] = call_function[target=torch.ops.aten.cross_entropy_loss.default]"
          "(args = (%x, %labels" +
              c.rest);
    }
    m.Output(c.written ? "y" : "loss", {});
    const std::vector<std::string> notes = Import(m.proto).notes;
    EXPECT_EQ(notes.size(), c.lost ? 1 : 0) << c.rest;
    if (c.lost) {
      EXPECT_THAT(notes[0], HasSubstr("label_smoothing of 1 cross_entropy"));
    }
  }
}

// PyTorch's exporters leave out the dropout of scaled_dot_product_attention, or its mode.
TEST_F(ImportNotes, OfDropoutThatTheExporterLost) {
  Model m = AddModel();
  m.proto.set_producer_name("pytorch");
  auto attends = [&](int n, const std::string& arguments) {
    const std::string call = "scaled_dot_product_attention_" + std::to_string(n);
    for (const char* op : {"Exp", "Neg"}) {  // of one call
      const std::string of = StrCat(op, n);
      import_testing::AddMetadata(
          m.Node(op, {"y"}, {of}), 9, "pkg.torch.onnx.fx_node",
          "%" + call + " : [num_users=1] = call_function[target=torch.ops.aten." +
              "scaled_dot_product_attention.default](args = (%q, %k, %v" + arguments);
      m.Output(of);
    }
  };
  attends(0, "), kwargs = {})");
  attends(1, ", None, 0.0, True), kwargs = {})");
  attends(2, ", %mask), kwargs = {scale: 0.5})");
  EXPECT_THAT(Import(m.proto).notes, IsEmpty());
  attends(3, ", %mask, 0.1), kwargs = {scale: 0.5})");
  attends(4, "), kwargs = {dropout_p: 0.1, is_causal: True})");
  EXPECT_THAT(Import(m.proto).notes, ElementsAre(HasSubstr("nothing of 2 dropouts of the module")));
  Model of_torchscript = AddModel();
  of_torchscript.Node("Dropout", {"y"}, {"z"});
  of_torchscript.Output("z");
  of_torchscript.proto.set_producer_name("pytorch");
  EXPECT_THAT(Import(of_torchscript.proto).notes,
              ElementsAre(HasSubstr("nothing of 1 dropout of the module")));
}

// What memory held that nothing was written to: a product with zero is NaN, too.
TEST_F(ImportNotes, OfConstantsThatHoldNan) {
  Model m = AddModel();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  m.Floats("buffer", {2, 1}, {1e-30F, kNan});
  m.Floats("fill", {}, {kNan});  // as jax has it where an index is none
  m.Floats("zero", {}, {0});
  m.Node("Mul", {"buffer", "zero"}, {"nothing"});
  m.Node("Add", {"y", "nothing"}, {"z"});
  m.Node("Add", {"z", "fill"}, {"filled"});
  m.Output("filled");
  import_testing::AddMetadata(m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature",
                              "b_buffer: BUFFER target='buffer' persistent=True\n"
                              "p_w: PARAMETER target='w'\n");
  EXPECT_THAT(Import(m.proto).notes, Contains(HasSubstr("'buffer' holds NaN")));
}

// As Marian's and Whisper's, with a row for padding, or ViT-MAE's with one for the class.
TEST_F(ImportNotes, OfTablesOfSines) {
  for (const bool sines : {true, false}) {
    std::vector<float> table(40 * 6);
    for (int i = 6; i < 40 * 6; ++i) {
      const double angle = (i / 6) * std::pow(0.01, i % 3);
      table[i] = static_cast<float>(i % 6 < 3 ? std::sin(angle) : std::cos(angle));
    }
    // A learned one may have begun so.
    if (!sines) table[6 * 39] = 0.5;
    Model m;
    m.Input("x", {"1", "40", "6"});
    m.Floats("table", {1, 40, 6}, table);
    m.Floats("w", {6, 6}, std::vector<float>(36, 0.3F));
    m.Node("MatMul", {"x", "w"}, {"y"});
    m.Node("Add", {"y", "table"}, {"z"});
    m.Output("z");
    m.Input("ids", {"2"}, onnx::TensorProto::INT64);
    m.Floats("rows", {40, 6}, table);
    m.Node("Gather", {"rows", "ids"}, {"looked_up"});
    m.Output("looked_up");
    const auto notes = Import(m.proto).notes;
    if (sines) {
      EXPECT_THAT(notes, Contains(HasSubstr("hold sines and cosines of positions")));
    } else {
      EXPECT_THAT(notes, Not(Contains(HasSubstr("sines"))));
    }
  }
}

}  // namespace
}  // namespace shardc
