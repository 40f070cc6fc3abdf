#include "frontend/onnx/notes.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>
#include <vector>

#include "frontend/onnx/names.h"
#include "frontend/onnx/table_kind.h"
#include "frontend/recover/match.h"
#include "ir/constant.h"
#include "ir/contains.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

void NoteComputed(Graph& graph, const Parameters& params, bool of_module) {
  std::map<std::string_view, const Op*> held;
  for (const Op* param : graph.Params()) held[param->attrs.String("name")] = param;
  std::string names;
  for (const auto& [name, sources] : params.computed_from) {
    const auto param = held.find(name);
    if (param == held.end()) continue;
    names += StrCat(names.empty() ? "'" : ", '", name, "' ",
                    ShapeToString(param->second->out().shape), " from '", sources[0], "'");
    if (sources.size() > 1) names += StrCat(" and '", sources[1], "'");
    if (sources.size() > 2) names += StrCat(" and ", sources.size() - 2, " more");
  }
  if (!names.empty()) {
    graph.notes.push_back(StrCat(
        "computed from parameters by the exporter, and trained in their place: ", names,
        !of_module
            ? " (with --module, where they are parts or functions of these, or an export with "
              "optimize=False, they are the parameters)"
            : " (in an export with optimize=False they are the parameters)"));
  }
}

void NoteMerged(Graph& graph) {
  std::set<std::string> all;
  for (const Op* param : graph.Params()) {
    const Strings merged = param->attrs.StringList("merged", {});
    all.insert(merged.begin(), merged.end());
  }
  if (all.empty()) return;
  graph.notes.push_back(
      StrCat("computed into others by the exporter, which are trained in their place: ",
             Counted(std::ssize(all), "tensor"), " of the module, '", *all.begin(),
             all.size() > 1 ? "' the first" : "'", " (an export with optimize=False keeps ",
             all.size() > 1 ? "them)" : "it)"));
}

void NoteNames(Graph& graph, const std::string& what, const std::vector<std::string>& all,
               const std::set<std::string>& wanted) {
  std::string names;
  for (const std::string& name : all) {
    if (wanted.contains(name)) names += (names.empty() ? "'" : ", '") + name + "'";
  }
  if (!names.empty()) graph.notes.push_back(StrCat(what, ": ", names));
}

void NoteConstants(Graph& graph, const Parameters& params, const std::set<std::string>& wanted) {
  NoteNames(graph, "kept as constants, not trained", params.constants, wanted);
  NoteNames(graph, "trained, though they may be constants of the module (then --freeze them)",
            params.guessed, wanted);
}

// Of layers that began as copies of one another the exporter keeps one small matrix for all, as
// it does of layers that are one module.
void NoteCopies(Graph& graph) {
  auto of_any_layer = [](std::string name) {
    std::erase_if(name, [](unsigned char c) { return std::isdigit(c) != 0; });
    return name;
  };
  std::string names;
  for (const Op* param : graph.Params()) {
    const std::string& name = param->attrs.String("name");
    const Strings aliases = param->attrs.StringList("aliases", {});
    const auto copy = std::ranges::find_if(aliases, [&](const std::string& alias) {
      return of_any_layer(alias) == of_any_layer(name);
    });
    if (param->out().rank() < 2 || copy == aliases.end()) continue;
    names += StrCat(names.empty() ? "'" : ", '", name, "' and '", *copy, "'");
  }
  if (names.empty()) return;
  graph.notes.push_back(StrCat("one tensor of the file, and trained as one: ", names,
                               " (where the module does not tie them, an export of trained "
                               "weights, or with optimize=False, keeps them apart)"));
}

// As of two norms of one value: new ones are equal, and what they do is done once.
void NoteMissing(Graph& graph, std::vector<std::string> missing) {
  // RestoreParams may have found some.
  for (const Op* param : graph.Params()) {
    Strings names = param->attrs.StringList("aliases", {});
    names.push_back(param->attrs.String("name"));
    std::erase_if(missing, [&](const std::string& name) { return Contains(names, name); });
  }
  if (missing.empty()) return;
  graph.notes.push_back(
      StrCat("the file has nothing of ", Counted(std::ssize(missing), "parameter"),
             " of the module, '", missing[0], missing.size() > 1 ? "' the first: " : "': ",
             "unused, or what it did was merged with what an equal one did (an export of trained "
             "weights, or with optimize=False, keeps it)"));
}

}  // namespace

void NoteUnfolded(Graph& graph, const Unfolded& unfolded) {
  if (unfolded.of_tensors == 0) return;
  const bool one = unfolded.of_tensors == 1;
  const std::string more = StrCat("; of ", unfolded.tensors, " more, which became ",
                                  unfolded.tensors == 1 ? "a tensor" : "tensors", ", it has none");
  graph.notes.push_back(StrCat(Counted(unfolded.of_tensors, "constant"), one ? " is" : " are",
                               " made of the file's tensors again, of which the exporter folded ",
                               one ? "it" : "them", unfolded.tensors > 0 ? more : ""));
  const Strings& unread = unfolded.unread;
  if (unread.empty()) return;
  const int64_t others = std::ssize(unread) - 1;
  graph.notes.push_back(StrCat(
      "nothing reads '", unread[0], "'",
      others > 0 ? StrCat(" and ", others, " more of the file's tensors") : "",
      ": unused, or what the exporter folded of ", others > 0 ? "them" : "it", " is not trained"));
}

void NoteParameters(Graph& graph, const Parameters& params, const std::set<std::string>& wanted,
                    bool of_module) {
  NoteComputed(graph, params, of_module);
  NoteMerged(graph);
  NoteConstants(graph, params, wanted);
  if (!of_module) NoteMissing(graph, params.missing);
  NoteCopies(graph);
}

void NoteLostDropout(Graph& graph, const onnx::ModelProto& model) {
  if (model.producer_name() != "pytorch") return;
  std::set<std::string> calls, written;
  int64_t idle = 0;  // nodes of TorchScript's
  for (const onnx::NodeProto& node : model.graph().node()) {
    const std::string call = AttentionWithDropout(node);
    if (!call.empty()) calls.insert(call);
    if (node.op_type() != "Dropout") continue;
    const bool has_mode = node.input_size() > 2 && !node.input(2).empty();
    if (!call.empty() && has_mode) written.insert(call);
    idle += !has_mode;
  }
  for (const std::string& call : written) calls.erase(call);
  const int64_t lost = std::max<int64_t>(std::ssize(calls), idle);
  if (lost == 0) return;
  graph.notes.push_back(StrCat(
      "the file has nothing of ", Counted(lost, "dropout"), " of the module: PyTorch's exporter ",
      "does not write that of scaled_dot_product_attention (of transformers' models it does with ",
      "attn_implementation=\"eager\")"));
}

void NoteLostSmoothing(Graph& graph, const onnx::ModelProto& model) {
  std::map<std::string, std::vector<const onnx::NodeProto*>> nodes;  // by call
  for (const onnx::NodeProto& node : model.graph().node()) {
    const std::string call = LossWithSmoothing(node);
    if (!call.empty()) nodes[call].push_back(&node);
  }
  // What smooths takes more nodes than one.
  const auto lost = std::ranges::count_if(nodes, [](const auto& of) {
    return of.second.size() == 1 && of.second[0]->op_type() == "SoftmaxCrossEntropyLoss";
  });
  if (lost == 0) return;
  graph.notes.push_back(StrCat("the file has nothing of the label_smoothing of ",
                               Counted(lost, "cross_entropy"), " of the module, which PyTorch's ",
                               "exporter leaves out: the loss is another one (a model that writes "
                               "it with log_softmax keeps it)"));
}

void NoteUnread(Graph& graph) {
  auto is_read = [&](const Value& v) { return !v.users.empty() || graph.IsOutput(&v); };
  for (const auto& input : graph.inputs()) {
    if (is_read(*input)) continue;
    const auto other = std::ranges::find_if(graph.inputs(), [&](const auto& v) {
      return is_read(*v) && v->type.SameTensor(input->type);
    });
    if (other == graph.inputs().end()) continue;
    graph.notes.push_back(StrCat("nothing reads input '", input->name, "': if it and '",
                                 (*other)->name, "' were given one tensor at the ", "export, '",
                                 (*other)->name,
                                 "' stands for both (export with a copy in its place)"));
  }
}

void NoteSines(Graph& graph) {
  Strings tables;
  for (const Op* param : graph.Params()) {
    const std::string& name = param->attrs.String("name");
    const auto source = graph.sources.find(name);
    if (source == graph.sources.end() || !IsFloat(param->out().dtype)) continue;
    if (HoldsSines(param->out(), *source->second)) tables.push_back(name);
  }
  if (tables.empty()) return;
  const int64_t more = std::ssize(tables) - 1;
  graph.notes.push_back(StrCat("'", tables[0], "' ",
                               more > 0 ? StrCat("and ", Counted(more, "other"), " hold") : "holds",
                               " sines and cosines of positions, which few modules train; an "
                               "optimizer does, unless --freeze names ",
                               more > 0 ? "them" : "it"));
}

void NoteRounded(Graph& graph, const std::map<const Value*, Steps>& codes) {
  const auto computed = std::ranges::count_if(
      codes, [](const auto& code) { return ConstantOf(code.first) == nullptr; });
  if (computed == 0) return;
  graph.notes.push_back(StrCat("gradients pass ", computed, " rounding", computed == 1 ? "" : "s",
                               " to small integers where the result is in range, as with PyTorch's "
                               "fake_quantize (the file does not say)"));
}

void NoteNans(Graph& graph, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const auto others = std::ssize(names) - 1;
  graph.notes.push_back(StrCat(
      "'", names[0], "'",
      others > 0 ? StrCat(" and ", others, " more of the file's constants") : "",
      others > 0 ? " hold NaN" : " holds NaN",
      ", and so does what is computed with it, also a product with zero: exporters write what ",
      "torch.empty gave (as megatron-core's buffer for baddbmm: fill it with zeros)"));
}

}  // namespace shardc::onnx_import
