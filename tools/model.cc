#include "tools/model.h"

#include <set>

#include "frontend/gpt_config.h"
#include "frontend/import.h"
#include "frontend/recover.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/parse_number.h"
#include "ir/shard_copy.h"
#include "ir/text.h"
#include "ir/verifier.h"
#include "tools/files.h"
#include "tools/safetensors_set.h"

namespace shardc {
namespace {

// Tensors of an ONNX file may be empty (the cache of no tokens).
int64_t ParseSize(std::string_view text, const std::string& flag, int64_t smallest) {
  const std::optional<int64_t> n = ParseNumber<int64_t>(text);
  if (n && *n >= smallest) return *n;
  throw Diagnostic("E6104", ExitCode::kUsage, flag,
                   StrCat("'", text, "' is not a ", smallest > 0 ? "positive " : "", "size"));
}

std::pair<std::string, std::string> SplitPair(const std::string& text, const std::string& flag,
                                              const char* form) {
  size_t eq = text.find('=');
  if (eq == std::string::npos || eq == 0) {
    throw Diagnostic("E6104", ExitCode::kUsage, flag + " " + text, StrCat("is not ", form));
  }
  return {text.substr(0, eq), text.substr(eq + 1)};
}

// Which of two values counts would be a guess.
template <typename T>
void Give(std::map<std::string, T>& all, const std::string& name, T value,
          const std::string& flag) {
  auto [it, is_new] = all.try_emplace(name, value);
  if (is_new || it->second == value) return;
  throw Diagnostic("E6104", ExitCode::kUsage, flag,
                   StrCat("'", name, "' has another value already"), "give it one");
}

std::map<std::string, int64_t> ParseBindings(const ModelOptions& options, int64_t smallest) {
  std::map<std::string, int64_t> bind;
  for (const std::string& b : options.bind) {
    auto [name, size] = SplitPair(b, "--bind", "symbol=size");
    Give(bind, name, ParseSize(size, "--bind " + b, smallest), "--bind " + b);
  }
  return bind;
}

std::map<std::string, Shape> ParseShapes(const ModelOptions& options, int64_t smallest) {
  std::map<std::string, Shape> shapes;
  for (const std::string& s : options.shapes) {
    auto [name, dims] = SplitPair(s, "--shape", "input=2x32");
    Shape shape;
    for (size_t at = 0; at <= dims.size();) {
      size_t x = std::min(dims.find('x', at), dims.size());
      shape.push_back(
          ParseSize(std::string_view(dims).substr(at, x - at), "--shape " + s, smallest));
      at = x + 1;
    }
    Give(shapes, name, std::move(shape), "--shape " + s);
  }
  return shapes;
}

// Passes know such graphs; of a model, ranks are given values and no terms of them.
void RefusePartial(const Value& v, const Graph& graph, const std::string& what) {
  if (!v.type.sharding.partial()) return;
  throw Diagnostic("E7003", ExitCode::kBadModel, what,
                   TypeToString(v.type, graph.mesh) + " is partial, and there is no op to make it",
                   "give it whole or cut");
}

// A tensor of a mapped file.
class SetSource : public TensorSource {
 public:
  SetSource(std::shared_ptr<const SafetensorsSet> set, std::string name)
      : set_(std::move(set)), name_(std::move(name)) {}
  void Read(const Shape& offset, const Shape& size, void* out) const override {
    const SafetensorsEntry& entry = set_->entries().at(name_);
    CopyBox(set_->Data(name_).data(), entry.shape, offset, static_cast<std::byte*>(out), size,
            Shape(size.size()), size, DTypeSize(entry.dtype));
  }

 private:
  std::shared_ptr<const SafetensorsSet> set_;
  std::string name_;
};

ModuleParams ReadModule(const std::string& path) {
  const auto set = std::make_shared<const SafetensorsSet>(path);
  ModuleParams module{"--module " + path, {}};
  for (const auto& [name, entry] : set->entries()) {
    if (!IsFloat(entry.dtype)) continue;
    module.tensors[name] = {entry.dtype, entry.shape, std::make_shared<SetSource>(set, name)};
  }
  return module;
}

// What the plan would not train, and a file of the module has all the same.
void NoteModules(Graph& graph, const std::string& where, Strings names, const FixedTensors& fixed) {
  std::set<std::string> held;
  for (const Op* param : graph.Params()) {
    const Strings aliases = param->attrs.StringList("aliases", {});
    held.insert(param->attrs.String("name"));
    held.insert(aliases.begin(), aliases.end());
  }
  std::erase_if(
      names, [&](const std::string& name) { return held.contains(name) || fixed.contains(name); });
  if (names.empty()) return;
  graph.notes.push_back(StrCat(
      where, " has ", Counted(std::ssize(names), "tensor"), " of which the model has nothing, '",
      names[0], names.size() > 1 ? "' the first: " : "': ",
      "unused, folded, or what it did was merged with what an equal one did (an export of "
      "trained weights, or of dynamo with optimize=False, keeps it)"));
}

}  // namespace

Graph LoadModel(const std::string& model, const ModelOptions& options, FixedTensors& fixed) {
  const int64_t smallest = IsBuiltin(model) ? 1 : 0;
  auto bind = ParseBindings(options, smallest);
  auto shapes = ParseShapes(options, smallest);
  if (IsBuiltin(model)) {
    for (const auto& [name, shape] : shapes) {
      if (name != "input_ids" || shape.size() != 2) {
        throw Diagnostic("E6104", ExitCode::kUsage, "--shape " + name,
                         "a builtin model has the one input input_ids [batch, seq]");
      }
      Give(bind, "batch", shape[0], "--shape " + name);
      Give(bind, "seq", shape[1], "--shape " + name);
    }
    GptConfig config = ParseBuiltin(model, bind);
    if (!options.dropout.keep) config.dropout = config.attention_dropout = 0;
    Graph graph = BuildGpt(config);
    SetDropout(graph, options.dropout);
    return graph;
  }
  if (model.ends_with(".shardc")) {
    Graph graph = ParseGraph(ReadFile(model), model);
    VerifyGraph(graph);
    for (const auto& input : graph.inputs()) RefusePartial(*input, graph, "input " + input->name);
    for (const auto& op : graph.ops()) {
      if (!op->def->is_state) continue;
      RefusePartial(*op->result(), graph, "parameter " + op->attrs.String("name"));
    }
    SetDropout(graph, options.dropout);
    return graph;
  }
  ModuleParams module;
  if (!options.module.empty()) module = ReadModule(options.module);
  Strings names;
  for (const auto& [name, tensor] : module.tensors) names.push_back(name);
  const std::string where = module.where;
  Graph graph = ImportOnnx(model, {std::move(bind), std::move(shapes), std::move(module), &fixed});
  // Before patterns are recovered: what drops nothing stands in the way of none.
  SetDropout(graph, options.dropout);
  RecoverPatterns(graph);
  NoteModules(graph, where, std::move(names), fixed);
  return graph;
}

}  // namespace shardc
