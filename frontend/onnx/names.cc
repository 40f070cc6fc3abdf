#include "frontend/onnx/names.h"

#include <algorithm>
#include <string_view>

#include "ir/contains.h"
#include "ir/parse_number.h"

namespace shardc::onnx_import {
namespace {

// The strings of a list as Python prints it: ['a', "b"].
std::vector<std::string> PythonStrings(std::string_view text) {
  std::vector<std::string> strings;
  for (size_t at = 0; (at = text.find_first_of("'\"", at)) != text.npos;) {
    size_t end = text.find(text[at], at + 1);
    if (end == text.npos) break;
    strings.emplace_back(text.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return strings;
}

// What follows `key` in quotes; empty where nothing does.
std::string Quoted(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == text.npos) return "";
  const std::string_view value = text.substr(at + key.size());
  const size_t end = value.empty() ? value.npos : value.find(value[0], 1);
  const bool quoted = end != value.npos && (value[0] == '\'' || value[0] == '"');
  return quoted ? std::string(value.substr(1, end - 1)) : "";
}

// A line is "p_h_0_weight: PARAMETER target='h.0.weight'". PyTorch up to 2.7 writes all in one, as
// Python shows it: "InputSpec(kind=<InputKind.PARAMETER: 2>,
// arg=TensorArgument(name='p_h_0_weight'), target='h.0.weight', persistent=None), InputSpec(...".
void ReadSignature(std::string_view text, ModuleNames& names) {
  constexpr std::string_view kSpec = "InputSpec(";
  const bool shown = text.starts_with("ExportGraphSignature(");
  const std::string_view kind = shown ? "kind=<InputKind." : ": ", end_of_kind = shown ? ": " : " ";
  while (!text.empty()) {
    const size_t end = std::min(shown ? text.find(kSpec, 1) : text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(shown ? end : std::min(end + 1, text.size()));
    const size_t at = line.find(kind);
    const std::string name = Quoted(line, " target=");
    if (name.empty() || at == line.npos) continue;
    std::string_view is = line.substr(at + kind.size());
    is = is.substr(0, is.find(end_of_kind));
    if (is == "PARAMETER") {
      if (names.is_parameter.insert(name).second) names.parameters.push_back(name);
    } else if (is == "BUFFER" || is == "CONSTANT_TENSOR") {
      names.is_buffer.insert(name);
    } else {
      continue;
    }
    const std::string input = shown ? Quoted(line, "Argument(name=")
                                    : std::string(line.substr(line.find_first_not_of(' '), at));
    names.by_input[input] = name;
  }
}

std::string ParameterAt(const FxCall& call, size_t argument, const ModuleNames& names) {
  if (argument >= call.arguments.size()) return "";
  const auto parameter = names.by_input.find(call.arguments[argument]);
  const bool known = parameter != names.by_input.end();
  return known && names.is_parameter.contains(parameter->second) ? parameter->second : "";
}

// What the call was given in this place, or by its name; empty: nothing.
std::string_view TextGiven(const FxCall& call, int place, std::string_view name) {
  constexpr std::string_view kSeparator = ", ";
  std::string_view text = call.positional;
  for (int i = 0; i < place; ++i) {
    const size_t end = std::min(text.find(kSeparator), text.size());
    text.remove_prefix(std::min(end + kSeparator.size(), text.size()));
  }
  if (text.empty()) {
    const std::string key = std::string(name) + ": ";
    text = call.keywords;
    const size_t at = text.find(key);
    if (at == text.npos) return "";
    text.remove_prefix(at + key.size());
  }
  return text.substr(0, text.find_first_of(",)}"));
}

std::optional<double> NumberGiven(const FxCall& call, int place, std::string_view name) {
  return ParseNumber<double>(TextGiven(call, place, name));
}

constexpr std::string_view kLinear = "torch.ops.aten.linear.default";

// PyTorch up to 2.8 folds a linear layer's transpose, too, but does not say so: the node that was
// left multiplies by a tensor of the file, and was given the parameter.
void AddFoldedWeights(const onnx::GraphProto& graph, ModuleNames& names) {
  if (names.parameters.empty()) return;
  std::set<std::string> tensors;
  for (const auto& t : graph.initializer()) tensors.insert(t.name());
  for (const auto& node : graph.node()) {
    if (node.op_type() != "MatMul" || node.input_size() < 2) continue;
    const std::string& tensor = node.input(1);
    const bool told = names.folded_from.contains(tensor) || names.is_parameter.contains(tensor);
    if (told || !tensors.contains(tensor)) continue;
    const std::string weight = LinearWeight(node, names);
    if (!weight.empty() && !tensors.contains(weight)) names.folded_from[tensor] = {weight};
  }
}

}  // namespace

// "%linear : [...] = call_function[target=...](args = (%x, %p_h_0_weight, %p_h_0_bias), ...)"
FxCall FxCallOf(const onnx::NodeProto& node) {
  FxCall call;
  const auto metadata = Metadata(node, kNodeMetadata);
  const auto fx_node = metadata.find("pkg.torch.onnx.fx_node");
  if (fx_node == metadata.end()) return call;
  constexpr std::string_view kTarget = "[target=", kArguments = "](args = (",
                             kKeywords = "), kwargs";
  std::string_view text = fx_node->second;
  const size_t target = text.find(kTarget), arguments = text.find(kArguments);
  if (target == text.npos || arguments == text.npos || arguments < target) return call;
  const size_t name = target + kTarget.size();
  if (text.starts_with('%')) call.result = text.substr(1, text.find(' ') - 1);
  call.target = text.substr(name, arguments - name);
  text.remove_prefix(arguments + kArguments.size());
  const size_t end_of_positional = text.find(kKeywords);
  if (end_of_positional != text.npos) {
    call.keywords = text.substr(end_of_positional + kKeywords.size());
  }
  text = text.substr(0, end_of_positional);
  call.positional = text;
  for (size_t at = 0; (at = text.find('%', at)) != text.npos;) {
    const size_t end = std::min(text.find_first_of(",)] ", at), text.size());
    call.arguments.emplace_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return call;
}

std::vector<std::string> RepeatedMessages(const google::protobuf::Message& message, int field) {
  std::vector<std::string> serialized;
  const auto* reflection = message.GetReflection();
  const auto* known = message.GetDescriptor()->FindFieldByNumber(field);
  if (known != nullptr) {
    if (!known->is_repeated() || known->message_type() == nullptr) return serialized;
    for (int i = 0; i < reflection->FieldSize(message, known); ++i) {
      serialized.push_back(reflection->GetRepeatedMessage(message, known, i).SerializeAsString());
    }
    return serialized;
  }
  const auto& unknown = reflection->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& f = unknown.field(i);
    if (f.number() == field && f.type() == f.TYPE_LENGTH_DELIMITED) {
      serialized.push_back(f.length_delimited());
    }
  }
  return serialized;
}

std::string TextOf(const google::protobuf::Message& message, int field) {
  const auto* known = message.GetDescriptor()->FindFieldByNumber(field);
  if (known != nullptr) {
    const bool text = !known->is_repeated() && known->cpp_type() == known->CPPTYPE_STRING;
    return text ? message.GetReflection()->GetString(message, known) : "";
  }
  const std::vector<std::string> all = RepeatedMessages(message, field);
  return all.empty() ? "" : all.back();
}

std::map<std::string, std::string> Metadata(const google::protobuf::Message& message, int field) {
  std::map<std::string, std::string> metadata;
  for (const std::string& bytes : RepeatedMessages(message, field)) {
    onnx::StringStringEntryProto entry;
    if (entry.ParseFromString(bytes)) metadata[entry.key()] = entry.value();
  }
  return metadata;
}

ModuleNames ReadModuleNames(const onnx::GraphProto& graph) {
  ModuleNames names;
  auto metadata = Metadata(graph, kGraphMetadata);
  auto signature = metadata.find("pkg.torch.export.ExportedProgram.graph_signature");
  if (signature != metadata.end()) ReadSignature(signature->second, names);
  for (const auto& info : graph.value_info()) {
    for (const auto& [key, value] : Metadata(info, kValueInfoMetadata)) {
      if (key == "pkg.onnxscript.optimizer.folded_from") {
        auto& from = names.folded_from[info.name()] = PythonStrings(value);
        from.push_back(info.name());
        // Values have the names of their ops, "expand_5".
        auto is_expand = [](const std::string& name) { return name.starts_with("expand"); };
        if (std::ranges::any_of(from, is_expand)) names.expanded.insert(info.name());
        from.pop_back();
      } else if (key == "pkg.torch.export.graph_signature.InputSpec.kind") {
        if (value == "PARAMETER") names.is_parameter.insert(info.name());
        if (value == "BUFFER" || value == "CONSTANT_TENSOR") names.is_buffer.insert(info.name());
      }
    }
  }
  AddFoldedWeights(graph, names);
  return names;
}

std::vector<std::string> GivenToCall(const onnx::NodeProto& node, const ModuleNames& names) {
  std::vector<std::string> given;
  for (const std::string& argument : FxCallOf(node).arguments) {
    const auto name = names.by_input.find(argument);
    const bool known = name != names.by_input.end();
    if (known && !Contains(given, name->second)) given.push_back(name->second);
  }
  return given;
}

std::optional<size_t> ValuesOfCall(const onnx::NodeProto& node) {
  const auto metadata = Metadata(node, kNodeMetadata);
  const auto fx_node = metadata.find("pkg.torch.onnx.fx_node");
  if (fx_node == metadata.end()) return std::nullopt;
  const std::string& text = fx_node->second;
  const size_t call = text.find("](args = (");
  if (call == text.npos) return std::nullopt;
  size_t count = 0;
  for (size_t at = text.find('%', call); at != text.npos; at = text.find('%', at + 1)) {
    count += text.compare(at, 5, "%sym_") != 0;
  }
  return count;
}

std::string IndexedParameter(const onnx::NodeProto& node, const ModuleNames& names) {
  const FxCall call = FxCallOf(node);
  const bool first_dims = call.positional.find("None") == call.positional.npos;
  if (call.target != "torch.ops.aten.index.Tensor" || !first_dims) return "";
  return ParameterAt(call, 0, names);
}

std::string AttentionWithDropout(const onnx::NodeProto& node) {
  const FxCall call = FxCallOf(node);
  const bool attends = call.target.starts_with("torch.ops.aten.scaled_dot_product_attention.");
  return attends && NumberGiven(call, 4, "dropout_p").value_or(0) > 0 ? call.result : "";
}

std::string LossWithSmoothing(const onnx::NodeProto& node) {
  const FxCall call = FxCallOf(node);
  const bool is_loss = call.target.starts_with("torch.ops.aten.cross_entropy_loss.");
  return is_loss && NumberGiven(call, 5, "label_smoothing").value_or(0) > 0 ? call.result : "";
}

bool LosesTraining(const onnx::NodeProto& node) {
  static const std::set<std::string_view> kByConstants = {"BatchNormalization", "Conv",
                                                          "ConvTranspose", "Gemm", "MatMul"};
  if (!kByConstants.contains(node.op_type())) return false;
  const bool says = std::ranges::any_of(node.attribute(), [](const auto& attr) {
    return attr.name() == "training_mode" && attr.i() != 0;
  });
  const FxCall call = FxCallOf(node);
  const bool is_norm = call.target.starts_with("torch.ops.aten._native_batch_norm_legit") ||
                       call.target.starts_with("torch.ops.aten.batch_norm.");
  return !says && is_norm && TextGiven(call, 5, "training") == "True";
}

std::optional<int64_t> PaddingIdx(const onnx::NodeProto& node) {
  const FxCall call = FxCallOf(node);
  if (call.target != "torch.ops.aten.embedding.default") return std::nullopt;
  const std::optional<double> row = NumberGiven(call, 2, "padding_idx");
  return row >= 0.0 ? std::optional(static_cast<int64_t>(*row)) : std::nullopt;
}

std::string BiasOf(const onnx::NodeProto& node, const ModuleNames& names) {
  const FxCall call = FxCallOf(node);
  if (call.target == "torch.ops.aten.addmm.default") return ParameterAt(call, 0, names);
  const bool third = call.target == kLinear || call.target.starts_with("torch.ops.aten.conv");
  return third ? ParameterAt(call, 2, names) : "";
}

std::string LinearWeight(const onnx::NodeProto& node, const ModuleNames& names) {
  const FxCall call = FxCallOf(node);
  return call.target == kLinear ? ParameterAt(call, 1, names) : "";
}

namespace {

// PyTorch 2.5 writes a module as Python's expression for it: "L['self'].h[0].mlp".
std::string PathOf(std::string_view module) {
  std::string path;
  if (module.starts_with("L['")) module.remove_prefix(std::min(module.find(']'), module.size()));
  for (const char c : module) {
    if (c == '[') path += '.';
    if (c != '[' && c != ']' && c != '\'') path += c;
  }
  return path.starts_with('.') ? path.substr(1) : path;
}

}  // namespace

std::string_view FunctionOf(std::string_view tensor) {
  const size_t end = tensor.find_last_not_of("0123456789");
  const bool numbered =
      end != tensor.npos && end > 0 && end + 1 < tensor.size() && tensor[end] == '_';
  return numbered ? tensor.substr(0, end) : tensor;
}

bool IsMadeUp(const std::string& name) {
  return name.empty() || name.starts_with('/') || name.find("::") != name.npos;
}

std::string LastPart(const std::string& name) { return name.substr(name.rfind('.') + 1); }

std::string ModuleOf(const onnx::NodeProto& node) {
  auto metadata = Metadata(node, kNodeMetadata);
  auto scopes = metadata.find("pkg.torch.onnx.name_scopes");
  if (scopes != metadata.end()) {
    // Outermost first, each the whole path; the last is the operation.
    std::vector<std::string> path = PythonStrings(scopes->second);
    if (path.size() >= 2 && !path[path.size() - 2].starts_with("_empty_nn_module_stack")) {
      return PathOf(path[path.size() - 2]);
    }
    return "";
  }
  const std::string& name = node.name();
  if (!name.starts_with('/')) return "";
  size_t last = name.rfind('/');
  if (last == 0) return "";
  std::string module = name.substr(1, last - 1);
  for (char& c : module) c = c == '/' ? '.' : c;
  return module;
}

std::string SiteOf(const onnx::NodeProto& node) {
  std::string module = ModuleOf(node);
  return module.empty() ? node.name() : module;
}

}  // namespace shardc::onnx_import
