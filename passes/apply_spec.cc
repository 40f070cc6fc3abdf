#include "passes/apply_spec.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/choices.h"
#include "ir/contains.h"
#include "ir/op_def.h"
#include "passes/constrain.h"
#include "passes/counted_dims.h"
#include "passes/input_dims.h"
#include "passes/param_names.h"
#include "passes/provenance.h"
#include "passes/rule_cuts.h"
#include "passes/rule_targets.h"

namespace shardc {
namespace {

class Application {
 public:
  Application(Graph& graph, const Spec& spec) : graph_(graph), spec_(spec), cuts_(graph, spec) {}

  void Run() {
    Tensors();
    Params();
    Inputs();
    Values();
  }

 private:
  void Tensors() {
    if (spec_.tensors.empty()) return;
    std::map<std::string, Op*> params;
    for (Op* param : graph_.Params()) {
      for (std::string& name : NamesOf(*param)) params.emplace(std::move(name), param);
    }
    std::map<std::string, Value*> values;
    for (const auto& op : graph_.ops()) {
      for (Value* r : op->results) {
        if (!op->def->is_state && !op->operands.empty()) values.emplace(r->name, r);
      }
    }
    std::vector<std::string> unknown;
    std::map<const Op*, const SpecRule*> decided;
    for (const SpecRule& rule : spec_.tensors) {
      auto param = params.find(rule.match);
      auto value = values.find(rule.match);
      if (param != params.end()) {
        // Of one matrix the file may have two, the other transposed.
        const TensorType before = param->second->out();
        auto [first, is_first] = decided.emplace(param->second, &rule);
        ApplyTo(param->second, rule);
        if (!is_first && !(param->second->out() == before)) {
          throw Diagnostic("E2130", ExitCode::kBadSpec, rule.where.ToString(),
                           StrCat("'", rule.match, "' and '", first->second->match,
                                  "' are one parameter, and are cut in different ways"),
                           "choose another spec");
        }
      } else if (Value* input = graph_.FindInput(rule.match)) {
        CutInput(input, rule);
      } else if (value != values.end()) {
        value->second = ApplyOverAllAxes(value->second, rule);
      } else {
        unknown.push_back(rule.match);
      }
    }
    if (unknown.empty()) return;
    std::string list;
    for (size_t i = 0; i < unknown.size() && i < 3; ++i)
      list += (i ? ", '" : "'") + unknown[i] + "'";
    graph_.notes.push_back(
        StrCat(spec_.name, " says how ", unknown.size(), " tensors lie that are ",
               "constants or became part of larger ops (", list,
               unknown.size() > 3 ? ", ...)" : ")", ": where they are follows from the others"));
  }

  // Gives the value as the rule has it.
  Value* ApplyOverAllAxes(Value* value, const SpecRule& rule) {
    const std::string what = StrCat("tensor ", rule.match);
    Op* op = Constrain(value, cuts_.Cut(rule, value, EachDim(value->type), what), rule,
                       "where it has " + what, graph_.mesh.Names());
    if (!op) return value;
    Explain(op->result(), rule, what);
    return op->result();
  }

  void Params() {
    std::vector<Op*> params = graph_.Params();
    std::vector<bool> used(spec_.params.size()), decides(spec_.params.size());
    for (Op* param : params) {
      bool decided = false;
      for (size_t i = 0; i < spec_.params.size(); ++i) {
        const SpecRule& rule = spec_.params[i];
        if (!Matches(rule, *param)) continue;
        used[i] = true;  // also where an earlier rule decides: then it does match something
        if (decided) continue;
        decided = decides[i] = true;
        ApplyTo(param, rule);
      }
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (spec_.params[i].may_match_nothing) continue;
      if (!used[i]) NothingMatches(spec_.params[i], params);
      if (!decides[i]) NothingIsLeft(spec_.params[i], "parameters");
    }
    for (const auto& [rule, names] : as_stored_) {
      graph_.notes.push_back(
          StrCat(rule->where.ToString(), ": its dims count as in the file, which has '", names[0],
                 names.size() > 1 ? StrCat("' and ", names.size() - 1, " more") : "'",
                 " in the place of what it names: transposed, mostly"));
    }
  }

  // No error: a spec may be written so that its later rules are for other models.
  void NothingIsLeft(const SpecRule& rule, const std::string& kind) {
    graph_.notes.push_back(StrCat(rule.where.ToString(), ": this rule decides nothing: the ", kind,
                                  " that it matches have an earlier one"));
  }

  std::string RolesHere() const {
    std::vector<std::string> roles;
    for (const Op* p : graph_.Params()) {
      std::string role = p->attrs.String("role", "");
      if (!role.empty() && !Contains(roles, role)) roles.push_back(role);
    }
    return roles.empty() ? "no roles were recognised in this model; match by name"
                         : "roles in this model: " + Join(roles, ", ");
  }

  [[noreturn]] void NothingMatches(const SpecRule& rule, const std::vector<Op*>& params) {
    std::vector<std::string> names;
    for (const Op* p : params) {
      for (std::string& n : NamesOf(*p)) names.push_back(std::move(n));
    }
    std::string what, fix;
    if (!rule.match.empty()) {
      what = StrCat("no parameter matches '", rule.match, "'",
                    rule.role.empty() ? "" : " with role " + rule.role);
      fix = NearestNames(rule.match, names);
    } else {
      what = StrCat("no parameter has role ", rule.role,
                    rule.part.empty() ? "" : " and part " + rule.part);
      fix = RolesHere();
    }
    throw Diagnostic("E2102", ExitCode::kBadSpec, rule.where.ToString(), what,
                     fix + "; or set may_match_nothing");
  }

  void Explain(Value* value, const SpecRule& rule, const std::string& what) {
    for (size_t d = 0; d < value->type.sharding.dims.size(); ++d) {
      for (int axis : value->type.sharding.dims[d].axes) {
        SetProvenance(value, axis,
                      AddProvenance(graph_, -1,
                                    StrCat(rule.where.ToString(), ": ",
                                           rule.role.empty() ? "'" + rule.match + "'" : rule.role,
                                           " cuts dim ", d, " of ", what, " over ",
                                           graph_.mesh.axes()[axis].name)));
      }
    }
  }

  void ApplyTo(Op* param, const SpecRule& rule) {
    if (rule.weight_decay) param->attrs.Set("decay", *rule.weight_decay);
    if (rule.cuts.empty() && !rule.weight_decay) param->attrs.Set("whole", true);
    const std::string& name = param->attrs.String("name");
    Value* value = param->result();
    bool by_role = rule.match.empty();
    CountedDims dims = by_role ? DimsByRole(*param) : EachDim(value->type);
    if (!by_role && dims.size() == 2) {
      const NameOf matched = MatchedBy(rule, *param);
      if (matched == NameOf::kTranspose) std::swap(dims[0], dims[1]);
      if (matched == NameOf::kUnknown && !rule.cuts.empty()) as_stored_[&rule].push_back(name);
    }
    value->type.sharding = cuts_.Cut(rule, value, dims, "parameter '" + name + "'");
    Explain(value, rule, "parameter " + name);
    if (rule.output_replicate == true && !value->type.sharding.replicated()) {
      for (const Op* user : UsersOf(value)) {
        Value* out = WithBias(graph_, user);
        // The rule of the bias, or of another operand, has been here.
        if (Op* other = ConstraintOf(out)) {
          other->attrs.Set("axes", Joined(other->attrs.StringList("axes"), cuts_.AxesOf(rule)));
          continue;
        }
        Constrain(out, Sharding(out->type.shape.size()), rule,
                  "output_replicate of parameter " + name, cuts_.AxesOf(rule));
      }
    }
  }

  static Op* ConstraintOf(const Value* value) {
    for (Op* user : value->users) {
      if (user->def->constrains) return user;
    }
    return nullptr;
  }

  static Strings Joined(Strings a, const Strings& b) {
    for (const std::string& s : b) {
      if (std::find(a.begin(), a.end(), s) == a.end()) a.push_back(s);
    }
    return a;
  }

  // Behind the value, what the rule says of it: a sharding over these axes, and no word on others.
  // Null where there are none.
  Op* Constrain(Value* value, Sharding sharding, const SpecRule& rule, const std::string& why,
                Strings axes) {
    if (axes.empty()) return nullptr;
    return shardc::Constrain(graph_, value, std::move(sharding), std::move(axes),
                             StrCat(rule.where.ToString(), ": ", why));
  }

  void Inputs() {
    for (const SpecRule& rule : spec_.inputs) {
      bool matched = false;
      for (const auto& input : graph_.inputs()) matched |= GlobMatch(rule.match, input->name);
      if (matched || rule.may_match_nothing) continue;
      std::vector<std::string> names;
      for (const auto& input : graph_.inputs()) names.push_back(input->name);
      throw Diagnostic("E2102", ExitCode::kBadSpec, rule.where.ToString(),
                       StrCat("no input matches '", rule.match, "'"),
                       Choices(rule.match, "inputs", names) + "; or set may_match_nothing");
    }
    std::set<const SpecRule*> deciding;
    const std::set<const Value*> of_no_example = InputsOfNoExample(graph_);
    for (const auto& input : graph_.inputs()) {
      for (const SpecRule& rule : spec_.inputs) {
        if (!GlobMatch(rule.match, input->name)) continue;
        deciding.insert(&rule);
        // A rule for every input says nothing about scalars and what all examples share.
        const bool shared = input->type.rank() == 0 || of_no_example.contains(input.get());
        if (rule.match == "*" && shared) break;
        CutInput(input.get(), rule);
        break;
      }
    }
    for (const SpecRule& rule : spec_.inputs) {
      if (!deciding.contains(&rule) && !rule.may_match_nothing) NothingIsLeft(rule, "inputs");
    }
  }

  void CutInput(Value* input, const SpecRule& rule) {
    input->type.sharding =
        cuts_.Cut(rule, input, EachDim(input->type), "input '" + input->name + "'");
    Explain(input, rule, "input " + input->name);
  }

  void Values() {
    if (spec_.values.empty()) return;
    std::map<Value*, const SpecRule*> decided;
    for (const SpecRule& rule : spec_.values) {
      std::vector<Value*> values =
          rule.role.empty() ? ValuesOfModules(graph_, rule.match) : ValuesOfRole(graph_, rule.role);
      bool decides = false;
      for (Value* v : values) decides |= decided.emplace(v, &rule).second;
      if (rule.may_match_nothing) continue;
      if (!values.empty()) {
        if (!decides) NothingIsLeft(rule, "values");
        continue;
      }
      throw Diagnostic(
          "E2102", ExitCode::kBadSpec, rule.where.ToString(),
          rule.role.empty() ? StrCat("no module of the model matches '", rule.match, "'")
                            : StrCat("no op uses a weight of role ", rule.role),
          (rule.role.empty() ? NearestNames(rule.match, ModulesOf(graph_)) : RolesHere()) +
              "; or set may_match_nothing");
    }
    const InputDims input_dims = FindInputDims(graph_);
    for (Op* op = FirstOp(); op; op = graph_.Next(op)) {
      for (Value* v : op->results) {
        auto it = decided.find(v);
        if (it == decided.end()) continue;
        auto along = input_dims.find(v);
        SpecRule rule = *it->second;
        if (!rule.role.empty()) {
          if (along != input_dims.end()) rule = SequenceFirst(std::move(rule), along->second);
          const bool had_cuts = !rule.cuts.empty();
          std::erase_if(rule.cuts, [&](const CutDim& cut) { return IsOne(v->type, cut.dim); });
          if (had_cuts && rule.cuts.empty()) continue;
        }
        ApplyTo(v, rule);
      }
    }
  }

  // A role is for all of its values, also those of one position (a classifier's of the first token,
  // the next token's): that dim is left as it is.
  static bool IsOne(const TensorType& type, int64_t dim) {
    if (dim < 0) dim += type.rank();
    return dim >= 0 && dim < type.rank() && type.shape[dim] == 1;
  }

  // A rule for a role counts dims as [batch, sequence, width]; the model may have the sequence
  // first.
  static SpecRule SequenceFirst(SpecRule rule, const std::vector<int>& along) {
    const auto batch = std::find(along.begin(), along.end(), 0) - along.begin();
    auto sequence = std::find(along.begin(), along.end(), 1) - along.begin();
    const auto rank = std::ssize(along);
    if (batch == 0 || batch == rank) return rule;
    if (sequence == rank) sequence = 0;  // of learned queries, along no input
    if (batch < sequence) return rule;
    for (CutDim& cut : rule.cuts) {
      const auto dim = cut.dim < 0 ? cut.dim + rank : cut.dim;
      if (dim == sequence || dim == batch) {
        cut.dim = static_cast<int>(dim == sequence ? batch : sequence);
      }
    }
    return rule;
  }

  void ApplyTo(Value* value, const SpecRule& rule) {
    const std::string what = StrCat("the result of ", Describe(*value->producer));
    if (const Op* other = ConstraintOf(value)) {
      throw Diagnostic(
          "E2107", ExitCode::kBadSpec, rule.where.ToString(),
          StrCat("two rules say how ", what, " is cut: this and ", WhyOf(*other).front()),
          "remove one, or set output_replicate: false there");
    }
    Sharding sharding = cuts_.Cut(rule, value, EachDim(value->type), what);
    const std::string why =
        (rule.role.empty() ? "'" + rule.match + "'" : rule.role) + " cuts " + what;
    if (Op* op = Constrain(value, std::move(sharding), rule, why, cuts_.AxesOf(rule))) {
      if (!rule.role.empty()) op->attrs.Set("role", rule.role);
      Explain(op->result(), rule, what);
    }
  }

  Op* FirstOp() const { return graph_.ops().empty() ? nullptr : graph_.ops().front().get(); }

  Graph& graph_;
  const Spec& spec_;
  RuleCuts cuts_;
  // Parameters by the rule that matches what they were made of.
  std::map<const SpecRule*, std::vector<std::string>> as_stored_;
};

}  // namespace

void ApplySpec(Graph& graph, const Spec& spec) { Application(graph, spec).Run(); }

}  // namespace shardc
