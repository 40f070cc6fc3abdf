#include "frontend/onnx/params.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "frontend/onnx/aliases.h"
#include "frontend/onnx/constant_weights.h"
#include "frontend/onnx/evidence.h"
#include "frontend/onnx/read_pieces.h"
#include "frontend/onnx/single_weights.h"
#include "frontend/onnx/table_kind.h"
#include "frontend/onnx/uses.h"
#include "ir/contains.h"

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;

// What torch.fx calls a tensor that a module holds as neither a parameter nor a buffer.
bool IsConstantOfFx(const std::string& name) {
  constexpr std::string_view kPrefix = "_tensor_constant";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of("0123456789", kPrefix.size()) == name.npos;
}

class Finder {
 public:
  Finder(const LoadedModel& model, const ModuleNames& names, TensorReader& reader)
      : model_(model),
        names_(names),
        reader_(reader),
        uses_(model.proto.graph()),
        is_of_torchscript_(IsOfTorchScript(model.proto)) {
    for (const auto& [index, bytes] : model.raw) {
      raw_[&model.proto.graph().initializer(index)] = &bytes;
    }
  }

  Parameters Run() {
    std::set<std::string> candidates;
    for (const TensorProto* t : uses_.initializers()) {
      if (MayBeWeight(*t)) candidates.insert(t->name());
    }
    uses_.FlowFrom(model_.proto.graph(), candidates);
    Parameters found;
    std::vector<std::string> params;
    for (const TensorProto* t : uses_.initializers()) {
      if (IsParameter(*t)) {
        params.push_back(t->name());
        if (reader_.Type(*t).num_elements() == 1 && IsScaleOfModule(*t)) {
          found.guessed.push_back(t->name());
        }
      } else if (candidates.contains(t->name()) || MayBeTrainedNumber(*t) || HoldsCodes(*t)) {
        found.constants.push_back(t->name());
      }
    }
    FindConstantMatrices(found);
    FindCopies(params, found);
    std::erase_if(params, [&](const std::string& name) { return found.copies.contains(name); });
    AliasesFound aliases = FindAliases(params, uses_, names_);
    found.aliases = std::move(aliases.of);
    found.sources = std::move(aliases.sources);
    found.transpose_of = std::move(aliases.transpose_of);
    FindSingle(found);
    FindComputed(params, found);
    FindMissing(found);
    return found;
  }

 private:
  void FindSingle(Parameters& found) const {
    std::set<std::string> vectors, tensors;
    for (const TensorProto* t : uses_.initializers()) {
      tensors.insert(t->name());
      if (t->dims_size() == 1 && found.Has(t->name())) vectors.insert(t->name());
    }
    for (const std::string& name : vectors) {
      if (!IsGiven(name, tensors)) continue;
      found.single.insert(name);
      std::erase_if(found.aliases[name],
                    [&](const std::string& alias) { return !found.sources.contains(alias); });
    }
  }

  // By each call that uses it, with no other parameter that might have become this tensor.
  bool IsGiven(const std::string& name, const std::set<std::string>& tensors) const {
    const std::vector<Use>& uses = uses_.Of(name);
    return !uses.empty() && std::ranges::all_of(uses, [&](const Use& use) {
      if (use.node == nullptr) return false;
      const std::vector<std::string> given = GivenToCall(*use.node, names_);
      return Contains(given, name) && std::ranges::all_of(given, [&](const std::string& other) {
               return tensors.contains(other);
             });
    });
  }

  // Of a matrix alone exporters fold the transpose. A vector with a constant added (1 + weight)
  // trains as the vector does; what was made of it alone, of two, or by a function (its
  // exponential), a factor or copies, does not.
  void FindComputed(const std::vector<std::string>& params, Parameters& found) const {
    std::map<std::string, int64_t> ranks, larger;  // dims; those of more than one element
    for (const TensorProto* t : uses_.initializers()) {
      ranks[t->name()] = t->dims_size();
      larger[t->name()] = LargerDims(*t);
    }
    for (const std::string& name : params) {
      auto folded = names_.folded_from.find(name);
      if (folded == names_.folded_from.end() || found.transpose_of.contains(name)) continue;
      if (const std::string from = TakenFrom(name, folded->second); !from.empty())
        found.taken_from[name] = from;
      if (!IsAffine(folded->second)) found.of_functions.insert(name);
      ComputedFrom from = MadeBy(name, folded->second);
      const bool alike = from.trains_alike && !from.param.empty() && !RepeatsElements(from);
      if (!from.param.empty()) found.made_by[name] = std::move(from);
      const bool alone = folded->second.size() == 1;
      if (alone ? larger[name] > 1 : ranks[name] == 1 && alike) continue;
      for (const std::string& source : folded->second) {
        if (names_.is_parameter.contains(source)) found.computed_from[name].push_back(source);
      }
    }
  }

  static bool RepeatsElements(const ComputedFrom& made) {
    return std::ranges::any_of(
        std::initializer_list<std::string_view>{"cat", "repeat", "repeat_interleave", "stack",
                                                "tile"},
        [&](std::string_view function) { return made.functions.contains(function); });
  }

  // The parameter that functions which only move elements made it of; what PyTorch has no name for
  // ("val_12") are the indices. Empty where there may have been others.
  std::string TakenFrom(const std::string& name, const std::vector<std::string>& folded) const {
    static const std::set<std::string_view> kMoving = {
        "chunk",  "clone", "detach", "expand",  "getitem",   "narrow", "permute",   "reshape",
        "select", "slice", "split",  "squeeze", "transpose", "unbind", "unsqueeze", "view"};
    std::set<std::string> of;
    for (const std::string& source : folded) {
      const std::string_view function = FunctionOf(source);
      if (names_.is_parameter.contains(source)) {
        of.insert(source);
      } else if (function != "val" && !kMoving.contains(function)) {
        return "";
      }
    }
    return of.size() == 1 && kMoving.contains(FunctionOf(name)) ? *of.begin() : "";
  }

  // No parameter where there is none, or several.
  ComputedFrom MadeBy(const std::string& name, const std::vector<std::string>& folded) const {
    static const std::set<std::string_view> kTurning = {"neg", "rsub", "sub"};
    ComputedFrom made;
    bool several = false;
    std::set<std::string_view> changing;
    auto add = [&](const std::string& tensor) {
      const std::string_view function = FunctionOf(tensor);
      made.functions.emplace(function);
      if (!ChangesNumbers(tensor)) return;
      made.keeps_values = false;
      made.trains_alike &= kTurning.contains(function);
      if (function != "neg") changing.insert(function);
    };
    add(name);
    made.scaled = IsScaling(name) && folded.size() > 1;
    for (const std::string& source : folded) {
      if (!names_.is_parameter.contains(source)) {
        const std::string_view function = FunctionOf(source);
        add(source);
        made.scaled &= function == "val" || function == "scalar_tensor_default";
      } else if (made.param.empty()) {
        made.param = source;
      } else {
        several = true;
      }
    }
    made.several = changing.size() > 1;
    if (several) made.param.clear();
    return made;
  }

  // All that the exporter names of it are tensors of the module, constants, arithmetic, and what
  // moves all elements.
  bool IsAffine(const std::vector<std::string>& folded) const {
    static const std::set<std::string_view> kArithmetic = {"add", "div",  "mul",
                                                           "neg", "rsub", "sub"};
    static const std::set<std::string_view> kConstant = {
        "c_lifted_tensor", "lift_fresh_copy", "lifted_tensor", "scalar_tensor_default", "val"};
    static const std::set<std::string_view> kMoving = {
        "_to_copy", "_unsafe_view", "alias", "clone",     "contiguous", "flatten", "permute",
        "reshape",  "squeeze",      "t",     "transpose", "unsqueeze",  "view"};
    return std::ranges::all_of(folded, [&](const std::string& source) {
      return names_.is_parameter.contains(source) || names_.is_buffer.contains(source) ||
             IsConstantOfFx(source) || kArithmetic.contains(FunctionOf(source)) ||
             kConstant.contains(FunctionOf(source)) || kMoving.contains(FunctionOf(source));
    });
  }

  static bool IsScaling(std::string_view tensor) {
    return FunctionOf(tensor) == "mul" || FunctionOf(tensor) == "div";
  }

  // Whether a function that does more than move elements and add constants made it; one that is not
  // known here may.
  bool ChangesNumbers(const std::string& tensor) const {
    // The last are the numbers of a softplus.
    static const std::set<std::string_view> kAlike = {"_to_copy",
                                                      "_unsafe_view",
                                                      "add",
                                                      "alias",
                                                      "c_lifted_tensor",
                                                      "chunk",
                                                      "clone",
                                                      "contiguous",
                                                      "convert_element_type_default",
                                                      "detach",
                                                      "expand",
                                                      "flatten",
                                                      "getitem",
                                                      "lift_fresh_copy",
                                                      "lifted_tensor",
                                                      "narrow",
                                                      "permute",
                                                      "reshape",
                                                      "scalar_default",
                                                      "scalar_tensor",
                                                      "scalar_tensor_default",
                                                      "select",
                                                      "slice",
                                                      "split",
                                                      "split_with_sizes",
                                                      "squeeze",
                                                      "t",
                                                      "transpose",
                                                      "unbind",
                                                      "unsqueeze",
                                                      "val",
                                                      "view",
                                                      "beta",
                                                      "threshold",
                                                      "tmp"};
    return !names_.is_buffer.contains(tensor) && !IsConstantOfFx(tensor) &&
           !kAlike.contains(FunctionOf(tensor));
  }

  void FindMerged(const std::set<std::string>& known, Parameters& found) const {
    for (const NodeProto& node : model_.proto.graph().node()) {
      std::vector<std::string> lost = GivenToCall(node, names_);
      std::erase_if(lost, [&](const std::string& name) { return known.contains(name); });
      if (lost.empty()) continue;
      for (const std::string& input : node.input()) {
        if (found.Has(input)) found.merged[input].insert(lost.begin(), lost.end());
      }
    }
  }

  void FindMissing(Parameters& found) const {
    std::set<std::string> known;
    for (const TensorProto* t : uses_.initializers()) known.insert(t->name());
    for (const auto& [name, sources] : names_.folded_from) {
      known.insert(sources.begin(), sources.end());
    }
    for (const auto& [name, aliases] : found.aliases) known.insert(aliases.begin(), aliases.end());
    FindMerged(known, found);
    for (const auto& [name, merged] : found.merged) known.insert(merged.begin(), merged.end());
    std::ranges::copy_if(names_.parameters, std::back_inserter(found.missing),
                         [&](const std::string& name) { return !known.contains(name); });
  }

  void FindCopies(const std::vector<std::string>& params, Parameters& found) {
    std::map<std::string, const TensorProto*> tensors;
    for (const TensorProto* t : uses_.initializers()) tensors[t->name()] = t;
    std::map<std::string, std::string> first;  // by the parameter that was folded
    for (const std::string& name : params) {
      auto folded = names_.folded_from.find(name);
      if (folded == names_.folded_from.end() || folded->second.size() != 1) continue;
      auto [it, is_new] = first.try_emplace(folded->second[0], name);
      if (!is_new && SameData(*tensors[it->second], *tensors[name]))
        found.copies[name] = it->second;
    }
  }

  bool SameData(const TensorProto& a, const TensorProto& b) {
    const TensorType type = reader_.Type(a), other = reader_.Type(b);
    if (!type.SameTensor(other)) return false;
    const auto first = reader_.Source(a, RawOf(a)), second = reader_.Source(b, RawOf(b));
    return HoldsOfPieces(type.shape, [&](const Shape& offset, const Shape& size) {
      const HostTensor x = ReadPiece(*first, type.dtype, offset, size);
      const HostTensor y = ReadPiece(*second, type.dtype, offset, size);
      return std::equal(x.raw(), x.raw() + x.bytes(), y.raw());
    });
  }

  bool IsParameter(const TensorProto& t) {
    if (!IsFloatType(t.data_type()) || reader_.Type(t).num_elements() == 0) return false;
    if (names_.is_parameter.contains(t.name())) return true;
    if (names_.is_buffer.contains(t.name())) return false;
    if (names_.folded_from.contains(t.name()) && !names_.parameters.empty())
      return IsFoldedFromParameter(t.name());
    if (IsConstantOfFx(t.name()) || IsOfExporter(t)) return false;
    if (reader_.Type(t).num_elements() == 1 &&
        (IsWeightOfOneOutput(t.name(), uses_) || IsScaleOfModule(t)))
      return true;
    if (!MayBeWeight(t)) return false;
    return IsTrained(t, uses_, [&] { return KindOf(t); });
  }

  // Of TorchScript's, which writes Constant nodes for what is no tensor of the module; dynamo names
  // its nodes "node_mul_7".
  static bool IsOfTorchScript(const onnx::ModelProto& model) {
    return model.producer_name() == "pytorch" &&
           std::ranges::none_of(model.graph().node(), [](const NodeProto& node) {
             return node.name().starts_with("node_");
           });
  }

  bool IsScaleOfModule(const TensorProto& t) const {
    return names_.parameters.empty() && is_of_torchscript_ && !t.name().starts_with('/') &&
           (IsTrainedScale(t, uses_) || IsGateOfModule(t.name(), uses_));
  }

  // The scale of ones of a norm that has none, the zeros of a convolution without a bias: all that
  // the call was given, which the node stands for, the node reads elsewhere.
  bool IsOfExporter(const TensorProto& t) const {
    const std::vector<Use>& uses = uses_.Of(t.name());
    return !uses.empty() && std::ranges::all_of(uses, [&](const Use& use) {
      if (use.node == nullptr) return false;
      const std::optional<size_t> given = ValuesOfCall(*use.node);
      const std::set<std::string> inputs(use.node->input().begin(), use.node->input().end());
      const auto computed = std::ranges::count_if(
          inputs, [&](const std::string& name) { return uses_.IsActivation(name); });
      const auto named = std::ranges::count_if(inputs, [&](const std::string& name) {
        return names_.is_parameter.contains(name) || names_.is_buffer.contains(name);
      });
      return given && computed == 1 && std::cmp_less_equal(*given, computed + named);
    });
  }

  // What reads it, cast or not, are lookups that it gives the places of.
  bool IsOfPlaces(const std::string& name, int casts = 2) const {
    return std::ranges::all_of(uses_.Of(name), [this, casts](const Use& use) {
      if (use.node == nullptr) return false;
      return use.node->op_type() == "Cast"
                 ? casts > 0 && IsOfPlaces(OutputOf(*use.node), casts - 1)
                 : use.input == 1 && use.node->op_type().starts_with("Gather");
    });
  }

  // A matrix of small integers that are no mask, of which the quantized forms that are known have
  // made no weight.
  bool HoldsCodes(const TensorProto& t) const {
    const auto bits = StoredBits(t.data_type());
    const auto held = HeldAs(t.data_type());
    if (!bits || *bits > 8 || held != DType::kI32 || LargerDims(t) < 2) return false;
    const bool is_zero_point = std::ranges::all_of(uses_.Of(t.name()), [](const Use& use) {
      return use.node == nullptr ||
             (use.node->op_type().ends_with("uantizeLinear") && use.input > 0);
    });
    if (is_zero_point || IsOfPlaces(t.name())) return false;
    const HostTensor codes = reader_.Read(t, RawOf(t));
    std::set<int64_t> values;
    for (int64_t i = 0; i < codes.num_elements() && values.size() < 3; ++i)
      values.insert(codes.AsInt(i));
    return values.size() > 2;
  }

  // What a tensor library's own tensors become when TorchScript exports them, beside a module's.
  void FindConstantMatrices(Parameters& found) const {
    for (const NodeProto* node : uses_.nodes()) {
      const TensorProto* value = ConstantValue(*node);
      if (value == nullptr || !MayBeWeight(*value) || LargerDims(*value) < 2) continue;
      const std::vector<Use>& uses = uses_.Of(node->output(0));
      const bool is_matrix = std::ranges::any_of(uses, [](const Use& use) {
        return use.node != nullptr && use.input < 2 &&
               (use.node->op_type() == "MatMul" || use.node->op_type() == "Gemm");
      });
      if (is_matrix) found.constants.push_back(node->output(0));
    }
  }

  bool IsFoldedFromParameter(const std::string& tensor) const {
    std::set<std::string> visited;
    std::vector<std::string> open = {tensor};
    while (!open.empty()) {
      const std::string name = std::move(open.back());
      open.pop_back();
      if (names_.is_parameter.contains(name)) return true;
      const auto folded = names_.folded_from.find(name);
      if (folded == names_.folded_from.end() || !visited.insert(name).second) continue;
      open.insert(open.end(), folded->second.begin(), folded->second.end());
    }
    return false;
  }

  // A single number, where nothing says what the module trains. TorchScript writes the module's
  // constants as Constant nodes, as initializers its tensors ("h.0.scale", "logit_scale") and what
  // it folded of them ("onnx::Mul_7").
  bool MayBeTrainedNumber(const TensorProto& t) {
    if (!names_.parameters.empty() || !IsFloatType(t.data_type())) return false;
    if (model_.proto.producer_name() == "pytorch") {
      if (t.name().starts_with('/') || reader_.Type(t).num_elements() != 1) return false;
      return IsTrained(t, uses_, [&] { return KindOf(t); });
    }
    if (t.dims_size() > 0 || t.name().find_first_of(".:") == std::string::npos) return false;
    return std::any_of(uses_.Of(t.name()).begin(), uses_.Of(t.name()).end(), [](const Use& use) {
      if (use.node == nullptr) return false;
      return use.node->op_type() == "Mul" || use.node->op_type() == "Div";
    });
  }

  TableKind KindOf(const TensorProto& t) {
    auto [it, is_new] = kinds_.try_emplace(t.name(), TableKind::kOther);
    if (is_new) it->second = KindOfTable(reader_.Type(t), *reader_.Source(t, RawOf(t)));
    return it->second;
  }

  const Bytes* RawOf(const TensorProto& t) const {
    auto raw = raw_.find(&t);
    return raw == raw_.end() ? nullptr : raw->second;
  }

  const LoadedModel& model_;
  const ModuleNames& names_;
  TensorReader& reader_;
  Uses uses_;
  bool is_of_torchscript_;
  std::map<const TensorProto*, const Bytes*> raw_;  // of the tensors that have it in the file
  std::map<std::string, TableKind> kinds_;
};

}  // namespace

Parameters FindParameters(const LoadedModel& model, const ModuleNames& names,
                          TensorReader& reader) {
  return Finder(model, names, reader).Run();
}

}  // namespace shardc::onnx_import
