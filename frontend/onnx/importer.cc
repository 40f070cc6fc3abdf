#include <algorithm>
#include <set>

#include "frontend/import.h"
#include "frontend/onnx/add_tensors.h"
#include "frontend/onnx/constant_weights.h"
#include "frontend/onnx/control_flow.h"
#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/dequantize_weights.h"
#include "frontend/onnx/detached.h"
#include "frontend/onnx/fold_codes.h"
#include "frontend/onnx/folded_constants.h"
#include "frontend/onnx/functions.h"
#include "frontend/onnx/load_model.h"
#include "frontend/onnx/merged_fills.h"
#include "frontend/onnx/node.h"
#include "frontend/onnx/notes.h"
#include "frontend/onnx/op_types.h"
#include "frontend/onnx/op_versions.h"
#include "frontend/onnx/own_names.h"
#include "frontend/onnx/params.h"
#include "frontend/onnx/refuse_op.h"
#include "frontend/onnx/restore_params.h"
#include "frontend/onnx/sort_nodes.h"
#include "frontend/onnx/symbols.h"
#include "frontend/onnx/uses.h"
#include "frontend/onnx/zero_biases.h"
#include "frontend/recover/patterns.h"
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

class Importer final : private GraphConverter {
 public:
  Importer(const std::string& path, const ImportOptions& options)
      : model_(LoadOnnx(path)),
        conversion_(path, model_.folder, graph_),
        options_(options),
        tensors_(model_, params_, options_, graph_, conversion_) {}

  Graph Run() {
    SortNodes(*model_.proto.mutable_graph());
    EmptyOtherBranches();
    InlineFunctions(model_);
    if (int weights = ConstantsToTensors(*model_.proto.mutable_graph()))
      graph_.notes.push_back(
          StrCat("its weights are Constant nodes: ", weights, " became tensors"));
    for (std::string& note : DequantizeWeights(model_, conversion_.reader))
      graph_.notes.push_back(std::move(note));
    for (std::string& note : FoldCodes(model_, conversion_.reader, Converters()))
      graph_.notes.push_back(std::move(note));
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
    params_ = FindParameters(model_, names, conversion_.reader);
    FindWanted(proto);
    AddTensors(proto);
    for (const NodeProto* node : live_) Convert(*node);
    AddOutputs(proto);
    NoteRounded(graph_, conversion_.steps);
    graph_.EraseDead();
    recover::DropExpanded(graph_, names.expanded);
    if (!options_.module.where.empty()) {
      RestoreParams(
          graph_, options_.module,
          {names.is_parameter, params_.taken_from, params_.made_by, params_.of_functions});
    }
    DropUnusedSources();
    NoteParameters(graph_, params_, conversion_.wanted, !options_.module.where.empty());
    NoteLostDropout(graph_, model_.proto);
    NoteLostSmoothing(graph_, model_.proto);
    detached_.NoteOthers(graph_);
    NoteSines(graph_);
    NoteUnread(graph_);
    NoteNans(graph_, tensors_.with_nan());
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

  void AddTensors(const GraphProto& proto) override { tensors_.Add(proto); }

  void Convert(const NodeProto& proto) override {
    conversion_.builder.site = SiteOf(proto);
    Node node = WithInputsDetached(proto);
    CheckVersion(node, proto);
    CheckTypes(node, proto);
    if (LosesTraining(proto)) {
      node.Fail(
          "E1301",
          "the module normalises by the statistics of the batch here, and the file by what it "
          "keeps for evaluation: PyTorch's exporter loses that a batch norm is in training",
          "export the model in evaluation mode, or with TorchScript (dynamo=False, "
          "training=TrainingMode.TRAINING)");
    }
    try {
      const std::string op = OpKey(proto);
      if (op == "If") {
        ConvertIf(proto, node, conversion_, *this);
      } else if (op == "Loop") {
        UnrollLoop(proto, node, conversion_, *this);
      } else {
        FindConverter(op, proto, node)(node);
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
    if (const auto row = PaddingIdx(proto)) KeepRow(*conversion_.values.at(proto.output(0)), *row);
  }

  // The same, as what has no gradient.
  void Detach(Value*& v) {
    if (!IsFloat(v->type.dtype) || conversion_.rows.Of(v) || !recover::DependsOnParam(v)) return;
    Value* zero = conversion_.builder.Scalar(v->type.dtype, 0);
    v = conversion_.builder.Make("sub", {v, zero}, {{"detached", true}});
  }

  // Keeps a lookup from training this row of its table; what takes constant rows is no lookup.
  static void KeepRow(Value& v, int64_t row) {
    Op* op = v.producer;
    if (op != nullptr && recover::IsLookup(op) && row < op->in(0).shape[0]) {
      op->attrs.Set("padding_idx", row);
    }
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

  static Converter FindConverter(const std::string& op, const NodeProto& proto, const Node& node) {
    auto it = Converters().find(op);
    if (it == Converters().end()) {
      std::vector<std::string> known;
      for (const auto& [name, converter] : Converters()) known.push_back(name);
      RefuseOp(proto, node, known);
    }
    return it->second;
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
  Parameters params_;
  TensorAdder tensors_;
  std::string empty_inputs_;  // for the note
  Detached detached_;
  std::vector<const NodeProto*> live_;
};

}  // namespace
}  // namespace onnx_import

Graph ImportOnnx(const std::string& path, const ImportOptions& options) {
  return onnx_import::Importer(path, options).Run();
}

}  // namespace shardc
