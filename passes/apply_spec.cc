#include "passes/apply_spec.h"

#include <algorithm>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

std::vector<std::string> NamesOf(const Op& param) {
  std::vector<std::string> names = {param.attrs.String("name")};
  if (param.attrs.Has("aliases")) {
    const Strings& aliases = param.attrs.StringList("aliases");
    names.insert(names.end(), aliases.begin(), aliases.end());
  }
  return names;
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
    Params();
    Inputs();
  }

 private:
  void Params() {
    std::vector<Op*> params = graph_.Params();
    std::vector<bool> used(spec_.params.size());
    for (Op* param : params) {
      bool decided = false;
      for (size_t i = 0; i < spec_.params.size(); ++i) {
        const SpecRule& rule = spec_.params[i];
        if (!Matches(rule, *param)) continue;
        used[i] = true;  // also where an earlier rule decides: then it does match something
        if (decided) continue;
        decided = true;
        ApplyTo(param, rule);
      }
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i] || spec_.params[i].may_match_nothing) continue;
      NothingMatches(spec_.params[i], params);
    }
  }

  [[noreturn]] void NothingMatches(const SpecRule& rule, const std::vector<Op*>& params) {
    std::vector<std::string> names;
    std::string roles;
    for (const Op* p : params) {
      for (std::string& n : NamesOf(*p)) names.push_back(std::move(n));
      std::string role = p->attrs.String("role", "");
      if (!role.empty() && roles.find(role) == std::string::npos) {
        roles += (roles.empty() ? "" : ", ") + role;
      }
    }
    std::string what, fix;
    if (!rule.match.empty()) {
      what = StrCat("no parameter matches '", rule.match, "'",
                    rule.role.empty() ? "" : " with role " + rule.role);
      // Compare without the stars: what is left is what the user typed of a name.
      std::string bare;
      for (char c : rule.match) {
        if (c != '*' && c != '?') bare += c;
      }
      std::vector<std::pair<int, std::string>> near;
      for (const std::string& n : names) {
        int best = EditDistance(bare, n);
        for (size_t at = 0; at + bare.size() <= n.size(); ++at) {
          best = std::min(best, EditDistance(bare, n.substr(at, bare.size())));
        }
        near.emplace_back(best, n);
      }
      std::sort(near.begin(), near.end());
      for (size_t i = 0; i < near.size() && i < 3; ++i) {
        fix += (i ? ", " : "the nearest names: ") + near[i].second;
      }
    } else {
      what = StrCat("no parameter has role ", rule.role,
                    rule.part.empty() ? "" : " and part " + rule.part);
      fix = roles.empty() ? "no roles were recognised in this model; match by name"
                          : "roles in this model: " + roles;
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
    throw Diagnostic(
        "E2104", ExitCode::kBadSpec, rule.where.ToString(),
        StrCat("axis '", name, "' is not in the mesh ", graph_.mesh.ToString()),
        "add it to --mesh, or declare it in the spec's mesh; " + DidYouMean(name, names));
  }

  // The sharding that a rule gives a tensor. `flip`: dims count in the transposed order.
  Sharding Cut(const SpecRule& rule, const TensorType& type, bool flip, const std::string& what) {
    Sharding sharding(type.shape.size());
    for (const CutDim& cut : rule.cuts) {
      auto axis = Axis(rule, cut.axis);
      int rank = type.rank();
      if (cut.dim < -rank || cut.dim >= rank) {
        throw Diagnostic("E2103", ExitCode::kBadSpec, rule.where.ToString(),
                         StrCat("dim ", cut.dim, " of ", what, ", which has ", rank, " dims ",
                                ShapeToString(type.shape)));
      }
      if (!axis || graph_.mesh.axis_size(*axis) == 1) continue;
      int dim = cut.dim < 0 ? cut.dim + rank : cut.dim;
      if (flip) dim = rank - 1 - dim;
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
      d.segments = rule.segments;
      int64_t parts = NumParts(d, graph_.mesh);
      if (type.shape[dim] < parts) {
        throw Diagnostic("E2106", ExitCode::kBadSpec, rule.where.ToString(),
                         StrCat("dim ", cut.dim, " of ", what, " has ", type.shape[dim],
                                " elements and cannot be cut into ", parts, " parts"),
                         "use a smaller axis, or leave this tensor whole");
      }
    }
    TensorType cut(type.dtype, type.shape, sharding);
    CheckSharding(cut, graph_.mesh, StrCat(rule.where.ToString(), ": ", what));
    return Canonical(cut, graph_.mesh);
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
    bool flip = by_role && value->type.rank() == 2 && param->attrs.Bool("transposed");
    value->type.sharding = Cut(rule, value->type, flip, "parameter '" + name + "'");
    Explain(value, rule, "parameter " + name);
    if (rule.output_replicate == true && !value->type.sharding.replicated()) {
      for (Op* user : std::vector<Op*>(value->users)) MakeWhole(user, rule, name);
    }
  }

  // A reshard to whole behind the op and the bias that follows it.
  void MakeWhole(Op* op, const SpecRule& rule, const std::string& name) {
    if (!op->def->rule || op->results.empty()) return;
    Value* out = op->result();
    while (out->users.size() == 1 && out->users[0]->name() == "add") {
      const Op* add = out->users[0];
      const Value* other = add->operands[add->operands[0] == out];
      if (!other->producer || other->producer->name() != "param" || other->type.rank() != 1) break;
      out = add->result();
    }
    for (const Op* user : out->users) {
      if (user->name() == "reshard") return;  // the bias's own rule has been here
    }
    Op* next = graph_.Next(out->producer);
    Op* whole = graph_.AddOp(GetOpDef("reshard"), {},
                             {TensorType(out->type.dtype, out->type.shape)}, {}, next);
    whole->site = op->site;
    whole->attrs.Set("why", Strings{StrCat("spec ", rule.where.ToString(),
                                           ": output_replicate of parameter ", name)});
    whole->attrs.Set("for", std::string(op->name()));
    graph_.ReplaceAllUses(out, whole->result());
    graph_.AppendOperand(whole, out);
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
                       DidYouMean(rule.match, names) + " or set may_match_nothing");
    }
    for (const auto& input : graph_.inputs()) {
      for (const SpecRule& rule : spec_.inputs) {
        if (!GlobMatch(rule.match, input->name)) continue;
        // A rule for every input says nothing about scalars.
        if (rule.match == "*" && input->type.rank() == 0) break;
        input->type.sharding = Cut(rule, input->type, false, "input '" + input->name + "'");
        Explain(input.get(), rule, "input " + input->name);
        break;
      }
    }
  }

  Graph& graph_;
  const Spec& spec_;
};

}  // namespace

void ApplySpec(Graph& graph, const Spec& spec) { Application(graph, spec).Run(); }

}  // namespace shardc
