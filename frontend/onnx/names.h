// What exporters write about the model's modules beside the graph.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::onnx_import {

// Fields of ONNX's newer schemas, which older headers do not have.
inline constexpr int kNodeMetadata = 9, kValueInfoMetadata = 4, kGraphMetadata = 16,
                     kFunctionDefaults = 11, kNodeOverload = 8, kFunctionOverload = 13;

// The serialized messages of a repeated field, whether or not the headers know it.
std::vector<std::string> RepeatedMessages(const google::protobuf::Message& message, int field);
// The text of a field that is not repeated, likewise; "" where there is none.
std::string TextOf(const google::protobuf::Message& message, int field);
// The string pairs of a metadata_props field.
std::map<std::string, std::string> Metadata(const google::protobuf::Message& message, int field);

// What dynamo's metadata says of the module that was exported. Empty where there is none.
struct ModuleNames {
  std::vector<std::string> parameters;  // in the module's order
  std::set<std::string> is_parameter;   // the same
  std::set<std::string> is_buffer;      // and constants of its code
  // Parameters and buffers, by the exported program's input.
  std::map<std::string, std::string> by_input;
  std::map<std::string, std::vector<std::string>> folded_from;  // by tensor of the file
  std::set<std::string> expanded;  // of these, what torch.expand had a part in
};
ModuleNames ReadModuleNames(const onnx::GraphProto& graph);

// The call of PyTorch's that a node stands for, or for a part of, as the metadata have it; all
// empty where they say nothing.
struct FxCall {
  std::string result;  // without its %
  std::string target;
  std::string positional, keywords;    // its arguments, as they are written
  std::vector<std::string> arguments;  // the positional ones that are values, without their %
};
FxCall FxCallOf(const onnx::NodeProto& node);

// The module's tensors that the call was given which the node stands for, as the metadata say, in
// the order of its arguments.
std::vector<std::string> GivenToCall(const onnx::NodeProto& node, const ModuleNames& names);

// How many values the call was given which the node stands for, but for sizes; nothing where the
// metadata do not say so.
std::optional<size_t> ValuesOfCall(const onnx::NodeProto& node);

// The module's parameter of whose first dims the node looks up elements, because it stands for
// p[indices]; empty where the metadata do not say so.
std::string IndexedParameter(const onnx::NodeProto& node, const ModuleNames& names);

// The call of scaled_dot_product_attention with dropout that the node stands for a part of, as
// torch names its result; empty where the metadata do not say so.
std::string AttentionWithDropout(const onnx::NodeProto& node);

// The call of cross_entropy with label_smoothing that the node stands for, or for a part of,
// likewise.
std::string LossWithSmoothing(const onnx::NodeProto& node);

// Whether the node normalises by constants, or is what they were computed into, and stands for a
// batch norm that the module computes in training, by the statistics of the batch.
bool LosesTraining(const onnx::NodeProto& node);

// The row of the table that the node looks up in that it does not train, because it stands for an
// embedding with padding_idx; nothing where the metadata do not say so.
std::optional<int64_t> PaddingIdx(const onnx::NodeProto& node);

// The module's parameter that the node adds as a bias, because it stands for torch.addmm, a linear
// layer or a convolution; empty where the metadata do not say so.
std::string BiasOf(const onnx::NodeProto& node, const ModuleNames& names);

// The module's parameter by whose transpose the node multiplies, because it stands for
// torch.nn.functional.linear; empty where the metadata do not say so.
std::string LinearWeight(const onnx::NodeProto& node, const ModuleNames& names);

// The function that made what PyTorch calls so: "exp" of "exp" and "exp_1".
std::string_view FunctionOf(std::string_view tensor);

// Whether TorchScript made the name up: "onnx::MatMul_7", "/h.0/Constant_output_0".
bool IsMadeUp(const std::string& name);

// "weight" of "h.0.mlp.c_fc.weight".
std::string LastPart(const std::string& name);

// The module that a node belongs to ("h.0.mlp.c_fc"), from its metadata or its name; empty if
// neither says.
std::string ModuleOf(const onnx::NodeProto& node);
// The same, or else the node's name.
std::string SiteOf(const onnx::NodeProto& node);

}  // namespace shardc::onnx_import
