// The node tests of the onnx package: see README.md.
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "frontend/import.h"
#include "frontend/onnx/initializers.h"
#include "ir/diagnostic.h"
#include "tests/ir/file_testing.h"
#include "tests/ir/interpreter.h"

namespace shardc {
namespace {

const std::string kFolder = SHARDC_SOURCE_DIR "/tests/conformance";

struct Case {
  std::string name;
  onnx::ModelProto model;
  std::map<std::string, onnx::TensorProto> inputs, outputs;
};

Case Load(const std::filesystem::path& path) {
  Case test;
  test.name = path.stem().string();
  std::ifstream file(path, std::ios::binary);
  if (!test.model.ParseFromIstream(&file)) throw std::runtime_error(path.string());
  auto* tensors = test.model.mutable_graph()->mutable_initializer();
  for (const onnx::TensorProto& t : *tensors) {
    size_t colon = t.name().find(':');
    (t.name()[0] == 'i' ? test.inputs : test.outputs)[t.name().substr(colon + 1)] = t;
  }
  tensors->Clear();
  return test;
}

std::vector<Case> Cases() {
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder + "/data")) {
    paths.insert(entry.path());
  }
  std::vector<Case> cases;
  for (const auto& path : paths) cases.push_back(Load(path));
  return cases;
}

// Test name -> reason, by "run" and "fold"; "both" counts as each.
std::map<std::string, std::string> Unsupported(const std::string& how) {
  std::ifstream file(kFolder + "/unsupported.txt");
  std::map<std::string, std::string> out;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name, when, reason;
    words >> name >> when >> std::ws;
    std::getline(words, reason);
    EXPECT_FALSE(reason.empty()) << line;
    if (when == how || when == "both") out[name] = reason;
  }
  return out;
}

HostTensor Read(const onnx::TensorProto& tensor) {
  return onnx_import::TensorReader("test", "/nonexistent").Read(tensor, nullptr);
}

enum class Constants { kNone, kShapes, kAll };

// Of a type that no input of a model may have: weights.
bool IsNarrow(const onnx::TensorProto& tensor) {
  const auto held = onnx_import::HeldAs(tensor.data_type());
  return !held || (*held == DType::kI32 && tensor.data_type() != onnx::TensorProto::INT32) ||
         (*held == DType::kI64 && tensor.data_type() != onnx::TensorProto::INT64);
}

// Shapes and other parameters of a node: integers, single numbers, the scales of Resize; weights
// and what is beside them, but for the first input.
bool IsShapeLike(const onnx::TensorProto& tensor) {
  int type = tensor.data_type();
  int64_t elements = 1;
  for (int64_t d : tensor.dims()) elements *= d;
  bool integers = type == onnx::TensorProto::INT64 || type == onnx::TensorProto::INT32;
  return integers || elements == 1 || tensor.name() == "input:scales";
}

// The model with some inputs as Constant nodes.
onnx::ModelProto WithConstants(const Case& test, Constants which) {
  onnx::ModelProto model = test.model;
  if (which == Constants::kNone) return model;
  onnx::GraphProto* graph = model.mutable_graph();
  graph->clear_input();
  graph->clear_node();
  const bool has_weights =
      std::ranges::any_of(test.inputs, [](const auto& input) { return IsNarrow(input.second); });
  for (const onnx::ValueInfoProto& input : test.model.graph().input()) {
    const onnx::TensorProto& tensor = test.inputs.at(input.name());
    const bool beside = has_weights && &input != &test.model.graph().input(0);
    if (which == Constants::kShapes && !IsShapeLike(tensor) && !IsNarrow(tensor) && !beside) {
      *graph->add_input() = input;
      continue;
    }
    onnx::NodeProto* node = graph->add_node();
    node->set_op_type("Constant");
    node->add_output(input.name());
    onnx::AttributeProto* value = node->add_attribute();
    value->set_name("value");
    value->set_type(onnx::AttributeProto::TENSOR);
    *value->mutable_t() = tensor;
  }
  graph->mutable_node()->MergeFrom(test.model.graph().node());
  return model;
}

Graph Import(const Case& test, Constants which) {
  static const testing::TemporaryFolder folder;
  const std::string path = folder.File("node.onnx");
  testing::WriteBytes(path, WithConstants(test, which).SerializeAsString());
  return ImportOnnx(path, {});
}

// What differs, or nothing.
std::string Compare(const HostTensor& got, const HostTensor& expected) {
  if (got.dtype() != expected.dtype()) return "the element types differ";
  if (got.shape() != expected.shape()) {
    return StrCat("the shape is ", ShapeToString(got.shape()), ", expected ",
                  ShapeToString(expected.shape()));
  }
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    double a = got.AsDouble(i), b = expected.AsDouble(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (IsInteger(got.dtype())) return StrCat("element ", i, " is not ", b, " but ", a);
    if (!(std::fabs(a - b) <= 1e-5 + 1e-3 * std::fabs(b))) {
      return StrCat("element ", i, " is ", a, ", expected ", b);
    }
  }
  return "";
}

std::string Evaluate(const Case& test, const Graph& graph) {
  testing::Values given;
  for (const auto& input : graph.inputs()) given[input.get()] = Read(test.inputs.at(input->name));
  for (const auto& op : graph.ops()) {  // what counts the steps of dropouts, and weights
    const bool is_param = op->name() == "param";
    if (!is_param && op->name() != "state") continue;
    HostTensor& t = given[op->result()] = HostTensor(op->out().dtype, op->out().shape);
    if (is_param) {
      graph.sources.at(op->attrs.String("name"))->Read(Shape(t.shape().size()), t.shape(), t.raw());
    }
  }
  testing::Values values = testing::Interpret(graph, std::move(given));
  for (const auto& [name, tensor] : test.outputs) {
    Value* value = graph.FindOutput(name);
    if (value == nullptr) return StrCat("there is no output ", name);
    std::string difference = Compare(values.at(value), Read(tensor));
    if (!difference.empty()) return StrCat("output ", name, ": ", difference);
  }
  return "";
}

// Why the test fails, or nothing.
std::string Run(const Case& test, Constants which) {
  try {
    return Evaluate(test, Import(test, which));
  } catch (const Diagnostic& d) {
    // Inputs that are legitimately asked to be constants, or are empty lists of axes, or weights.
    bool shapes = d.id() == "E1304" || d.id() == "E1204" || d.id() == "E1205";
    if (shapes && which == Constants::kNone) return Run(test, Constants::kShapes);
    return d.what();
  } catch (const std::exception& e) {
    return StrCat("bug: ", e.what());
  }
}

void RunAll(const std::string& how, Constants which) {
  std::map<std::string, std::string> unsupported = Unsupported(how);
  int passed = 0;
  for (const Case& test : Cases()) {
    std::string failure = Run(test, which);
    bool listed = unsupported.erase(test.name) > 0;
    if (listed) {
      EXPECT_FALSE(failure.empty()) << test.name << " passes but is in unsupported.txt";
      EXPECT_EQ(failure.find("bug:"), std::string::npos) << test.name << ": " << failure;
    } else if (!failure.empty()) {
      ADD_FAILURE() << test.name << ": " << failure;
    }
    passed += failure.empty();
  }
  EXPECT_GT(passed, 500);
  for (const auto& [name, reason] : unsupported) {
    ADD_FAILURE() << "unsupported.txt lists " << name << ", which is not in data/";
  }
}

TEST(OnnxNodes, Run) { RunAll("run", Constants::kNone); }

TEST(OnnxNodes, Fold) { RunAll("fold", Constants::kAll); }

}  // namespace
}  // namespace shardc
