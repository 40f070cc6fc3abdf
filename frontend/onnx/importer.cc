#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "frontend/import.h"
#include "frontend/onnx/constant_weights.h"
#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/detached.h"
#include "frontend/onnx/fold.h"
#include "frontend/onnx/folded_constants.h"
#include "frontend/onnx/functions.h"
#include "frontend/onnx/load_model.h"
#include "frontend/onnx/merged_fills.h"
#include "frontend/onnx/narrow.h"
#include "frontend/onnx/node.h"
#include "frontend/onnx/notes.h"
#include "frontend/onnx/op_types.h"
#include "frontend/onnx/op_versions.h"
#include "frontend/onnx/own_names.h"
#include "frontend/onnx/params.h"
#include "frontend/onnx/restore_params.h"
#include "frontend/onnx/sort_nodes.h"
#include "frontend/onnx/symbols.h"
#include "frontend/onnx/uses.h"
#include "frontend/onnx/zero_biases.h"
#include "frontend/recover/patterns.h"
#include "ir/contains.h"
#include "ir/utf8.h"

namespace shardc {
namespace onnx_import {
namespace {

using onnx::GraphProto;
using onnx::NodeProto;
using onnx::TensorProto;

const ConverterTable& Converters() {
  static const ConverterTable table = [] {
    ConverterTable t;
    AddElementwiseConverters(t);
    AddShapeConverters(t);
    AddNeuralConverters(t);
    AddReductionConverters(t);
    return t;
  }();
  return table;
}

class Importer {
 public:
  Importer(const std::string& path, const ImportOptions& options)
      : model_(LoadOnnx(path)), conversion_(path, model_.folder, graph_), options_(options) {}

  Graph Run() {
    SortNodes(*model_.proto.mutable_graph());
    EmptyOtherBranches();
    InlineFunctions(model_);
    if (int weights = ConstantsToTensors(*model_.proto.mutable_graph()))
      graph_.notes.push_back(
          StrCat("its weights are Constant nodes: ", weights, " became tensors"));
    NoteUnfolded(graph_, UnfoldConstants(model_, conversion_.reader));
    ModuleNames names = ReadModuleNames(model_.proto.graph());
    RestoreOwnNames(*model_.proto.mutable_graph(), names);
    if (const int biases = AddZeroBiases(*model_.proto.mutable_graph(), names)) {
      graph_.notes.push_back(StrCat(biases, biases == 1 ? " bias" : " biases",
                                    " of zeros that the exporter left out ",
                                    biases == 1 ? "is a parameter" : "are parameters", " again"));
    }
    if (const int fills = SeparateFills(model_, names, conversion_.reader)) {
      graph_.notes.push_back(StrCat(fills, fills == 1 ? " tensor" : " tensors",
                                    " of one value that the exporter merged with others ",
                                    fills == 1 ? "is" : "are", " separate again"));
    }
    conversion_.opsets = model_.opsets;
    const GraphProto& proto = model_.proto.graph();
    detached_ = Detached(proto, names);
    CheckInitializers(proto);
    AddInputs(proto);
    Parameters params = FindParameters(model_, names, conversion_.reader);
    FindWanted(proto);
    AddTensors(proto, params);
    for (const NodeProto* node : live_) Convert(*node, params);
    AddOutputs(proto);
    graph_.EraseDead();
    recover::DropRepeatedMatrices(graph_, names.expanded);
    if (!options_.module.where.empty()) {
      RestoreParams(graph_, options_.module,
                    {names.is_parameter, params.taken_from, params.made_by});
    }
    DropUnusedSources();
    NoteParameters(graph_, params, conversion_.wanted, !options_.module.where.empty());
    NoteLostDropout(graph_, model_.proto);
    detached_.NoteOthers(graph_);
    NoteSines(graph_);
    NoteUnread(graph_);
    NoteNans(graph_, with_nan_);
    return std::move(graph_);
  }

 private:
  [[noreturn]] void Fail(const char* id, const std::string& what, const std::string& fix = {}) {
    throw Diagnostic(id, ExitCode::kBadModel, model_.path, what, fix);
  }

  // In a plan's files two that are not may become one.
  void CheckUtf8(const std::string& name) {
    if (!IsUtf8(name)) Fail("E1308", StrCat("the name '", name, "' is not UTF-8"), "rename it");
  }

  // Of branches among which --bind chooses only the taken one says what its tensors are: the other
  // may use the same names for other values.
  void EmptyOtherBranches() {
    GraphProto& graph = *model_.proto.mutable_graph();
    std::set<std::string_view> inputs;
    for (const auto& input : graph.input()) inputs.insert(input.name());
    for (NodeProto& node : *graph.mutable_node()) {
      if (node.op_type() != "If" || node.input_size() != 1 || !inputs.contains(node.input(0)))
        continue;
      auto bound = options_.bind.find(node.input(0));
      if (bound == options_.bind.end()) continue;
      const std::string_view other = bound->second != 0 ? "else_branch" : "then_branch";
      for (auto& attr : *node.mutable_attribute()) {
        if (attr.name() == other) attr.mutable_g()->Clear();
      }
    }
  }

  void CheckInitializers(const GraphProto& proto) {
    if (proto.sparse_initializer_size() > 0)
      Fail("E1402", "has sparse tensors, which are not supported");
    for (const TensorProto& t : proto.initializer()) {
      if (t.name().empty()) Fail("E1402", "has a tensor without a name");
      CheckUtf8(t.name());
      if (!initializers_.insert(t.name()).second) {
        Fail("E1308", StrCat("has two tensors called '", t.name(), "'"));
      }
    }
  }

  void AddInputs(const GraphProto& proto) {
    std::vector<const onnx::ValueInfoProto*> inputs;
    for (const auto& input : proto.input()) {
      if (!initializers_.contains(input.name())) inputs.push_back(&input);
    }
    for (InputShape& input : BindInputs(model_.path, inputs, options_)) {
      if (input.name.empty() || conversion_.values.contains(input.name)) {
        Fail("E1308", StrCat("has two inputs called '", input.name, "', or one without a name"));
      }
      CheckUtf8(input.name);
      conversion_.values[input.name] = InputValue(input);
    }
    if (!empty_inputs_.empty())
      graph_.notes.push_back(StrCat("left out, because they are empty: ", empty_inputs_));
  }

  // What holds nothing, and what --bind gives, is no input of the graph.
  Value* InputValue(const InputShape& input) {
    if (input.value) {
      HostTensor number(input.type.dtype, input.type.shape);
      number.SetDouble(0, static_cast<double>(*input.value));
      return conversion_.builder.Constant(std::move(number));
    }
    if (input.type.num_elements() > 0) return graph_.AddInput(input.name, input.type);
    empty_inputs_ += (empty_inputs_.empty() ? "'" : ", '") + input.name + "'";
    return conversion_.builder.Constant(HostTensor(input.type.dtype, input.type.shape));
  }

  // What the outputs need; the rest of the file may be unsupported.
  void FindWanted(const GraphProto& proto) {
    for (const auto& output : proto.output()) conversion_.wanted.insert(output.name());
    for (int i = proto.node_size() - 1; i >= 0; --i) {
      const NodeProto& node = proto.node(i);
      bool live = std::any_of(node.output().begin(), node.output().end(), [&](const auto& name) {
        return !name.empty() && conversion_.wanted.contains(name);
      });
      if (!live) continue;
      live_.push_back(&node);
      for (std::string& name : ReadBy(node)) conversion_.wanted.insert(std::move(name));
    }
    std::reverse(live_.begin(), live_.end());
  }

  void AddTensors(const GraphProto& proto, const Parameters& params) {
    // Wanted, or a copy of it is.
    std::set<std::string_view> wanted(conversion_.wanted.begin(), conversion_.wanted.end());
    for (const auto& [copy, first] : params.copies) {
      if (conversion_.wanted.contains(copy)) wanted.insert(first);
    }
    bool of_model = &proto == &model_.proto.graph();
    for (int i = 0; i < proto.initializer_size(); ++i) {
      const TensorProto& t = proto.initializer(i);
      if (!wanted.contains(t.name()) || params.copies.contains(t.name())) continue;
      auto raw = of_model ? model_.raw.find(i) : model_.raw.end();
      const Bytes* bytes = raw == model_.raw.end() ? nullptr : &raw->second;
      conversion_.values[t.name()] =
          params.Has(t.name()) ? AddParam(t, bytes, params) : AddConstant(t, bytes, params);
    }
    for (const auto& [copy, first] : params.copies) {
      auto it = conversion_.values.find(first);
      if (it != conversion_.values.end()) conversion_.values[copy] = it->second;
    }
  }

  Value* AddParam(const TensorProto& t, const Bytes* bytes, const Parameters& params) {
    // Of branches of two nodes each may have its own; that of one in a loop is the same each time.
    Value*& param = params_[&t];
    if (param != nullptr) return param;
    if (graph_.sources.contains(t.name())) {
      Fail("E1308", StrCat("has two weights called '", t.name(), "'"));
    }
    TensorType type = conversion_.reader.Type(t);
    Attributes more;
    const Strings& aliases = params.aliases.at(t.name());
    if (!aliases.empty()) more.Set("aliases", aliases);
    Strings sources;
    for (const std::string& alias : aliases) {
      if (params.sources.contains(alias)) sources.push_back(alias);
    }
    if (!sources.empty()) more.Set("source_aliases", std::move(sources));
    if (auto of = params.transpose_of.find(t.name()); of != params.transpose_of.end()) {
      more.Set("transpose_of", of->second);
    }
    if (auto merged = params.merged.find(t.name()); merged != params.merged.end()) {
      more.Set("merged", Strings(merged->second.begin(), merged->second.end()));
    }
    graph_.sources[t.name()] = conversion_.reader.Source(t, bytes);
    conversion_.builder.site.clear();
    param = conversion_.builder.Param(t.name(), type.dtype, type.shape, std::move(more));
    return param;
  }

  // Beside numbers: one of nothing else is meant.
  static bool HoldsNan(const HostTensor& tensor) {
    int64_t count = 0;
    const int64_t size = IsFloat(tensor.dtype()) ? tensor.num_elements() : 0;
    for (int64_t i = 0; i < size; ++i) count += std::isnan(tensor.AsDouble(i));
    return count > 0 && count < size;
  }

  Value* AddConstant(const TensorProto& t, const Bytes* bytes, const Parameters& params) {
    conversion_.builder.site.clear();
    HostTensor tensor = conversion_.reader.Read(t, bytes);
    if (HoldsNan(tensor)) with_nan_.push_back(t.name());
    if (options_.fixed && Contains(params.constants, t.name()))
      (*options_.fixed)[t.name()] = FixedTensorOf(tensor);
    Value* value = conversion_.builder.Constant(std::move(tensor));
    value->name = t.name();
    if (IsNarrow(t.data_type())) conversion_.narrow[t.name()] = t.data_type();
    return value;
  }

  void Convert(const NodeProto& proto, const Parameters& params) {
    conversion_.builder.site = SiteOf(proto);
    Node node = WithInputsDetached(proto);
    CheckVersion(node, proto);
    CheckTypes(node, proto);
    try {
      if (proto.op_type() == "If" && NormalDomain(proto.domain()).empty()) {
        ConvertIf(proto, node, params);
      } else if (proto.op_type() == "Loop" && NormalDomain(proto.domain()).empty()) {
        Unroll(proto, node, params);
      } else {
        FindConverter(proto, node)(node);
      }
    } catch (const Diagnostic& d) {
      // Inference and folding do not know the node.
      if (d.where().starts_with(model_.path)) throw;
      throw d.In(node.Where());
    }
    node.CheckOutputs();
    node.CheckRead();
    node.CheckRows();
    if (Detached::Is(proto)) Detach(conversion_.values.at(proto.output(0)));
  }

  // The same, as what has no gradient.
  void Detach(Value*& v) {
    if (!IsFloat(v->type.dtype) || conversion_.rows.Of(v) || !recover::DependsOnParam(v)) return;
    Value* zero = conversion_.builder.Scalar(v->type.dtype, 0);
    v = conversion_.builder.Make("sub", {v, zero}, {{"detached", true}});
  }

  Node WithInputsDetached(const NodeProto& proto) {
    Node node(conversion_, proto);
    for (const int i : detached_.InputsOf(proto)) {
      const auto made = conversion_.values.find(proto.input(i));
      if (made == conversion_.values.end()) continue;  // a sequence
      Value* v = made->second;
      Detach(v);
      node.ReplaceInput(i, v);
    }
    return node;
  }

  Converter FindConverter(const NodeProto& proto, const Node& node) {
    std::string domain = NormalDomain(proto.domain());
    std::string key = domain.empty() ? proto.op_type() : domain + "::" + proto.op_type();
    auto it = Converters().find(key);
    if (it == Converters().end()) RefuseOp(proto, node, domain, key);
    return it->second;
  }

  [[noreturn]] void RefuseOp(const NodeProto& proto, const Node& node, const std::string& domain,
                             const std::string& key) {
    static const std::set<std::string_view> kLoops = {"Scan", "SequenceMap"};
    if (domain.empty() && kLoops.contains(proto.op_type())) {
      throw Diagnostic("E1307", ExitCode::kBadModel, node.Where(), "loops are not supported",
                       "export the model with its loops unrolled");
    }
    throw Diagnostic("E1301", ExitCode::kBadModel, node.Where(),
                     StrCat("op ", proto.op_type(), " of ",
                            domain.empty() ? "the default domain" : "domain '" + domain + "'",
                            ", opset ", node.opset(), ", is not supported"),
                     WayAround(proto.op_type(), domain, key));
  }

  static std::string WayAround(const std::string& op, const std::string& domain,
                               const std::string& key) {
    const bool microsoft = domain.starts_with("com.microsoft");  // ".nchwc" too
    if (microsoft && (op.starts_with("Packed") || op == "RemovePadding" || op == "RestorePadding"))
      return "compile the model as it was before its sequences were packed";
    if (microsoft && op.starts_with("DecoderMasked"))
      return "it generates one token at a time: export the model without a cache";
    if (IsQuantized(op)) return "compile the model as it was before it was quantized";
    if (microsoft) return kUnoptimized;
    std::vector<std::string> known;
    for (const auto& [name, converter] : Converters()) known.push_back(name);
    std::string near = DidYouMean(key, known);
    return near.empty() ? "" : StrCat("the nearest ops that are: ", near);
  }

  // QLinearMatMul, DequantizeLinear, MatMulInteger, MatMulNBits, ...
  static bool IsQuantized(std::string_view op) {
    const bool q = op.size() > 1 && op[0] == 'Q' && std::isupper(op[1]);
    auto holds = [op](std::string_view part) { return op.find(part) != op.npos; };
    return q || holds("uantize") || holds("MatMulInteger") || op == "ConvInteger" ||
           op.starts_with("MatMulNBits") || op.starts_with("MatMulBnb4");
  }

  static const GraphProto& GraphOf(const NodeProto& proto, const Node& node,
                                   std::string_view name) {
    for (const auto& attr : proto.attribute()) {
      if (attr.name() == name && attr.has_g()) return attr.g();
    }
    node.Fail("E1303", StrCat("has no attribute '", name, "'"), "");
  }

  void ConvertIf(const NodeProto& proto, Node& node, const Parameters& params) {
    const HostTensor* condition = node.ConstantOf(node.input(0));
    if (condition == nullptr) {
      const std::string& name = proto.input(0);
      node.Fail("E1307", "its condition depends on input data: only a constant one is supported",
                graph_.FindInput(name) ? StrCat("pass --bind ", name, "=0 or =1 to choose a branch")
                                       : "");
    }
    if (condition->num_elements() != 1) node.Fail("E1307", "its condition is not one number", "");
    const char* name = condition->AsDouble(0) != 0 ? "then_branch" : "else_branch";
    const GraphProto* branch = &GraphOf(proto, node, name);
    if (branch->output_size() != proto.output_size()) {
      node.Fail("E1302",
                StrCat("has ", proto.output_size(), " outputs, its ", name, " has ",
                       branch->output_size()),
                "");
    }
    ConvertBranch(*branch, params);
    std::vector<Carried> results;
    for (const auto& output : branch->output()) results.push_back(Named(node, output.name(), name));
    ForgetNames(*branch);
    SetOutputs(proto, node, results);
  }

  // What a branch calls its values is nothing to the graph around it, which may use the same names.
  void ForgetNames(const GraphProto& branch) {
    for (const TensorProto& t : branch.initializer()) Forget(t.name());
    ForgetNodes(branch);
  }

  // The tensors of the branch stay.
  void ForgetNodes(const GraphProto& branch) {
    for (const auto& input : branch.input()) Forget(input.name());
    for (const NodeProto& node : branch.node()) {
      for (const std::string& name : node.output()) Forget(name);
    }
  }

  void Forget(const std::string& name) {
    conversion_.values.erase(name);
    conversion_.sequences.erase(name);
    conversion_.narrow.erase(name);
  }

  void ConvertBranch(const GraphProto& branch, const Parameters& params) {
    AddTensorsOf(branch, params);
    for (const NodeProto& inner : branch.node()) Convert(inner, params);
  }

  void AddTensorsOf(const GraphProto& branch, const Parameters& params) {
    for (const auto& output : branch.output()) conversion_.wanted.insert(output.name());
    for (const NodeProto& inner : branch.node()) {
      for (std::string& name : ReadBy(inner)) conversion_.wanted.insert(std::move(name));
    }
    AddTensors(branch, params);
  }

  // A tensor or a sequence, as it goes from one round of a loop to the next, or out of a branch.
  struct Carried {
    Value* value = nullptr;
    std::optional<std::vector<Value*>> sequence = std::nullopt;
    int64_t narrow = 0;
  };

  Carried Named(const Node& node, const std::string& name, const char* graph = "body") {
    Carried carried;
    auto narrow = conversion_.narrow.find(name);
    if (narrow != conversion_.narrow.end()) carried.narrow = narrow->second;
    auto value = conversion_.values.find(name);
    auto sequence = conversion_.sequences.find(name);
    if (value != conversion_.values.end()) {
      carried.value = value->second;
    } else if (sequence != conversion_.sequences.end()) {
      carried.sequence = sequence->second;
    } else {
      node.Fail("E1308", StrCat("'", name, "' is no tensor that its ", graph, " makes"), "");
    }
    return carried;
  }

  void Name(const std::string& name, const Carried& carried) {
    if (carried.narrow != 0) conversion_.narrow[name] = carried.narrow;
    if (carried.value != nullptr) {
      conversion_.values[name] = carried.value;
    } else {
      conversion_.sequences[name] = *carried.sequence;
    }
  }

  // The first ones of the node.
  void SetOutputs(const NodeProto& proto, Node& node, const std::vector<Carried>& results) {
    for (int i = 0; i < static_cast<int>(results.size()); ++i) {
      if (results[i].value != nullptr) {
        node.SetOutput(i, results[i].value, results[i].narrow);
      } else {
        Name(proto.output(i), results[i]);
      }
    }
  }

  const HostTensor& Known(const Node& node, Value* number) {
    const HostTensor* known = number == nullptr ? nullptr : node.ConstantOf(number);
    if (known == nullptr || known->num_elements() != 1) {
      node.Fail("E1307", "how often it runs depends on input data",
                "a loop is unrolled where that is known: export the model without it");
    }
    return *known;
  }

  // A loop of which it is known how often it runs becomes its rounds, one after the other.
  void Unroll(const NodeProto& proto, Node& node, const Parameters& params) {
    constexpr int64_t kMostNodes = 1 << 15;
    const GraphProto& body = GraphOf(proto, node, "body");
    const int carries = proto.input_size() - 2, stacks = proto.output_size() - carries;
    if (carries < 0 || stacks < 0 || body.input_size() != 2 + carries ||
        body.output_size() != 1 + proto.output_size()) {
      node.Fail("E1302",
                StrCat("has ", proto.input_size(), " inputs and ", proto.output_size(),
                       " outputs, its body has ", body.input_size(), " and ", body.output_size()),
                "");
    }
    int64_t most = std::numeric_limits<int64_t>::max();
    if (node.has_input(0)) most = Known(node, node.input(0)).AsInt(0);
    bool goes = !node.has_input(1) || Known(node, node.input(1)).AsDouble(0) != 0;
    std::vector<Carried> carried;
    for (int i = 0; i < carries; ++i) {
      if (!node.IsSequence(2 + i)) node.input(2 + i);  // it is read
      carried.push_back(Named(node, proto.input(2 + i)));
    }
    std::vector<std::vector<Value*>> stacked(stacks);
    std::vector<int64_t> narrow(stacks);
    AddTensorsOf(body, params);
    int64_t nodes = 0;
    for (int64_t round = 0; goes && round < most; ++round) {
      nodes += body.node_size() + 1;
      if (nodes > kMostNodes)
        node.Fail("E1307", StrCat("it runs more than ", round, " times, too often to be unrolled"),
                  "");
      ForgetNodes(body);
      Name(body.input(0).name(), {.value = node.Constant(HostTensor::Scalar(round))});
      Name(body.input(1).name(), {.value = node.Constant(HostTensor::Scalar(true))});
      for (int i = 0; i < carries; ++i) Name(body.input(2 + i).name(), carried[i]);
      for (const NodeProto& inner : body.node()) Convert(inner, params);
      goes = Known(node, Named(node, body.output(0).name()).value).AsDouble(0) != 0;
      for (int i = 0; i < carries; ++i) carried[i] = Named(node, body.output(1 + i).name());
      for (int i = 0; i < stacks; ++i) {
        Carried piece = Named(node, body.output(1 + carries + i).name());
        if (piece.value == nullptr) node.Fail("E1303", "its body stacks sequences", "");
        shardc::Shape shape = piece.value->type.shape;
        shape.insert(shape.begin(), 1);
        stacked[i].push_back(node.Reshape(piece.value, shape));
        narrow[i] = piece.narrow;
      }
    }
    ForgetNames(body);
    SetOutputs(proto, node, carried);
    for (int i = 0; i < stacks; ++i) {
      if (!node.OutputWanted(carries + i)) continue;
      if (stacked[i].empty())
        node.Fail("E1307", "it never runs, so that the shape of what it stacks is not known", "");
      node.SetOutput(carries + i, Joined(node, std::move(stacked[i]), 0), narrow[i]);
    }
  }

  void AddOutputs(const GraphProto& proto) {
    if (proto.output_size() == 0) Fail("E1001", "has no outputs");
    for (const auto& output : proto.output()) {
      auto it = conversion_.values.find(output.name());
      if (it == conversion_.values.end()) {
        Fail("E1308", StrCat("output '", output.name(), "' is no tensor that a node makes"));
      }
      if (graph_.FindOutput(output.name()) != nullptr) {
        Fail("E1308", StrCat("has two outputs called '", output.name(), "'"));
      }
      CheckUtf8(output.name());
      const bool counts = conversion_.rows.IsCount(it->second);
      if (counts || conversion_.rows.Of(it->second) != nullptr) {
        Fail("E1301",
             StrCat("output '", output.name(),
                    counts ? "' says how many rows" : "' has as many rows as",
                    " are chosen when it runs"),
             kDataDecides);
      }
      graph_.outputs.push_back({output.name(), it->second});
    }
    bool nothing = std::all_of(graph_.outputs.begin(), graph_.outputs.end(),
                               [](const auto& o) { return o.value->type.num_elements() == 0; });
    if (nothing && !empty_inputs_.empty()) {
      Fail("E1204", StrCat("every output is empty, as are the inputs ", empty_inputs_),
           "check what --bind and --shape make of the inputs");
    }
  }

  void DropUnusedSources() {
    std::set<std::string_view> held;
    for (const Op* param : graph_.Params()) held.insert(param->attrs.String("name"));
    std::erase_if(graph_.sources, [&](const auto& s) { return !held.contains(s.first); });
  }

  LoadedModel model_;
  Graph graph_;
  Conversion conversion_;
  const ImportOptions& options_;
  std::set<std::string> initializers_;
  std::map<const TensorProto*, Value*> params_;
  std::string empty_inputs_;  // for the note
  Detached detached_;
  std::vector<std::string> with_nan_;  // constants of the file
  std::vector<const NodeProto*> live_;
};

}  // namespace
}  // namespace onnx_import

Graph ImportOnnx(const std::string& path, const ImportOptions& options) {
  return onnx_import::Importer(path, options).Run();
}

}  // namespace shardc
