#include "frontend/onnx/names.h"

#include <algorithm>
#include <string_view>

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

// A line is "p_h_0_weight: PARAMETER target='h.0.weight'".
void ReadSignature(std::string_view text, ModuleNames& names) {
  constexpr std::string_view kTarget = " target='";
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    size_t target = line.find(kTarget);
    if (target == line.npos) continue;
    size_t start = target + kTarget.size(), quote = line.find('\'', start);
    if (quote == line.npos) continue;
    std::string name(line.substr(start, quote - start));
    if (line.find(": PARAMETER ") != line.npos) {
      if (names.is_parameter.insert(name).second) names.parameters.push_back(name);
    } else if (line.find(": BUFFER ") != line.npos ||
               line.find(": CONSTANT_TENSOR ") != line.npos) {
      names.is_buffer.insert(name);
    } else {
      continue;
    }
    names.by_input[std::string(line.substr(line.find_first_not_of(' '), line.find(':')))] = name;
  }
}

struct FxCall {
  std::string target;
  std::vector<std::string> arguments;  // those that are values, in order, without their %
};

// "%linear : [...] = call_function[target=...](args = (%x, %p_h_0_weight, %p_h_0_bias), ...)"
FxCall FxCallOf(const onnx::NodeProto& node) {
  FxCall call;
  const auto metadata = Metadata(node, kNodeMetadata);
  const auto fx_node = metadata.find("pkg.torch.onnx.fx_node");
  if (fx_node == metadata.end()) return call;
  constexpr std::string_view kTarget = "[target=", kArguments = "](args = (";
  std::string_view text = fx_node->second;
  const size_t target = text.find(kTarget), arguments = text.find(kArguments);
  if (target == text.npos || arguments == text.npos || arguments < target) return call;
  const size_t name = target + kTarget.size();
  call.target = text.substr(name, arguments - name);
  text.remove_prefix(arguments + kArguments.size());
  text = text.substr(0, text.find("), kwargs"));
  for (size_t at = 0; (at = text.find('%', at)) != text.npos;) {
    const size_t end = std::min(text.find_first_of(",)] ", at), text.size());
    call.arguments.emplace_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return call;
}

std::string ParameterAt(const FxCall& call, size_t argument, const ModuleNames& names) {
  if (argument >= call.arguments.size()) return "";
  const auto parameter = names.by_input.find(call.arguments[argument]);
  const bool known = parameter != names.by_input.end();
  return known && names.is_parameter.contains(parameter->second) ? parameter->second : "";
}

constexpr std::string_view kLinear = "torch.ops.aten.linear.default";

}  // namespace

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
  return names;
}

std::set<std::string> GivenToCall(const onnx::NodeProto& node, const ModuleNames& names) {
  std::set<std::string> given;
  for (const std::string& argument : FxCallOf(node).arguments) {
    const auto name = names.by_input.find(argument);
    if (name != names.by_input.end()) given.insert(name->second);
  }
  return given;
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
