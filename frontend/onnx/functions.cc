#include "frontend/onnx/functions.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "frontend/onnx/names.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

using onnx::AttributeProto;
using onnx::FunctionProto;
using onnx::GraphProto;
using onnx::NodeProto;
using Nodes = google::protobuf::RepeatedPtrField<NodeProto>;
using Attrs = std::map<std::string, const AttributeProto*>;

// Functions that call functions twice each grow exponentially, also where no node is left in the
// end.
constexpr int64_t kMaxNodes = 250'000;
constexpr int kMaxDepth = 64;

std::string KeyOf(const std::string& domain, const std::string& name, const std::string& overload) {
  return NormalDomain(domain) + "::" + name + (overload.empty() ? "" : ":" + overload);
}

std::string KeyOf(const FunctionProto& f) {
  return KeyOf(f.domain(), f.name(), TextOf(f, kFunctionOverload));
}

// The first node, of a branch too, that means something else in one of the opsets than in the other
// though it has the same attributes and inputs; null: there is none.
const NodeProto* MeaningOther(const Nodes& nodes, int a, int b) {
  static const std::map<std::string_view, int> kChanged = {
      {"LogSoftmax", 13}, {"Resize", 11}, {"Softmax", 13}};
  for (const NodeProto& node : nodes) {
    for (const AttributeProto& attr : node.attribute()) {
      const NodeProto* inner = attr.has_g() ? MeaningOther(attr.g().node(), a, b) : nullptr;
      if (inner != nullptr) return inner;
    }
    if (!NormalDomain(node.domain()).empty()) continue;
    const auto changed = kChanged.find(node.op_type());
    if (changed != kChanged.end() && (a < changed->second) != (b < changed->second)) return &node;
  }
  return nullptr;
}

class Inliner {
 public:
  explicit Inliner(LoadedModel& model) : model_(model) {
    for (const FunctionProto& f : model.proto.functions()) {
      if (!functions_.emplace(KeyOf(f), &f).second) {
        throw Diagnostic("E1305", ExitCode::kBadModel, model.path,
                         StrCat("has two functions called '", KeyOf(f), "'"));
      }
      for (const auto& opset : f.opset_import()) {
        int version = static_cast<int>(std::min<int64_t>(opset.version(), 1 << 30));
        model.opsets.try_emplace(NormalDomain(opset.domain()), version);
      }
    }
    for (const auto& t : model.proto.graph().initializer()) tensors_.insert(t.name());
  }

  void Run() {
    if (!functions_.empty()) InlineIn(*model_.proto.mutable_graph()->mutable_node());
  }

 private:
  [[noreturn]] void Fail(const NodeProto& call, const std::string& what) const {
    throw Diagnostic("E1305", ExitCode::kBadModel,
                     StrCat(model_.path, ": node '", call.name(), "' (", call.op_type(), ")"),
                     what);
  }

  void InlineIn(Nodes& nodes) {
    Nodes out;
    for (NodeProto& node : nodes) Emit(std::move(node), out);
    nodes.Swap(&out);
  }

  void Emit(NodeProto node, Nodes& out) {
    auto f = functions_.find(KeyOf(node.domain(), node.op_type(), TextOf(node, kNodeOverload)));
    if (f != functions_.end()) return Call(node, *f->second, out);
    for (AttributeProto& attr : *node.mutable_attribute()) {
      if (attr.has_g()) InlineIn(*attr.mutable_g()->mutable_node());
      for (GraphProto& g : *attr.mutable_graphs()) InlineIn(*g.mutable_node());
    }
    if (++num_nodes_ > kMaxNodes) Fail(node, "the model's functions make too many nodes");
    *out.Add() = std::move(node);
  }

  void Call(const NodeProto& call, const FunctionProto& f, Nodes& out) {
    std::string key = KeyOf(f);
    if (!active_.insert(key).second) Fail(call, "the function calls itself");
    if (active_.size() > kMaxDepth) Fail(call, "functions call each other too deeply");
    if (++num_calls_ > kMaxNodes) Fail(call, "the model's functions make too many calls");
    if (call.input_size() > f.input_size() || call.output_size() > f.output_size()) {
      Fail(call, StrCat("gives ", call.input_size(), " inputs and ", call.output_size(),
                        " outputs; the function has ", f.input_size(), " and ", f.output_size()));
    }
    // An input that the call leaves out is "" inside too.
    std::map<std::string, std::string> names;
    for (int i = 0; i < f.input_size(); ++i) {
      names[f.input(i)] = i < call.input_size() ? call.input(i) : "";
    }
    const std::string called =
        StrCat(AfterLast(call.name().empty() ? f.name() : call.name(), "/:"), "#", num_calls_);
    const std::string module = ModuleOfCall(call);
    std::string place = module.empty() ? "" : "/" + module + "/";
    std::ranges::replace(place, '.', '/');
    const std::string prefix = place + called + "/";
    std::vector<std::pair<std::string, std::string>> same;  // an input that is an output
    for (int i = 0; i < call.output_size(); ++i) {
      if (call.output(i).empty()) continue;
      auto [it, is_new] = names.try_emplace(f.output(i), call.output(i));
      if (!is_new) same.emplace_back(it->second, call.output(i));
    }
    Attrs attrs = Attributes(call, f);
    const int own = OpsetOf(f), of_model = model_.opsets.at("");
    if (const NodeProto* other = MeaningOther(f.node(), own, of_model)) {
      Fail(call, StrCat("the function's ", other->op_type(), " is one of opset ", own,
                        ", the model's of opset ", of_model, ", where it means something else"));
    }
    for (const NodeProto& inner : f.node()) {
      NodeProto node = inner;
      Rename(node, names, prefix, attrs);
      node.set_name(place + called + (place.empty() ? "/" : ":") + inner.name());
      Emit(std::move(node), out);
    }
    for (const auto& [from, to] : same) {
      NodeProto* identity = out.Add();
      identity->set_op_type("Identity");
      identity->add_input(from);
      identity->add_output(to);
    }
    active_.erase(key);
  }

  // Of the default domain, as the function says, or else the model.
  int OpsetOf(const FunctionProto& f) const {
    for (const auto& opset : f.opset_import()) {
      if (NormalDomain(opset.domain()).empty())
        return static_cast<int>(std::clamp<int64_t>(opset.version(), 0, 1 << 30));
    }
    return model_.opsets.at("");
  }

  static std::string AfterLast(const std::string& name, std::string_view separators) {
    const size_t last = name.find_last_of(separators);
    return last == name.npos ? name : name.substr(last + 1);
  }

  // The module that a function was made of: what the names of the tensors begin with that it is
  // given, or else the module of which the call is a part.
  std::string ModuleOfCall(const NodeProto& call) const {
    std::optional<std::string> common;
    for (const std::string& input : call.input()) {
      const size_t end = tensors_.contains(input) ? input.rfind('.') : input.npos;
      if (end == input.npos || end == 0) continue;
      const std::string module = input.substr(0, end);
      common = common ? CommonModule(*common, module) : module;
    }
    return common ? *common : ModuleOf(call);
  }

  static std::string CommonModule(const std::string& a, const std::string& b) {
    const std::string x = a + ".", y = b + ".";
    const auto same = std::ranges::mismatch(x, y).in1 - x.begin();
    const size_t end = x.rfind('.', same > 0 ? same - 1 : 0);
    return end == x.npos ? "" : x.substr(0, end);
  }

  Attrs Attributes(const NodeProto& call, const FunctionProto& f) const {
    Attrs attrs;
    for (const AttributeProto& a : Defaults(f)) attrs[a.name()] = &a;
    for (const AttributeProto& a : call.attribute()) attrs[a.name()] = &a;
    return attrs;
  }

  const std::vector<AttributeProto>& Defaults(const FunctionProto& f) const {
    auto [it, is_new] = defaults_.try_emplace(&f);
    if (!is_new) return it->second;
    for (const std::string& bytes : RepeatedMessages(f, kFunctionDefaults)) {
      AttributeProto attr;
      if (attr.ParseFromString(bytes)) it->second.push_back(std::move(attr));
    }
    return it->second;
  }

  using Names = std::map<std::string, std::string>;

  static std::string NewName(const std::string& name, Names& names, const std::string& prefix) {
    if (name.empty()) return name;
    return names.try_emplace(name, prefix + name).first->second;
  }

  void Rename(NodeProto& node, Names& names, const std::string& prefix, const Attrs& attrs) const {
    for (std::string& name : *node.mutable_input()) name = NewName(name, names, prefix);
    for (std::string& name : *node.mutable_output()) name = NewName(name, names, prefix);
    google::protobuf::RepeatedPtrField<AttributeProto> kept;
    for (AttributeProto& attr : *node.mutable_attribute()) {
      if (!attr.ref_attr_name().empty()) {
        auto given = attrs.find(attr.ref_attr_name());
        if (given == attrs.end()) continue;  // absent, as the op's default
        std::string name = attr.name();
        attr = *given->second;
        attr.set_name(name);
      } else {
        if (attr.has_g()) Rename(*attr.mutable_g(), names, prefix, attrs);
        for (GraphProto& g : *attr.mutable_graphs()) Rename(g, names, prefix, attrs);
      }
      *kept.Add() = std::move(attr);
    }
    node.mutable_attribute()->Swap(&kept);
  }

  void Rename(GraphProto& graph, Names& names, const std::string& prefix,
              const Attrs& attrs) const {
    for (auto& t : *graph.mutable_initializer()) t.set_name(NewName(t.name(), names, prefix));
    for (auto& v : *graph.mutable_input()) v.set_name(NewName(v.name(), names, prefix));
    for (NodeProto& node : *graph.mutable_node()) Rename(node, names, prefix, attrs);
    for (auto& v : *graph.mutable_output()) v.set_name(NewName(v.name(), names, prefix));
  }

  LoadedModel& model_;
  std::map<std::string, const FunctionProto*> functions_;
  mutable std::map<const FunctionProto*, std::vector<AttributeProto>> defaults_;
  std::set<std::string> tensors_;
  std::set<std::string> active_;
  int64_t num_calls_ = 0;
  int64_t num_nodes_ = 0;
};

}  // namespace

void InlineFunctions(LoadedModel& model) { Inliner(model).Run(); }

}  // namespace shardc::onnx_import
