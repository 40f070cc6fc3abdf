#include "ir/verifier.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ir/movement.h"
#include "ir/op_def.h"
#include "ir/rule_check.h"
#include "ir/utf8.h"

namespace shardc {
namespace {

[[noreturn]] void Fail(std::string where, std::string what) {
  throw Diagnostic("E7003", ExitCode::kBadModel, std::move(where), std::move(what));
}

std::string_view KindName(AttrKind kind) {
  constexpr std::string_view kNames[] = {
      "an integer",         "a float",           "a bool",  "a string",
      "a list of integers", "a list of strings", "a tensor"};
  return kNames[static_cast<int>(kind)];
}

class Verifier {
 public:
  Verifier(const Graph& graph, bool closed) : graph_(graph), mesh_(graph.mesh), closed_(closed) {
    uses_.reserve(2 * graph.num_ops());
  }

  void Run() {
    CheckInputs();
    for (const auto& op : graph_.ops()) {
      if (op->def->is_state) CollectState(*op);
      ++index_;
    }
    index_ = 0;
    for (const auto& op : graph_.ops()) {
      CheckOp(*op);
      ++index_;
    }
    CheckOutputs();
    for (const auto& [value, uses] : uses_) {
      if (value->users.size() == uses) continue;
      Fail(value->producer ? std::string(value->producer->name()) : value->name,
           StrCat("a value lists ", value->users.size(), " uses but has ", uses));
    }
  }

 private:
  std::string Where(const Op& op) const {
    std::string where =
        StrCat(op.line > 0 ? StrCat("line ", op.line) : StrCat("op ", index_), ": ", op.name());
    if (const Attribute* name = op.attrs.Find("name");
        name && std::holds_alternative<std::string>(*name)) {
      where += " \"" + std::get<std::string>(*name) + "\"";
    }
    return op.site.empty() ? where : where + " in " + op.site;
  }

  void CheckInputs() {
    std::unordered_set<std::string_view> names;
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      const Value& v = *graph_.inputs()[i];
      std::string where = "input '" + v.name + "'";
      if (!names.insert(v.name).second) Fail(where, "two inputs have this name");
      if (!IsUtf8(v.name)) Fail(where, "the name is not UTF-8");
      if (v.producer || v.index != static_cast<int>(i)) Fail(where, "is not in its place");
      if (auto wrong = WrongSharding(v.type)) Fail(where, *wrong);
      uses_.emplace(&v, 0);
    }
  }

  void CollectState(const Op& op) {
    CheckAttributes(op);
    if (op.results.size() != 1) Fail(Where(op), "has not exactly one result");
    CheckDimsOf(op);
    if (!IsUtf8(op.attrs.String("name"))) Fail(Where(op), "the name is not UTF-8");
    if (!states_.emplace(op.attrs.String("name"), &op).second) {
      Fail(Where(op), "another parameter or state has this name");
    }
  }

  // The attributes of a param or state that say something of its dims.
  void CheckDimsOf(const Op& op) const {
    const Attributes& attrs = op.attrs;
    const Shape& shape = op.out().shape;
    const auto is_dim = [&](int64_t d) { return d >= 0 && d < std::ssize(shape); };
    for (const std::string_view name : {"rows", "columns"}) {
      if (!attrs.Has(name)) continue;
      const Ints& dims = attrs.IntList(name);
      const bool none = dims.empty() && name == "columns";
      if (none || !std::all_of(dims.begin(), dims.end(), is_dim)) {
        Fail(Where(op), StrCat("attribute '", name, "' has to name dims of ", shape.size()));
      }
    }
    if (attrs.Has("stacked")) {
      const Ints& stacked = attrs.IntList("stacked");
      if (stacked.size() != 2 || !is_dim(stacked[0]) || stacked[1] < 1 ||
          shape[static_cast<size_t>(stacked[0])] % stacked[1] != 0) {
        Fail(Where(op), "attribute 'stacked' has to name a dim and a number that divides it");
      }
    }
    if (attrs.Has("transpose_of") && shape.size() != 2) {
      Fail(Where(op), "attribute 'transpose_of' is for a matrix");
    }
    if (!attrs.Has("piece_of")) return;
    for (const char* name : {"piece_dim", "piece_start", "whole_size"}) {
      if (!attrs.Has(name)) Fail(Where(op), StrCat("lacks its attribute '", name, "'"));
    }
    const int64_t dim = attrs.Int("piece_dim"), start = attrs.Int("piece_start");
    const int64_t whole = attrs.Int("whole_size");
    if (!is_dim(dim) || start < 0 || start > whole ||
        whole - start < shape[static_cast<size_t>(dim)]) {
      Fail(Where(op), StrCat("is no piece from ", start, " of ", whole, " along dim ", dim));
    }
  }

  std::optional<std::string> WrongSharding(const TensorType& type) const {
    const Sharding& s = type.sharding;
    if (s.dims.size() != type.shape.size()) {
      return StrCat("a tensor of ", type.shape.size(), " dims has shardings for ", s.dims.size());
    }
    bool known = Known(s.partial_sum) && Known(s.partial_max);
    for (const DimSharding& d : s.dims) known = known && Known(d.axes);
    if (!known) return "a sharding names an axis that the mesh does not have";
    try {
      CheckSharding(type, mesh_, "");
    } catch (const Diagnostic& d) {
      return StrCat(TypeToString(type, mesh_), ": ", d.message());
    }
    return std::nullopt;
  }

  bool Known(const AxisList& axes) const {
    return std::all_of(axes.begin(), axes.end(), [&](int a) { return a < mesh_.num_axes(); });
  }

  void CheckAttributes(const Op& op) const {
    for (const auto& [name, value] : op.attrs.entries()) {
      const auto& specs = op.def->attrs;
      auto spec = std::find_if(specs.begin(), specs.end(),
                               [&, &n = name](const AttrSpec& s) { return s.name == n; });
      if (spec == specs.end()) Fail(Where(op), StrCat("has an unknown attribute '", name, "'"));
      if (!IsOfKind(value, spec->kind)) {
        Fail(Where(op), StrCat("attribute '", name, "' is not ", KindName(spec->kind)));
      }
    }
    for (const AttrSpec& spec : op.def->attrs) {
      if (spec.required && !op.attrs.Has(spec.name)) {
        Fail(Where(op), StrCat("lacks its attribute '", spec.name, "'"));
      }
    }
  }

  void CheckOp(const Op& op) {
    CheckOperands(op);
    CheckResults(op);
    CheckStage(op);
    if (!LikeBefore(op)) {
      CheckAttributes(op);
      CheckTypes(op);
      if (closed_ && op.def->rule) {
        if (auto wrong = DisagreementWithRule(op, mesh_)) Fail(Where(op), *wrong);
      }
    }
    if (op.name() == "update") CheckUpdate(op);
  }

  void CheckResults(const Op& op) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      const Value* r = op.results[i];
      bool in_place = r && r->producer == &op && r->index == static_cast<int>(i);
      if (!in_place || !uses_.emplace(r, 0).second) {
        Fail(Where(op), StrCat("result ", i, " does not know where it comes from"));
      }
    }
  }

  void CheckStage(const Op& op) const {
    if (graph_.pipeline_axis.empty()) return;
    const int64_t stages = mesh_.axis_size(*mesh_.FindAxis(graph_.pipeline_axis));
    if (op.stage >= stages) {
      Fail(Where(op), StrCat("is on stage ", op.stage, " of a pipeline of ", stages));
    }
    if (op.virtual_stage >= static_cast<int64_t>(graph_.num_ops())) {
      Fail(Where(op), StrCat("is on virtual stage ", op.virtual_stage, ": there are fewer ops"));
    }
  }

  void CheckOperands(const Op& op) {
    int n = static_cast<int>(op.operands.size());
    if (!op.def->Takes(op.operands.size())) Fail(Where(op), StrCat("has ", n, " operands"));
    for (int i = 0; i < n; ++i) {
      auto it = uses_.find(op.operands[i]);
      if (it == uses_.end()) Fail(Where(op), StrCat("operand ", i, " is used before it is made"));
      ++it->second;
    }
  }

  // Layers repeat: an op that is the same in all that inference and rules look at need not be
  // checked again. One op is remembered per hash, so that this stays linear.
  bool LikeBefore(const Op& op) {
    if (!op.def->rule) return false;
    size_t hash = std::hash<const void*>()(op.def);
    auto mix = [&](size_t n) { hash = (hash ^ n) * 0x9e3779b97f4a7c15 + (hash >> 29); };
    auto mix_type = [&](const TensorType& t) {
      for (int64_t n : t.shape) mix(static_cast<size_t>(n));
      mix(static_cast<size_t>(t.dtype));
      for (const DimSharding& d : t.sharding.dims) mix(d.cut() ? d.axes[0] + 1 : 0);
    };
    for (const Value* v : op.operands) mix_type(v->type);
    for (const Value* v : op.results) mix_type(v->type);
    const Op*& last = checked_[hash];
    bool same = last && last->def == op.def && last->attrs == op.attrs &&
                SameTypes(last->operands, op.operands) && SameTypes(last->results, op.results);
    last = &op;
    return same;
  }

  static bool SameTypes(const std::vector<Value*>& a, const std::vector<Value*>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Value* x, const Value* y) { return x->type == y->type; });
  }

  void CheckTypes(const Op& op) const {
    for (const Value* r : op.results) {
      if (auto wrong = WrongSharding(r->type)) Fail(Where(op), *wrong);
    }
    if (!op.def->infer) return;
    std::vector<TensorType> inferred;
    try {
      inferred = InferResults(*op.def, op.operands, op.attrs);
    } catch (const Diagnostic& d) {
      Fail(Where(op), d.message());
    }
    bool same = inferred.size() == op.results.size();
    if (!same) {
      Fail(Where(op), StrCat("has ", op.results.size(), " results, not ", inferred.size()));
    }
    for (size_t i = 0; i < inferred.size(); ++i) {
      const TensorType& stated = op.results[i]->type;
      if (inferred[i].SameTensor(stated)) continue;
      Fail(Where(op), StrCat("result ", i, " is ", TypeToString(inferred[i], mesh_), ", not ",
                             TypeToString(stated, mesh_)));
    }
    if (auto wrong = WrongMovement(op, mesh_)) Fail(Where(op), *wrong);
  }

  void CheckUpdate(const Op& op) {
    const std::string& name = op.attrs.String("name");
    auto it = states_.find(name);
    if (it == states_.end()) Fail(Where(op), "there is no parameter or state of this name");
    const TensorType &state = it->second->out(), &value = op.in(0);
    if (!state.SameTensor(value) ||
        (closed_ && Canonical(state, mesh_) != Canonical(value, mesh_))) {
      Fail(Where(op), StrCat("the value is ", TypeToString(value, mesh_), " but the state is ",
                             TypeToString(state, mesh_)));
    }
    if (!updated_.emplace(name, op.stage).second) Fail(Where(op), "it is updated twice");
  }

  void CheckOutputs() const {
    std::unordered_set<std::string_view> names;
    for (const Output& o : graph_.outputs) {
      std::string where = "output '" + o.name + "'";
      if (!names.insert(o.name).second) Fail(where, "two outputs have this name");
      if (!IsUtf8(o.name)) Fail(where, "the name is not UTF-8");
      if (!uses_.contains(o.value)) Fail(where, "its value is not in the graph");
    }
  }

  const Graph& graph_;
  const Mesh& mesh_;
  bool closed_;
  int index_ = 0;                                  // of the op at hand
  std::unordered_map<const Value*, size_t> uses_;  // of the values made so far
  std::unordered_map<std::string_view, const Op*> states_;
  std::set<std::pair<std::string_view, int>> updated_;  // states, on stages
  std::unordered_map<size_t, const Op*> checked_;
};

}  // namespace

void VerifyGraph(const Graph& graph, bool closed_shardings) {
  Verifier(graph, closed_shardings).Run();
}

}  // namespace shardc
