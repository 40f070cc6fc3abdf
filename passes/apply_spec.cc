#include "passes/apply_spec.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/builder.h"
#include "ir/choices.h"
#include "ir/op_def.h"
#include "passes/counted_dims.h"
#include "passes/input_dims.h"
#include "passes/layout.h"
#include "passes/param_names.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

// Whether the file has the parameter transposed under this name.
bool IsTransposedName(const Op& param, const std::string& name) {
  if (!param.attrs.Has("transposed_aliases")) return false;
  const Strings& across = param.attrs.StringList("transposed_aliases");
  return std::find(across.begin(), across.end(), name) != across.end();
}

// Whether all names that match are such.
bool MatchesTransposed(const SpecRule& rule, const Op& param) {
  auto names = NamesOf(param);
  return std::all_of(names.begin(), names.end(), [&](const std::string& n) {
    return !GlobMatch(rule.match, n) || IsTransposedName(param, n);
  });
}

bool Matches(const SpecRule& rule, const Op& param) {
  if (!rule.role.empty() && param.attrs.String("role", "") != rule.role) return false;
  if (!rule.part.empty() && param.attrs.String("part", "weight") != rule.part) return false;
  if (rule.match.empty()) return true;
  auto names = NamesOf(param);
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& n) { return GlobMatch(rule.match, n); });
}

class Application {
 public:
  Application(Graph& graph, const Spec& spec) : graph_(graph), spec_(spec) {}

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
                                  "' are one parameter, and are cut in different ways"));
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
    Strings axes;
    for (const MeshAxis& axis : graph_.mesh.axes()) axes.push_back(axis.name);
    Op* op = Constrain(value, Cut(rule, value, EachDim(value->type), what), rule,
                       "where it has " + what, std::move(axes));
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
  }

  // No error: a spec may be written so that its later rules are for other models.
  void NothingIsLeft(const SpecRule& rule, const std::string& kind) {
    graph_.notes.push_back(StrCat("spec ", rule.where.ToString(),
                                  ": this rule decides nothing: the ", kind,
                                  " that it matches have an earlier one"));
  }

  std::string RolesHere() const {
    std::string roles;
    for (const Op* p : graph_.Params()) {
      std::string role = p->attrs.String("role", "");
      if (!role.empty() && roles.find(role) == std::string::npos) {
        roles += (roles.empty() ? "" : ", ") + role;
      }
    }
    return roles.empty() ? "no roles were recognised in this model; match by name"
                         : "roles in this model: " + roles;
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

  // Mesh index of an axis; nothing when it is declared in the spec and absent (size 1).
  std::optional<int> Axis(const SpecRule& rule, const std::string& name) const {
    if (auto a = graph_.mesh.FindAxis(name)) return a;
    for (const MeshAxis& a : spec_.mesh) {
      if (a.name == name) return std::nullopt;
    }
    std::vector<std::string> names;
    for (const MeshAxis& a : graph_.mesh.axes()) names.push_back(a.name);
    const std::string guess = DidYouMean(name, names);
    throw Diagnostic("E2104", ExitCode::kBadSpec, rule.where.ToString(),
                     graph_.mesh.num_axes() == 0
                         ? StrCat("axis '", name, "', and there is no mesh")
                         : StrCat("axis '", name, "' is not in the mesh ", graph_.mesh.ToString()),
                     StrCat("add it to --mesh, or declare it in the spec's mesh",
                            guess.empty() ? "" : "; ", guess));
  }

  // The sharding that a rule gives a tensor, whose dims it counts so.
  Sharding Cut(const SpecRule& rule, const Value* value, const CountedDims& counted,
               const std::string& what) {
    const TensorType& type = value->type;
    const auto rank = static_cast<int>(counted.size());
    Sharding sharding(type.shape.size());
    for (const CutDim& cut : rule.cuts) {
      auto axis = Axis(rule, cut.axis);
      if (cut.dim < -rank || cut.dim >= rank) {
        throw Diagnostic(
            "E2103", ExitCode::kBadSpec, rule.where.ToString(),
            StrCat("dim ", cut.dim, " of ", what, ", which has the shape ",
                   ShapeToString(type.shape)),
            rank == 0 ? "a scalar cannot be cut; match less"
                      : StrCat("name a dim from ", -rank, " to ", rank - 1, ", or match less"));
      }
      if (!axis || graph_.mesh.axis_size(*axis) == 1) continue;
      const Ints& dims = counted[static_cast<size_t>(cut.dim < 0 ? cut.dim + rank : cut.dim)];
      const int64_t ranks = graph_.mesh.axis_size(*axis);
      if (IsTooFine(value, dims, ranks)) {
        StaysWhole(rule, cut, what, ranks);
        continue;
      }
      const auto dim = static_cast<size_t>(DimToCutOf(value, dims, ranks));
      DimSharding& d = sharding.dims[dim];
      if (!d.axes.empty() && d.axes.back() > *axis) {
        throw Diagnostic("E2105", ExitCode::kBadSpec, rule.where.ToString(),
                         StrCat("the axes of dim ", cut.dim, " of ", what,
                                " are not in the order of the mesh ", graph_.mesh.ToString()),
                         "list the axes of a dim in mesh order, or reorder --mesh");
      }
      if (d.axes.size() == AxisList::kMax) {
        throw Diagnostic("E2105", ExitCode::kBadSpec, rule.where.ToString(),
                         StrCat("dim ", cut.dim, " of ", what, " is cut over more than ",
                                int{AxisList::kMax}, " axes"),
                         "join axes of the mesh");
      }
      d.axes.push_back(*axis);
      if (cut.size > 0 && cut.size != type.shape[dim]) {
        throw Diagnostic("E2130", ExitCode::kBadSpec, rule.where.ToString(),
                         StrCat("dim ", cut.dim, " of ", what, " has ", type.shape[dim],
                                " elements, and is said to have ", cut.size));
      }
      if (d.axes.size() > 1 && cut.balanced_segments == 1 &&
          (d.segments != cut.segments || d.granule != cut.granule)) {
        throw Diagnostic("E2130", ExitCode::kBadSpec, rule.where.ToString(),
                         StrCat("dim ", cut.dim, " of ", what, " is cut in two ways"));
      }
      d.segments =
          cut.segments.empty() ? BalancedSegments(rule, cut, type.shape[dim]) : cut.segments;
      d.granule = cut.granule;
      int64_t parts = NumParts(d, graph_.mesh);
      if (type.shape[dim] < parts && !IsShared(value, dim, parts)) {
        throw Diagnostic("E2106", ExitCode::kBadSpec, rule.where.ToString(),
                         StrCat("dim ", cut.dim, " of ", what, " has ", type.shape[dim],
                                type.shape[dim] == 1 ? " element" : " elements",
                                " and cannot be cut into ", parts, " parts"),
                         "use a smaller axis, or leave this tensor whole");
      }
    }
    TensorType cut(type.dtype, type.shape, sharding);
    CheckSharding(cut, graph_.mesh, StrCat(rule.where.ToString(), ": ", what));
    return Canonical(cut, graph_.mesh);
  }

  std::vector<int64_t> BalancedSegments(const SpecRule& rule, const CutDim& cut, int64_t size) {
    auto ranks = [&](const CutDim& c) {
      const auto axis = Axis(rule, c.axis);
      return axis ? graph_.mesh.axis_size(*axis) : int64_t{1};
    };
    if (cut.balanced_segments == 1 || ranks(rule.cuts[0]) == 1) return {};
    int64_t parts = 1;
    for (const CutDim& other : rule.cuts) parts *= ranks(other);
    const int64_t n = std::min<int64_t>(cut.balanced_segments, size / parts);
    if (n < 2 || !HasStretchOf(size)) return {};
    // Whole shares of the ranks each, but for the last: padded no more than one stretch is.
    const int64_t shares = (size + parts - 1) / parts;
    std::vector<int64_t> segments;
    for (int64_t i = 0; i < n; ++i) segments.push_back(parts * ((shares + i) / n));
    segments.back() -= shares * parts - size;
    return segments;
  }

  // Whether some op must have one stretch of a dim of this size: the later it is, the more to do.
  bool HasStretchOf(int64_t size) {
    if (!stretches_) {
      stretches_.emplace();
      for (const auto& op : graph_.ops()) {
        if (!op->def->rule) continue;
        for (const Factor& f : op->def->rule(*op).factors) {
          if (f.contiguous) stretches_->insert(f.size);
        }
      }
    }
    return stretches_->contains(size);
  }

  void StaysWhole(const SpecRule& rule, const CutDim& cut, const std::string& what, int64_t parts) {
    if (!too_fine_.insert(&rule).second) return;
    graph_.notes.push_back(StrCat("spec ", rule.where.ToString(), ": ", what,
                                  " stays whole, as others may: what stands for dim ", cut.dim,
                                  " of it are dims of less than ", parts, " elements"));
  }

  void Explain(Value* value, const SpecRule& rule, const std::string& what) {
    for (size_t d = 0; d < value->type.sharding.dims.size(); ++d) {
      for (int axis : value->type.sharding.dims[d].axes) {
        SetProvenance(value, axis,
                      AddProvenance(graph_, -1,
                                    StrCat("spec ", rule.where.ToString(), ": ",
                                           rule.role.empty() ? "'" + rule.match + "'" : rule.role,
                                           " cuts dim ", d, " of ", what, " over ",
                                           graph_.mesh.axes()[axis].name)));
      }
    }
  }

  void ApplyTo(Op* param, const SpecRule& rule) {
    if (rule.weight_decay) param->attrs.Set("decay", *rule.weight_decay);
    const std::string& name = param->attrs.String("name");
    Value* value = param->result();
    bool by_role = rule.match.empty();
    CountedDims dims = by_role ? DimsByRole(*param) : EachDim(value->type);
    if (!by_role && dims.size() == 2 && MatchesTransposed(rule, *param)) {
      std::swap(dims[0], dims[1]);
    }
    value->type.sharding = Cut(rule, value, dims, "parameter '" + name + "'");
    Explain(value, rule, "parameter " + name);
    if (rule.output_replicate == true && !value->type.sharding.replicated()) {
      for (const Op* user : UsersOf(value)) {
        Value* out = WithBias(user);
        // The rule of the bias, or of another operand, has been here.
        if (Op* other = ConstraintOf(out)) {
          other->attrs.Set("axes", Joined(other->attrs.StringList("axes"), AxesOf(rule)));
          continue;
        }
        Constrain(out, Sharding(out->type.shape.size()), rule,
                  "output_replicate of parameter " + name, AxesOf(rule));
      }
    }
  }

  // The result of the op, and of the bias that follows it.
  Value* WithBias(const Op* op) const {
    Value* out = op->result();
    for (const Op* add = graph_.OnlyUser(out); add && add->name() == "add";
         add = graph_.OnlyUser(out)) {
      const Value* other = add->operands[add->operands[0] == out];
      if (!other->producer || other->producer->name() != "param" || other->type.rank() != 1) break;
      out = add->result();
    }
    return out;
  }

  static Op* ConstraintOf(const Value* value) {
    for (Op* user : value->users) {
      if (user->def->constrains) return user;
    }
    return nullptr;
  }

  // The axes of the mesh that the rule names.
  Strings AxesOf(const SpecRule& rule) const {
    Strings axes;
    for (const CutDim& cut : rule.cuts) {
      if (Axis(rule, cut.axis)) axes = Joined(std::move(axes), {cut.axis});
    }
    return axes;
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
    Op* op = graph_.AddOp(GetOpDef("sharding_constraint"), {},
                          {TensorType(value->type.dtype, value->type.shape, std::move(sharding))},
                          {{"axes", std::move(axes)},
                           {"why", Strings{StrCat("spec ", rule.where.ToString(), ": ", why)}}},
                          graph_.Next(value->producer), *value->producer);
    graph_.ReplaceAllUses(value, op->result());
    graph_.AppendOperand(op, value);
    return op;
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
    input->type.sharding = Cut(rule, input, EachDim(input->type), "input '" + input->name + "'");
    Explain(input, rule, "input " + input->name);
  }

  void Values() {
    if (spec_.values.empty()) return;
    std::map<Value*, const SpecRule*> decided;
    for (const SpecRule& rule : spec_.values) {
      std::vector<Value*> values = rule.role.empty() ? OfModules(rule.match) : OfRole(rule.role);
      bool decides = false;
      for (Value* v : values) decides |= decided.emplace(v, &rule).second;
      if (rule.may_match_nothing) continue;
      if (!values.empty()) {
        if (!decides) NothingIsLeft(rule, "values");
        continue;
      }
      throw Diagnostic("E2102", ExitCode::kBadSpec, rule.where.ToString(),
                       rule.role.empty()
                           ? StrCat("no module of the model matches '", rule.match, "'")
                           : StrCat("no op uses a weight of role ", rule.role),
                       (rule.role.empty() ? NearestNames(rule.match, Modules()) : RolesHere()) +
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
    return dim >= 0 && dim < type.rank() && type.shape[static_cast<size_t>(dim)] == 1;
  }

  // A rule for a role counts dims as [batch, sequence, width]; the model may have the sequence
  // first.
  static SpecRule SequenceFirst(SpecRule rule, const std::vector<int>& along) {
    const auto batch = std::find(along.begin(), along.end(), 0) - along.begin();
    const auto sequence = std::find(along.begin(), along.end(), 1) - along.begin();
    const auto rank = std::ssize(along);
    if (batch == rank || batch < sequence) return rule;
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
    Sharding sharding = Cut(rule, value, EachDim(value->type), what);
    const std::string why =
        (rule.role.empty() ? "'" + rule.match + "'" : rule.role) + " cuts " + what;
    if (Op* op = Constrain(value, std::move(sharding), rule, why, AxesOf(rule))) {
      Explain(op->result(), rule, what);
    }
  }

  Op* FirstOp() const { return graph_.ops().empty() ? nullptr : graph_.ops().front().get(); }

  // Every module that an op is in: "a.b.c", "a.b" and "a".
  static std::vector<std::string> ModulesOf(const Op& op) {
    std::vector<std::string> modules;
    for (size_t end = op.site.size(); end != std::string::npos && end > 0;
         end = op.site.rfind('.', end - 1)) {
      modules.push_back(op.site.substr(0, end));
    }
    return modules;
  }

  std::vector<std::string> Modules() const {
    std::set<std::string> modules;
    for (const auto& op : graph_.ops()) {
      for (std::string& m : ModulesOf(*op)) modules.insert(std::move(m));
    }
    return {modules.begin(), modules.end()};
  }

  // The values that are made in a module of such a name and used outside of it.
  std::vector<Value*> OfModules(const std::string& match) const {
    std::vector<Value*> values;
    for (const auto& op : graph_.ops()) {
      if (op->def->is_state || op->def->constrains || op->operands.empty()) continue;
      for (const std::string& module : ModulesOf(*op)) {
        if (!GlobMatch(match, module)) continue;
        for (Value* r : op->results) {
          // Scalars are a loss and its parts: nothing to cut.
          if (r->type.rank() > 0 && Leaves(r, module)) values.push_back(r);
        }
      }
    }
    return values;
  }

  bool Leaves(const Value* value, const std::string& module) const {
    if (graph_.IsOutput(value)) return true;
    return std::any_of(value->users.begin(), value->users.end(), [&](const Op* user) {
      if (user->def->constrains) return Leaves(user->result(), module);
      return user->site != module && !user->site.starts_with(module + ".");
    });
  }

  std::vector<Value*> OfRole(const std::string& role) const {
    std::vector<Value*> values;
    for (Op* param : graph_.Params()) {
      const std::string& own = param->attrs.String("role", "");
      if (param->attrs.String("part", "weight") != "weight") continue;
      // What each expert makes is no value of the whole layer, as their sum is.
      if (own == "MLP_DOWN" && DimsByRole(*param).size() > 2) continue;
      for (const Op* user : UsersOf(param->result())) {
        // A tied weight looks tokens up and makes the logits.
        const bool head = own == "TOKEN_EMBEDDING" && !user->def->picks;
        if ((head ? "LM_HEAD" : own) == role) values.push_back(WithBias(user));
      }
    }
    return values;
  }

  // The ops that use a parameter, maybe in another order or type, or in pieces. Of a table a piece
  // is what is looked up.
  static std::vector<const Op*> UsersOf(const Value* param) {
    const bool table = param->producer->attrs.String("role", "").ends_with("EMBEDDING");
    std::vector<const Op*> users;
    std::vector<const Value*> arranged = {param};
    for (size_t i = 0; i < arranged.size(); ++i) {
      for (const Op* user : arranged[i]->users) {
        if (!user->def->rule || user->results.empty()) continue;
        if (Arranges(*user) && !(table && user->def->picks)) {
          arranged.insert(arranged.end(), user->results.begin(), user->results.end());
        } else {
          users.push_back(user);
        }
      }
    }
    return users;
  }

  // Whether the op makes each element of its results of one of its only operand's.
  static bool Arranges(const Op& op) {
    if (op.operands.size() != 1) return false;
    const ShardingRule rule = op.def->rule(op);
    const std::vector<std::vector<int>> in_it = {{0}};
    return rule.linear == in_it && std::ranges::all_of(rule.operands[0], [&](const DimFactors& d) {
             return std::ranges::all_of(d.factors, [&](int factor) {
               return std::ranges::any_of(rule.results, [&](const auto& result) {
                 return DimOfFactor(result, factor) >= 0;
               });
             });
           });
  }

  Graph& graph_;
  const Spec& spec_;
  std::optional<std::set<int64_t>> stretches_;  // sizes of such dims
  std::set<const SpecRule*> too_fine_;          // that a note is about
};

}  // namespace

void ApplySpec(Graph& graph, const Spec& spec) { Application(graph, spec).Run(); }

}  // namespace shardc
