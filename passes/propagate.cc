#include "passes/propagate.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "ir/op_def.h"
#include "passes/axis_cuts.h"
#include "passes/carried_layout.h"
#include "passes/first_of.h"
#include "passes/layout.h"
#include "passes/provenance.h"
#include "passes/revise_cuts.h"
#include "passes/weights.h"
#include "passes/why_not_cut.h"

namespace shardc {
namespace {

// The order in which ops pass cuts on to their values: those that use or make weights decide how a
// model is cut; those of which every factor reaches every result (elementwise ones, say) pass that
// on without a sum or a gather; the rest comes last.
enum Priority { kWeights = 0, kPassThrough = 1, kRest = 2 };

// Axis after axis, ops pass the cuts of their values on, until nothing changes.
class Propagation {
 public:
  explicit Propagation(Graph& graph) : graph_(graph), cuts_(graph) {
    for (Op* op : cuts_.ops()) {
      if (op->def->constrains) TakeConstraint(op);
      priority_.push_back(PriorityOf(*op));
    }
  }

  void Run() {
    for (int axis = 0; axis < graph_.mesh.num_axes(); ++axis) {
      if (graph_.mesh.axis_size(axis) > 1) RunAxis(axis);
    }
    NoteGivenUp();
  }

 private:
  using Constraint = std::pair<Op*, Sharding>;  // with what it asks for

  // What is asked for over an axis is set when that axis has its turn.
  void TakeConstraint(Op* op) {
    for (const std::string& axis : op->attrs.StringList("axes")) {
      if (graph_.mesh.FindAxis(axis)) continue;
      throw Diagnostic("E2104", ExitCode::kBadSpec, WhereAsked(*op),
                       StrCat("axis '", axis, "' is not in the mesh ", graph_.mesh.ToString()));
    }
    constraints_.push_back({op, op->result()->type.sharding});
    op->result()->type.sharding = Sharding(op->out().shape.size());
  }

  Priority PriorityOf(const Op& op) const {
    if (!op.def->rule) return kRest;
    const bool makes_weights = !op.results.empty() && cuts_.IsWeight(op.results[0]);
    for (const Value* v : op.operands) {
      if (cuts_.IsWeight(v) && (op.operands.size() > 1 || makes_weights)) return kWeights;
    }
    const ShardingRule& rule = *cuts_.RuleOf(op);
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      for (const auto& result : rule.results) {
        if (DimOfFactor(result, static_cast<int>(f)) < 0) return kRest;
      }
    }
    return kPassThrough;
  }

  void RunAxis(int axis) {
    cuts_.Begin(axis);
    liked_.clear();
    Constrain();
    cuts_.ReadTypes();
    WishForGradients();
    for (int level = kWeights; level <= kRest; ++level) {
      bool changed = true;
      while (changed) {
        changed = false;
        for (Op* op : cuts_.ops()) changed |= Visit(*op, level);
        for (auto it = cuts_.ops().rbegin(); it != cuts_.ops().rend(); ++it)
          changed |= Visit(**it, level);
      }
    }
    ReviseCuts(cuts_);
  }

  static std::string WhereAsked(const Op& constraint) {
    const Strings why = WhyOf(constraint);
    return why.empty() ? Describe(constraint) : why.front();
  }

  // The values that a spec speaks of take their cut over the axis.
  void Constrain() {
    for (const auto& [op, given] : constraints_) {
      if (!Constrains(*op, cuts_.axis(), graph_.mesh)) continue;
      Value* v = op->result();
      cuts_.Decide(v, true);
      const ShardingRule& rule = *cuts_.RuleOf(*op);
      const Slot slot{v, &rule.results[0], true};
      for (int d = 0; d < v->type.rank(); ++d) {
        if (!given.dims[d].axes.contains(cuts_.axis())) continue;
        auto cut = ProjectAxis(rule, (*slot.dims)[d], v->type.shape[d], given.dims[d], cuts_.axis(),
                               graph_.mesh);
        auto with = cut ? cuts_.WithCut(rule, slot, d, *cut) : std::nullopt;
        const bool of_role = op->attrs.Has("role");
        if (!with && !of_role) throw CannotBe(*op, d);
        if (with && (!of_role || IsTaken(v, d, *with))) {
          v->type.sharding.dims[d] = std::move(*with);
        } else {
          GiveUp(op, d);
        }
      }
    }
  }

  // Whether a cut of what comes from weights is as readers take it.
  bool IsTaken(const Value* v, int d, const DimSharding& with) const {
    return !AxesOfWeights(v, d) || CarriedLayout(v, d, with.axes, graph_.mesh) == with;
  }

  // The value is cut over the axis as follows from others.
  void GiveUp(Op* constraint, int d) {
    Value* v = constraint->result();
    const std::string& axis = graph_.mesh.axes()[cuts_.axis()].name;
    given_up_[StrCat(" not cut over ", axis, WhyNotCut(v, d, cuts_.axis(), graph_.mesh))].push_back(
        "the result of " + Describe(*constraint->operands[0]->producer));
    Strings axes = constraint->attrs.StringList("axes");
    std::erase(axes, axis);
    constraint->attrs.Set("axes", std::move(axes));
    SetProvenance(v, cuts_.axis(), -1);
    cuts_.Decide(v, false);
  }

  void NoteGivenUp() {
    for (const auto& [what, values] : given_up_) {
      graph_.notes.push_back(StrCat(FirstOf(values), values.size() == 1 ? " is" : " are", what));
    }
  }

  Diagnostic CannotBe(const Op& constraint, int d) const {
    const Value* v = constraint.result();
    return Diagnostic(
        "E2106", ExitCode::kBadSpec, WhereAsked(constraint),
        StrCat("dim ", d, " of ", TypeToString(v->type, graph_.mesh), " at ", constraint.site,
               " cannot be cut over ", graph_.mesh.axes()[cuts_.axis()].name, " too",
               WhyNotCut(v, d, cuts_.axis(), graph_.mesh)),
        "use a smaller axis, or leave this value whole");
  }

  // Gradients and new values end up cut like the parameter or state they belong to.
  void WishForGradients() {
    auto wish = [&](Value* v, const Op* state) {
      if (!state || cuts_.Pinned(v) || cuts_.IsCut(v)) return;
      const Value* like = state->result();
      if (!cuts_.IsCut(like) || like->type.shape != v->type.shape) return;
      const int dim = cuts_.DimOf(like);
      const DimSharding& layout = like->type.sharding.dims[dim];
      const int64_t size = v->type.shape[dim];
      int upto = 1;
      while (layout.axes[upto - 1] != cuts_.axis()) ++upto;
      // Where another axis cuts the dim by choice, it is made like the state at the end.
      DimSharding now = v->type.sharding.dims[dim];
      if (now != FirstAxes(size, layout, upto - 1, graph_.mesh)) return;
      cuts_.Wish(v);
      cuts_.Assign(v, dim, FirstAxes(size, layout, upto, graph_.mesh),
                   ProvenanceOf(like, cuts_.axis()));
    };
    std::map<std::string_view, Op*> states;
    for (Op* op : cuts_.ops()) {
      if (op->def->is_state) states[op->attrs.String("name")] = op;
    }
    auto find = [&](std::string_view name) {
      auto it = states.find(name);
      return it == states.end() ? nullptr : it->second;
    };
    for (const Output& o : graph_.outputs) wish(o.value, find(ParamOfGradient(o.name)));
    for (Op* op : cuts_.ops()) {
      if (op->name() != "update") continue;
      Value* v = op->operands[0];
      const Op* state = find(op->attrs.String("name"));
      // A state that is whole asks for a new value that is: there are more of these than gradients.
      if (state && !cuts_.IsCut(state->result()) && !cuts_.IsCut(v)) cuts_.Decide(v, true);
      wish(v, state);
    }
  }

  // Whether what the spec asks of the value over axes that have their turn later still fits.
  bool LeavesRoom(const Value* v, int d, const DimSharding& now) const {
    if (!v->producer || !v->producer->def->constrains) return true;
    const auto asked = std::ranges::find(constraints_, v->producer, &Constraint::first);
    const auto& [op, given] = *asked;
    const ShardingRule& rule = *cuts_.RuleOf(*op);
    const Slot slot{op->result(), &rule.results[0], true};
    return std::ranges::all_of(given.dims[d].axes, [&, &given = given](int axis) {
      if (axis <= cuts_.axis()) return true;
      auto cut =
          ProjectAxis(rule, rule.results[0][d], v->type.shape[d], given.dims[d], axis, graph_.mesh);
      return !cut || cuts_.WithCut(rule, slot, d, now, *cut).has_value();
    });
  }

  // Whether the producer of the value can give it cut along the dim without help.
  bool ProducerCuts(const Value* v, int dim, const DimSharding& with_axis) const {
    const Op* op = v->producer;
    if (!op || !op->def->rule) return false;
    const ShardingRule& rule = *cuts_.RuleOf(*op);
    auto cut = ProjectAxis(rule, rule.results[v->index][dim], v->type.shape[dim], with_axis,
                           cuts_.axis(), graph_.mesh);
    return cut && rule.factors[cut->factor].kind == FactorKind::kPlain;
  }

  struct Source {
    Slot slot;
    FactorCut cut;
  };
  // The value whose cut the op passes on: the first weight that has one, else the first value.
  std::optional<Source> SourceOf(const ShardingRule& rule, const std::vector<Slot>& slots) const {
    for (bool weights : {true, false}) {
      for (const Slot& s : slots) {
        if (cuts_.IsWeight(s.value) != weights) continue;
        const auto cut = cuts_.CutOf(rule, *s.value, *s.dims);
        if (!cut) continue;
        const FactorKind kind = rule.factors[cut->factor].kind;
        if (kind == FactorKind::kPlain || (kind == FactorKind::kExpandable && !s.result)) {
          return Source{s, *cut};
        }
      }
    }
    return std::nullopt;
  }

  // Whether one of its values takes a cut.
  bool Visit(Op& op, int level) {
    if (!op.def->rule || priority_[op.id] > level || !cuts_.TakeChanged(op)) return false;
    const ShardingRule& rule = *cuts_.RuleOf(op);
    const std::vector<Slot> slots = cuts_.SlotsOf(op, rule);
    const std::optional<Source> source = SourceOf(rule, slots);
    if (!source) return false;
    const auto& [given, cut] = *source;
    const Value* from = given.value;
    const AxisList before = cuts_.AxesBefore(rule, given, cut.factor);
    const bool expandable = rule.factors[cut.factor].kind == FactorKind::kExpandable;
    bool changed = false;
    int step = -1;
    for (const Slot& s : slots) {
      if (cuts_.Pinned(s.value) || cuts_.IsCut(s.value) || (expandable && !s.result)) continue;
      int d = DimOfFactor(*s.dims, cut.factor);
      if (d < 0) continue;
      // Without what cuts it before, the parts would be others.
      const AxisList own = cuts_.AxesBefore(rule, s, cut.factor);
      if (!std::ranges::all_of(before, [&](int a) { return own.contains(a); })) continue;
      auto with = cuts_.WithCut(rule, s, d, cut);
      if (!with) continue;
      if (!s.result && !ProducerCuts(s.value, d, *with)) continue;
      // What a reader would like is no reason to cut it.
      const bool liked = !s.result || liked_.contains(from);
      if (liked && !LeavesRoom(s.value, d, *with)) continue;
      if (liked) liked_.insert(s.value);
      if (step < 0) {
        step = AddProvenance(graph_, ProvenanceOf(from, cuts_.axis()), "through " + Describe(op));
      }
      cuts_.Assign(s.value, d, std::move(*with), step);
      changed = true;
    }
    return changed;
  }

  Graph& graph_;
  AxisCuts cuts_;
  std::vector<Priority> priority_;  // by Op::id
  std::vector<Constraint> constraints_;
  std::map<std::string, Strings> given_up_;  // values by what is said of them
  std::unordered_set<const Value*> liked_;   // cut because a reader is, directly or not
};

}  // namespace

void PropagateShardings(Graph& graph) { Propagation(graph).Run(); }

}  // namespace shardc
