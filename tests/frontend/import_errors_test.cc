// What the importer says about files and flags that are wrong.
#include <random>

#include "tests/frontend/import_testing.h"
#include "tests/ir/thrown.h"

namespace shardc {
namespace {

using import_testing::AddModel;
using import_testing::ImportTest;
using import_testing::Model;
using import_testing::ReadAll;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class ImportErrors : public ImportTest {
 protected:
  static std::string Mlp() {
    return std::string(SHARDC_SOURCE_DIR) + "/tests/data/models/mlp/torchscript_static.onnx";
  }
  onnx::TensorProto& External(Model& m, const std::string& location, const char* offset = nullptr,
                              const char* length = nullptr) {
    auto& w = *m.graph.mutable_initializer(0);
    w.clear_float_data();
    w.set_data_location(onnx::TensorProto::EXTERNAL);
    Entry(w, "location", location);
    if (offset) Entry(w, "offset", offset);
    if (length) Entry(w, "length", length);
    return w;
  }
  static void Entry(onnx::TensorProto& w, const std::string& key, const std::string& value) {
    auto* entry = w.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
};

TEST_F(ImportErrors, MissingEmptyAndOtherFiles) {
  EXPECT_EQ(Failure(Path("absent.onnx")).id(), "E5001");
  EXPECT_THAT(Failure(Write("")).message(), HasSubstr("is empty"));
  EXPECT_EQ(Failure(Write("this is no model, it is a text")).id(), "E1001");
  EXPECT_EQ(Failure(folder_).id(), "E5001");
  EXPECT_EQ(Failure(Write(std::string("\x08\x08", 2))).id(), "E1001");  // an IR version, no graph
}

TEST_F(ImportErrors, TruncatedAnywhere) {
  std::string whole = ReadAll(Mlp());
  ASSERT_GT(whole.size(), 1000u);
  for (int part = 1; part < 40; ++part) {
    Diagnostic d = Failure(Write(whole.substr(0, whole.size() * part / 40)));
    EXPECT_EQ(d.id().substr(0, 2), "E1") << d.what();
    EXPECT_EQ(d.code(), ExitCode::kBadModel);
  }
}

// A damaged file is imported or refused with a diagnostic; it never crashes or trips a check.
TEST_F(ImportErrors, FlippedBytes) {
  std::string whole = ReadAll(Mlp());
  std::mt19937 generator(7);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 1 + round % 3; ++i) {
      bytes[generator() % bytes.size()] ^= static_cast<char>(1 << generator() % 8);
    }
    std::string path = Write(bytes);
    try {
      ImportOnnx(path, {});
    } catch (const Diagnostic& d) {
      ++refused;
      EXPECT_EQ(d.id().substr(0, 2), "E1") << d.what();
    } catch (const std::exception& e) {
      ADD_FAILURE() << "round " << round << ": " << e.what();
    }
  }
  EXPECT_GT(refused, 50);
}

TEST_F(ImportErrors, Versions) {
  Model m = AddModel();
  m.proto.mutable_opset_import(0)->set_version(8);
  EXPECT_EQ(Failure(m.proto).id(), "E1002");
  m.proto.mutable_opset_import(0)->set_version(29);
  EXPECT_EQ(Failure(m.proto).id(), "E1002");
  m.proto.mutable_opset_import(0)->set_version(28);
  m.proto.set_ir_version(15);
  EXPECT_EQ(Failure(m.proto).id(), "E1003");
  m.proto.set_ir_version(14);
  EXPECT_EQ(Import(m.proto).outputs.size(), 1u);
}

TEST_F(ImportErrors, DeeplyNestedSubgraphs) {
  Model m = AddModel();
  onnx::GraphProto* graph = &m.graph;
  for (int depth = 0; depth < 5000; ++depth) {
    auto* attr = graph->add_node()->add_attribute();
    attr->set_name("then_branch");
    graph = attr->mutable_g();
  }
  EXPECT_EQ(Failure(m.proto).id(), "E1001");
}

// What every user of a table of positions binds one day.
TEST_F(ImportErrors, SequencesLongerThanTheTableOfPositions) {
  for (const auto& [model, rows] : {std::pair("hf_gpt2", 64), std::pair("nanogpt", 32)}) {
    for (const char* file : {"torchscript_dynamic", "dynamo_dynamic", "dynamo_opset23"}) {
      const std::string path =
          StrCat(SHARDC_SOURCE_DIR, "/tests/data/models/", model, "/", file, ".onnx");
      ImportOnnx(path, {{{"batch", 2}, {"sequence", rows}}, {}});
      const Diagnostic d = Failure(path, {{{"batch", 2}, {"sequence", rows + 1}}, {}});
      EXPECT_EQ(d.id(), "E1303") << path;
      EXPECT_EQ(d.message(), StrCat("index ", rows, " is out of range for a dim of size ", rows));
      EXPECT_THAT(d.fix(), HasSubstr("a table of positions"));
    }
  }
}

TEST_F(ImportErrors, Symbols) {
  Model m = AddModel({"batch", "4"});
  Diagnostic unbound = Failure(m.proto);
  EXPECT_EQ(unbound.id(), "E1202");
  EXPECT_THAT(unbound.where(), HasSubstr("'x'"));
  EXPECT_THAT(unbound.message(), HasSubstr("dim 0"));
  EXPECT_THAT(unbound.fix(), HasSubstr("--bind batch=2"));
  EXPECT_THAT(unbound.fix(), HasSubstr("--shape x=2x4"));
  unbound = Failure(AddModel({"batch", "seq * 2"}).proto);
  EXPECT_THAT(unbound.fix(), HasSubstr("pass --bind batch=2,seq=2 or"));
  Diagnostic unknown = Failure(m.proto, {{{"bathc", 2}}, {}});
  EXPECT_EQ(unknown.id(), "E1201");
  EXPECT_THAT(unknown.what(), HasSubstr("batch"));
  EXPECT_EQ(Failure(m.proto, {{}, {{"z", {2, 4}}}}).id(), "E1201");
  EXPECT_EQ(Failure(m.proto, {{{"batch", 2}}, {{"x", {3, 4}}}}).id(), "E1203");
  EXPECT_EQ(Failure(m.proto, {{}, {{"x", {3, 5}}}}).id(), "E1204");
  EXPECT_EQ(Failure(m.proto, {{}, {{"x", {3}}}}).id(), "E1204");
  EXPECT_EQ(Failure(m.proto, {{{"batch", 0}}, {}}).id(), "E1204");
  for (const char* size : {"2305843009213693952", "9223372036854775807"}) {
    EXPECT_THAT(Failure(AddModel({size, "4"}).proto).message(), HasSubstr("too large"));
    EXPECT_EQ(Failure(AddModel({"0", size, "4"}).proto).id(), "E1204");
  }
  Diagnostic large = Failure(m.proto, {{{"batch", int64_t{1} << 50}}, {}});
  EXPECT_THAT(large.what(), HasSubstr("input 'x'"));
  EXPECT_EQ(large.id(), "E1204");
  EXPECT_EQ(Import(m.proto, {{{"batch", 3}}, {}}).outputs[0].value->type.shape, (Shape{3, 4}));
  EXPECT_EQ(Import(m.proto, {{}, {{"x", {5, 4}}}}).outputs[0].value->type.shape, (Shape{5, 4}));
}

TEST_F(ImportErrors, ASymbolOfTwoInputsIsBoundByTheShapeOfOne) {
  Model m = AddModel({"batch", "4"});
  m.Input("mask", {"batch", ""});
  Diagnostic d = Failure(m.proto, {{{"batch", 2}}, {}});
  EXPECT_EQ(d.id(), "E1202");
  EXPECT_THAT(d.fix(), HasSubstr("--shape mask="));
  Graph graph = Import(m.proto, {{}, {{"mask", {3, 7}}}});
  EXPECT_EQ(graph.FindInput("x")->type.shape, (Shape{3, 4}));
  EXPECT_EQ(Failure(m.proto, {{}, {{"mask", {3, 7}}, {"x", {2, 4}}}}).id(), "E1203");
}

TEST_F(ImportErrors, InputTypes) {
  Model m = AddModel();
  m.Input("s", {"2"}, onnx::TensorProto::STRING);
  EXPECT_EQ(Failure(m.proto).id(), "E1205");
}

TEST_F(ImportErrors, MissingInputOfANode) {
  Model m = AddModel();
  m.graph.mutable_node(0)->set_op_type("Softmax");
  m.graph.mutable_node(0)->clear_input();
  Diagnostic d = Failure(m.proto);
  EXPECT_EQ(d.id(), "E1302");
  EXPECT_THAT(d.message(), HasSubstr("has no input 0"));
}

// Also one of several, for every op that has as many.
TEST_F(ImportErrors, MissingSecondInputOfANode) {
  for (const char* op : {"Add", "Less", "Pow", "MatMul", "Where"}) {
    Model m = AddModel();
    m.graph.mutable_node(0)->set_op_type(op);
    m.graph.mutable_node(0)->mutable_input()->RemoveLast();
    Diagnostic d = Failure(m.proto);
    EXPECT_EQ(d.id(), "E1302") << op;
    EXPECT_THAT(d.message(), HasSubstr("has no input 1")) << op;
    EXPECT_THAT(d.where(), HasSubstr("/h.0/fc/Add")) << op;
  }
}

TEST_F(ImportErrors, UnsupportedOps) {
  Model m = AddModel();
  m.graph.mutable_node(0)->set_op_type("Addd");
  Diagnostic d = Failure(m.proto);
  EXPECT_EQ(d.id(), "E1301");
  EXPECT_THAT(d.where(), HasSubstr("/h.0/fc/Add"));
  EXPECT_THAT(d.message(), HasSubstr("opset 17"));
  EXPECT_THAT(d.fix(), HasSubstr("Add"));
  m.graph.mutable_node(0)->set_op_type("Add");
  m.graph.mutable_node(0)->set_domain("com.example");
  EXPECT_THAT(Failure(m.proto).message(), HasSubstr("com.example"));
  m.graph.mutable_node(0)->set_domain("ai.onnx");
  EXPECT_EQ(Import(m.proto).num_ops(), 2u);
}

TEST_F(ImportErrors, UnsupportedOpsThatNothingNeedsAreLeftOut) {
  Model m = AddModel();
  m.Node("NoSuchOp", {"x"}, {"unused"});
  EXPECT_EQ(Import(m.proto).num_ops(), 2u);
}

TEST_F(ImportErrors, OperandsThatDoNotFitNameTheNode) {
  Model m = AddModel({"2", "5"});
  Diagnostic d = Failure(m.proto);
  EXPECT_EQ(d.id(), "E1101");
  EXPECT_THAT(d.where(), HasSubstr("/h.0/fc/Add"));
}

TEST_F(ImportErrors, Names) {
  Model order = AddModel();
  order.Node("Add", {"later", "w"}, {"z"});
  order.Node("Add", {"z", "w"}, {"later"});
  order.Output("z");
  EXPECT_EQ(Failure(order.proto).id(), "E1308");
  Model twice = AddModel();
  twice.Node("Add", {"x", "w"}, {"y"});
  EXPECT_EQ(Failure(twice.proto).id(), "E1308");
  Model nowhere = AddModel();
  nowhere.Output("nowhere");
  EXPECT_EQ(Failure(nowhere.proto).id(), "E1308");
  for (const int what : {0, 1, 2}) {
    Model latin = AddModel();
    if (what == 0) latin.graph.mutable_initializer(0)->set_name("w\xe9");
    if (what == 1) latin.graph.mutable_input(0)->set_name("x\xe9");
    if (what == 2) latin.Node("Exp", {"y"}, {"z\xe9"}), latin.Output("z\xe9");
    EXPECT_THAT(Failure(latin.proto).what(), HasSubstr("\xe9' is not UTF-8")) << what;
  }
}

TEST_F(ImportErrors, IntegerOverflow) {
  Model m = AddModel();
  m.Ints("a", {1}, {INT64_MAX});
  m.Ints("b", {1}, {2});
  m.Node("Mul", {"a", "b"}, {"c"});
  m.Node("Reshape", {"x", "c"}, {"z"});
  m.Output("z");
  EXPECT_EQ(Failure(m.proto).id(), "E1306");
}

TEST_F(ImportErrors, TensorsThatDoNotFitTheirDims) {
  for (auto dims : std::vector<std::vector<int64_t>>{
           {5}, {-1}, {int64_t{1} << 62, 4}, {int64_t{1} << 39, int64_t{1} << 39}}) {
    Model m = AddModel();
    auto& w = *m.graph.mutable_initializer(0);
    w.clear_dims();
    for (int64_t d : dims) w.add_dims(d);
    EXPECT_EQ(Failure(m.proto).id(), "E1402") << dims[0];
  }
  Model m = AddModel();
  m.graph.mutable_initializer(0)->set_data_type(17);
  EXPECT_EQ(Failure(m.proto).id(), "E1402");
}

// dynamo writes a batch norm in training as one in evaluation, or computes it into a convolution.
TEST_F(ImportErrors, ABatchNormWhoseTrainingIsLostIsRefused) {
  for (const bool training : {true, false}) {
    Model m;
    m.Input("x", {"2", "3"});
    for (const char* name : {"s", "b", "m", "v"}) m.Floats(name, {3}, {1, 2, 3});
    import_testing::AddMetadata(
        m.Node("BatchNormalization", {"x", "s", "b", "m", "v"}, {"y"}), 9, "pkg.torch.onnx.fx_node",
        std::string("%n : [...] = call_function[target=torch.ops.aten._native_batch_norm_legit_") +
            (training ? "functional.default](args = (%x, %p_s, %p_b, %b_m, %b_v, True, 0.1, 1e-05)"
                      : "no_training.default](args = (%x, %p_s, %p_b, %b_m, %b_v, 0.1, 1e-05)") +
            ", kwargs = {})");
    m.Output("y");
    EXPECT_EQ(testing::IdThrownBy([&] { Import(m.proto); }), training ? "E1301" : "none");
  }
}

TEST_F(ImportErrors, ExternalDataStaysInTheFolder) {
  Write(std::string(16, '\1'), "w.data");
  std::filesystem::create_directory(Path("sub"));
  Write(std::string(16, '\1'), "sub/w.data");
  std::string outside = folder_ + "-outside";
  std::ofstream(outside) << std::string(16, '\1');
  std::filesystem::create_symlink("w.data", Path("link.data"));
  std::filesystem::create_symlink("sub", Path("linked"));
  Write(std::string(16, '\1'), "hard1.data");
  std::filesystem::create_hard_link(Path("hard1.data"), Path("hard2.data"));
  auto attempt = [&](const std::string& location, const char* offset, const char* length) {
    Model m = AddModel();
    External(m, location, offset, length);
    return testing::IdThrownBy([&] { Import(m.proto); });
  };
  EXPECT_EQ(attempt("w.data", nullptr, nullptr), "none");
  EXPECT_EQ(attempt("./sub/w.data", "0", "16"), "none");
  for (const std::string& bad :
       {"../" + std::filesystem::path(outside).filename().string(), outside,
        std::string("sub/../w.data"), std::string("link.data"), std::string("linked/w.data"),
        std::string("hard2.data"), std::string("absent.data"), std::string("sub"), std::string(""),
        std::string("."), std::string("w.data\0x", 8)}) {
    EXPECT_EQ(attempt(bad, nullptr, nullptr), "E1401") << bad;
  }
  EXPECT_EQ(attempt("w.data", "8", nullptr), "E1401");
  EXPECT_EQ(attempt("w.data", "17", nullptr), "E1401");
  EXPECT_EQ(attempt("w.data", "0", "17"), "E1401");
  EXPECT_EQ(attempt("w.data", "0", "15"), "E1401");
  EXPECT_EQ(attempt("w.data", "-1", "16"), "E1401");
  EXPECT_EQ(attempt("w.data", "18446744073709551615", "16"), "E1401");
  EXPECT_EQ(attempt("w.data", "1x", "16"), "E1401");
  std::filesystem::remove(outside);
}

}  // namespace
}  // namespace shardc
