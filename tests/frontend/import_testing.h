// Small ONNX files made for a test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "frontend/import.h"
#include "ir/diagnostic.h"
#include "tests/ir/thrown.h"

namespace shardc::import_testing {

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  return all.str();
}

// A folder of its own for each test, removed at its end.
class ImportTest : public ::testing::Test {
 protected:
  ImportTest() {
    std::string name = (std::filesystem::temp_directory_path() / "shardc-import-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~ImportTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name = "model.onnx") const { return folder_ + "/" + name; }
  std::string Write(const std::string& bytes, const std::string& name = "model.onnx") const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  std::string Write(const onnx::ModelProto& model) const {
    return Write(model.SerializeAsString());
  }
  Graph Import(const onnx::ModelProto& model, const ImportOptions& options = {}) const {
    return ImportOnnx(Write(model), options);
  }
  // The diagnostic of an import that has to fail.
  Diagnostic Failure(const std::string& path, const ImportOptions& options = {}) const {
    return testing::Thrown([&] { ImportOnnx(path, options); });
  }
  Diagnostic Failure(const onnx::ModelProto& model, const ImportOptions& options = {}) const {
    return Failure(Write(model), options);
  }

  std::string folder_;
};

inline void SetType(onnx::ValueInfoProto& value, const std::string& name, int type,
                    const std::vector<std::string>& dims) {
  value.set_name(name);
  auto* tensor = value.mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  for (const std::string& dim : dims) {
    auto* d = tensor->mutable_shape()->add_dim();
    if (dim.empty()) continue;
    if (std::isdigit(static_cast<unsigned char>(dim[0]))) {
      d->set_dim_value(std::stoll(dim));
    } else {
      d->set_dim_param(dim);
    }
  }
}

inline std::vector<std::string> OpNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& op : graph.ops()) names.emplace_back(op->name());
  return names;
}

inline std::vector<std::string> ParamNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const Op* p : graph.Params()) names.push_back(p->attrs.String("name"));
  return names;
}

// y = x + w, x float [batch, 4], w [4].
struct Model {
  onnx::ModelProto proto;
  onnx::GraphProto& graph = *proto.mutable_graph();

  Model() {
    proto.set_ir_version(8);
    Opset("", 17);
  }
  onnx::OperatorSetIdProto& Opset(const std::string& domain, int version) {
    auto* opset = proto.add_opset_import();
    opset->set_domain(domain);
    opset->set_version(version);
    return *opset;
  }
  void Input(const std::string& name, const std::vector<std::string>& dims,
             int type = onnx::TensorProto::FLOAT) {
    SetType(*graph.add_input(), name, type, dims);
  }
  void Output(const std::string& name, const std::vector<std::string>& dims = {},
              int type = onnx::TensorProto::FLOAT) {
    SetType(*graph.add_output(), name, type, dims);
  }
  onnx::NodeProto& Node(const std::string& op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs, const std::string& name = "n") {
    auto* node = graph.add_node();
    node->set_op_type(op);
    node->set_name(name);
    for (const auto& i : inputs) node->add_input(i);
    for (const auto& o : outputs) node->add_output(o);
    return *node;
  }
  onnx::TensorProto& Floats(const std::string& name, const std::vector<int64_t>& dims,
                            const std::vector<float>& values) {
    return Fill(*graph.add_initializer(), name, dims, values);
  }
  onnx::TensorProto& Ints(const std::string& name, const std::vector<int64_t>& dims,
                          const std::vector<int64_t>& values) {
    return Fill(*graph.add_initializer(), name, dims, values);
  }
  // The same as what a Constant node holds.
  void ConstantFloats(const std::string& name, const std::vector<int64_t>& dims,
                      const std::vector<float>& values) {
    Fill(Constant(name), "", dims, values);
  }
  void ConstantInts(const std::string& name, const std::vector<int64_t>& dims,
                    const std::vector<int64_t>& values) {
    Fill(Constant(name), "", dims, values);
  }

 private:
  onnx::TensorProto& Constant(const std::string& name) {
    auto& value = *Node("Constant", {}, {name}).add_attribute();
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    return *value.mutable_t();
  }
  template <typename T>
  static onnx::TensorProto& Fill(onnx::TensorProto& t, const std::string& name,
                                 const std::vector<int64_t>& dims, const std::vector<T>& values) {
    constexpr bool kFloats = std::is_same_v<T, float>;
    if (!name.empty()) t.set_name(name);
    t.set_data_type(kFloats ? onnx::TensorProto::FLOAT : onnx::TensorProto::INT64);
    for (int64_t d : dims) t.add_dims(d);
    if constexpr (kFloats) {
      t.mutable_float_data()->Add(values.begin(), values.end());
    } else {
      t.mutable_int64_data()->Add(values.begin(), values.end());
    }
    return t;
  }
};

inline Model AddModel(const std::vector<std::string>& dims = {"2", "4"}) {
  Model m;
  m.Input("x", dims);
  m.Floats("w", {4}, {1, 2, 3, 4});
  m.Node("Add", {"x", "w"}, {"y"}, "/h.0/fc/Add");
  m.Output("y", dims);
  return m;
}

// As newer files store it in a field that the headers may lack.
inline void AddBytes(google::protobuf::Message& message, int field, const std::string& content) {
  // Newer headers know the field, and read it from the bytes.
  std::string bytes = message.SerializeAsString();
  onnx::StringStringEntryProto carrier;
  carrier.GetReflection()->MutableUnknownFields(&carrier)->AddLengthDelimited(field, content);
  ASSERT_TRUE(message.ParseFromString(bytes + carrier.SerializeAsString()));
}

// A pair of strings.
inline void AddMetadata(google::protobuf::Message& message, int field, const std::string& key,
                        const std::string& value) {
  onnx::StringStringEntryProto entry;
  entry.set_key(key);
  entry.set_value(value);
  AddBytes(message, field, entry.SerializeAsString());
}

// Says as dynamo does what it computed the tensor from: "['exp', 'w']".
inline void AddFoldedFrom(Model& m, const std::string& tensor, const std::string& from) {
  auto* info = m.graph.add_value_info();
  info->set_name(tensor);
  AddMetadata(*info, 4, "pkg.onnxscript.optimizer.folded_from", from);
}

// As dynamo lists the module's.
inline void ListParameters(Model& m, const std::vector<std::string>& names) {
  std::string signature;
  for (const std::string& name : names) {
    signature += "p_" + name + ": PARAMETER target='" + name + "'\n";
  }
  AddMetadata(m.graph, 16, "pkg.torch.export.ExportedProgram.graph_signature", signature);
}

}  // namespace shardc::import_testing
