#include "frontend/onnx/merged_fills.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "frontend/onnx/read_pieces.h"
#include "ir/contains.h"

namespace shardc::onnx_import {
namespace {

using onnx::GraphProto;
using onnx::NodeProto;
using onnx::TensorProto;

bool IsConv(const NodeProto& node) {
  return node.op_type() == "Conv" || node.op_type() == "ConvTranspose";
}

class Separator {
 public:
  Separator(LoadedModel& model, ModuleNames& names, TensorReader& reader)
      : model_(model), graph_(*model.proto.mutable_graph()), names_(names), reader_(reader) {
    for (int i = 0; i < graph_.initializer_size(); ++i) index_[graph_.initializer(i).name()] = i;
  }

  int Run() {
    if (!names_.parameters.empty()) {
      SeparateCalls();
    } else if (model_.proto.producer_name() == "pytorch") {
      SeparateIdentities();
      SeparateModules();
    }
    return added_;
  }

 private:
  bool IsFill(const std::string& name) {
    const auto [it, is_new] = fills_.try_emplace(name, false);
    if (!is_new) return it->second;
    const int index = index_.at(name);
    const TensorProto& t = graph_.initializer(index);
    const TensorType type = reader_.Type(t);
    if (!IsFloat(type.dtype) || type.num_elements() == 0) return false;
    const auto source = reader_.Source(t, model_.RawOf(index));
    std::optional<double> value;
    it->second = HoldsOfPieces(type.shape, [&](const Shape& offset, const Shape& size) {
      const HostTensor piece = ReadPiece(*source, type.dtype, offset, size);
      if (!value) value = piece.AsDouble(0);
      for (int64_t i = 0; i < piece.num_elements(); ++i) {
        if (piece.AsDouble(i) != *value) return false;
      }
      return true;
    });
    return it->second;
  }

  void AddCopy(const std::string& of, const std::string& name) {
    if (index_.contains(name)) return;
    const int from = index_.at(of), to = graph_.initializer_size();
    TensorProto copy = graph_.initializer(from);
    copy.set_name(name);
    *graph_.add_initializer() = std::move(copy);
    if (const auto raw = model_.raw.find(from); raw != model_.raw.end()) {
      model_.raw.emplace(to, raw->second);
    }
    index_[name] = to;
    ++added_;
  }

  void SeparateIdentities() {
    std::set<std::string> outputs;
    for (const auto& output : graph_.output()) outputs.insert(output.name());
    google::protobuf::RepeatedPtrField<NodeProto> kept;
    for (NodeProto& node : *graph_.mutable_node()) {
      const bool identity =
          node.op_type() == "Identity" && node.input_size() == 1 && node.output_size() == 1;
      if (identity && index_.contains(node.input(0)) && !IsMadeUp(node.output(0)) &&
          !outputs.contains(node.output(0)) && !index_.contains(node.output(0)) &&
          IsFill(node.input(0))) {
        AddCopy(node.input(0), node.output(0));
      } else {
        *kept.Add() = std::move(node);
      }
    }
    graph_.mutable_node()->Swap(&kept);
  }

  // It folds a transpose for each call, so that the Identity nodes of these say nothing.
  void SeparateModules() {
    std::map<std::string, std::string> is;  // the tensor that an Identity's result is
    std::map<std::string, std::map<std::string, std::vector<NodeProto*>>> users;  // by module
    for (NodeProto& node : *graph_.mutable_node()) {
      auto tensor = [&](int input) {
        const auto known = is.find(node.input(input));
        return known == is.end() ? node.input(input) : known->second;
      };
      if (node.op_type() == "Identity" && node.input_size() == 1 && index_.contains(tensor(0))) {
        is[node.output(0)] = tensor(0);
      }
      if (node.op_type() != "MatMul" || node.input_size() != 2) continue;
      const std::string weight = tensor(1), module = Called(ModuleOf(node));
      if (index_.contains(weight) && IsMadeUp(weight) && !module.empty()) {
        users[weight][module].push_back(&node);
      }
    }
    for (auto& [weight, by_module] : users) {
      if (by_module.size() < 2 || !IsFill(weight)) continue;
      const std::string first = by_module.begin()->first;
      for (const auto& [module, nodes] : by_module) {
        const std::string own = module == first ? weight : weight + "@" + module;
        AddCopy(weight, own);
        for (NodeProto* node : nodes) node->set_input(1, own);
      }
    }
  }

  // The calls of one module are numbered ("fc", "fc_1"), and of modules with the same last name
  // ("default") together.
  static std::string Called(const std::string& module) {
    const std::string without = module.substr(0, module.find_last_not_of("0123456789") + 1);
    const bool numbered = without != module && without.ends_with('_');
    return numbered ? without.substr(0, without.size() - 1) : module;
  }

  void SeparateCalls() {
    for (const auto& [name, index] : index_) known_.insert(name);
    for (const auto& [name, sources] : names_.folded_from) {
      known_.insert(sources.begin(), sources.end());
    }
    for (NodeProto& node : *graph_.mutable_node()) {
      const std::optional<size_t> values = ValuesOfCall(node);
      if (!values) continue;
      const std::vector<std::string> given = GivenToCall(node, names_);
      std::vector<int> others;  // inputs that are tensors that the call was not given
      size_t computed = 0;
      std::set<std::string> seen;
      for (int i = 0; i < node.input_size(); ++i) {
        const std::string& input = node.input(i);
        computed += !input.empty() && !index_.contains(input) && seen.insert(input).second;
        const std::string own = NameOf(input);
        if (!own.empty() && !Contains(given, own)) others.push_back(i);
      }
      if (others.empty()) continue;
      if (given.empty() && *values == computed) {
        for (const int i : others) Replace(node, i, "");
        continue;
      }
      std::vector<std::string> lost = given;
      std::erase_if(lost, [&](const std::string& name) { return known_.contains(name); });
      const std::vector<std::pair<int, std::string>> told = Told(node, others, lost);
      for (const auto& [input, name] : told) Replace(node, input, name);
    }
  }

  // What each of the inputs is, as far as that is certain. A linear layer may be two nodes,
  // and a convolution stand for the batch norm behind it.
  std::vector<std::pair<int, std::string>> Told(const NodeProto& node,
                                                const std::vector<int>& inputs,
                                                const std::vector<std::string>& lost) const {
    std::vector<std::pair<int, std::string>> told;
    const std::string weight = LinearWeight(node, names_), bias = BiasOf(node, names_);
    const bool product = node.op_type() == "MatMul" || node.op_type() == "Gemm";
    if (product || (node.op_type() == "Add" && !weight.empty())) {
      for (const int i : inputs) {
        const bool is_bias = node.op_type() == "Add" || i == 2;
        const std::string& name = is_bias ? bias : i == 1 ? weight : "";
        if (Contains(lost, name)) told.emplace_back(i, name);
      }
    } else if (lost.size() == inputs.size() && !(IsConv(node) && bias.empty() && lost.size() > 1)) {
      for (size_t i = 0; i < lost.size(); ++i) told.emplace_back(inputs[i], lost[i]);
    }
    return told;
  }

  // The module's tensor that the file's is, alone; empty where that is not known.
  std::string NameOf(const std::string& tensor) const {
    if (!index_.contains(tensor)) return "";
    if (names_.is_parameter.contains(tensor) || names_.is_buffer.contains(tensor)) return tensor;
    const auto folded = names_.folded_from.find(tensor);
    const bool alone = folded != names_.folded_from.end() && folded->second.size() == 1;
    return alone ? folded->second[0] : "";
  }

  // By what the call was given, or by a constant.
  void Replace(NodeProto& node, int input, const std::string& by) {
    const std::string merged = node.input(input);
    if (!IsFill(merged)) return;
    const bool folded = names_.folded_from.contains(merged);
    std::string name = by;
    if (by.empty()) name = merged + "@" + node.output(0);
    if (!by.empty() && folded) {
      name = merged + "@" + by;
      names_.folded_from[name] = {by};
    }
    AddCopy(merged, name);
    node.set_input(input, name);
  }

  LoadedModel& model_;
  GraphProto& graph_;
  ModuleNames& names_;
  TensorReader& reader_;
  std::map<std::string, int> index_;  // of the file's tensors
  std::map<std::string, bool> fills_;
  std::set<std::string> known_;  // what the file had of the module
  int added_ = 0;
};

}  // namespace

int SeparateFills(LoadedModel& model, ModuleNames& names, TensorReader& reader) {
  return Separator(model, names, reader).Run();
}

}  // namespace shardc::onnx_import
