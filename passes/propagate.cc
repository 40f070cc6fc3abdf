#include "passes/propagate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>

#include "ir/contains.h"
#include "ir/op_def.h"
#include "passes/infer_layouts.h"
#include "passes/layout.h"
#include "passes/numbering.h"
#include "passes/provenance.h"
#include "passes/rules.h"
#include "passes/weights.h"
#include "passes/why_not_cut.h"

namespace shardc {
namespace {

// The order in which ops pass cuts on to their values: those that use or make weights decide how a
// model is cut; those of which every factor reaches every result (elementwise ones, say) pass that
// on without a sum or a gather; the rest comes last.
enum Priority { kWeights = 0, kPassThrough = 1, kRest = 2 };

// One use of a value in an op: an operand or a result.
struct Slot {
  Value* value;
  const std::vector<DimFactors>* dims;
  bool result;
};

// Axis after axis, ops pass the cuts of their values on, until nothing changes.
class Propagation {
 public:
  explicit Propagation(Graph& graph)
      : graph_(graph), weights_(WeightsOf(graph)), ops_(NumberedOps(graph)) {
    const size_t n = NumberValues(graph);
    for (const Op* op : ops_) rules_.push_back(op->def->rule ? &all_rules_.Of(*op) : nullptr);
    pinned_.resize(n);
    gradient_.resize(n);
    for (const Output& o : graph.outputs) {
      gradient_[o.value->id] = gradient_[o.value->id] || !ParamOfGradient(o.name).empty();
    }
    for (const auto& input : graph.inputs()) pinned_[input->id] = true;
    for (Op* op : ops_) {
      for (Value* r : op->results) pinned_[r->id] = !op->def->rule;
      if (op->def->constrains) TakeConstraint(op);
    }
    for (Op* op : ops_) priority_.push_back(PriorityOf(*op));
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
    const bool makes_weights = !op.results.empty() && weights_.contains(op.results[0]);
    for (const Value* v : op.operands) {
      if (weights_.contains(v) && (op.operands.size() > 1 || makes_weights)) return kWeights;
    }
    const ShardingRule& rule = *rules_[op.id];
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      for (const auto& result : rule.results) {
        if (DimOfFactor(result, static_cast<int>(f)) < 0) return kRest;
      }
    }
    return kPassThrough;
  }

  void RunAxis(int axis) {
    axis_ = axis;
    dim_.assign(pinned_.size(), -1);
    wished_.assign(pinned_.size(), false);
    liked_.assign(pinned_.size(), false);
    waiting_.assign(ops_.size(), true);
    Constrain();
    auto read = [&](const Value* v) {
      for (int d = 0; d < v->type.rank(); ++d) {
        if (v->type.sharding.dims[d].axes.contains(axis)) dim_[v->id] = d;
      }
    };
    for (const auto& input : graph_.inputs()) read(input.get());
    for (Op* op : ops_) {
      for (Value* r : op->results) read(r);
    }
    WishForGradients();
    for (int level = kWeights; level <= kRest; ++level) {
      bool changed = true;
      while (changed) {
        changed = false;
        for (Op* op : ops_) changed |= Visit(*op, level);
        for (auto it = ops_.rbegin(); it != ops_.rend(); ++it) changed |= Visit(**it, level);
      }
    }
    FollowReaders();
    DropCostlyCuts();
    if (LeaveSums()) DropCostlyCuts();  // of what is read beside these sums
  }

  static std::string WhereAsked(const Op& constraint) {
    const Strings why = WhyOf(constraint);
    return why.empty() ? Describe(constraint) : why.front();
  }

  // The values that a spec speaks of take their cut over the axis.
  void Constrain() {
    decided_.assign(pinned_.size(), false);
    for (const auto& [op, given] : constraints_) {
      if (!Constrains(*op, axis_, graph_.mesh)) continue;
      Value* v = op->result();
      decided_[v->id] = true;
      const ShardingRule& rule = *rules_[op->id];
      const Slot slot{v, &rule.results[0], true};
      for (int d = 0; d < v->type.rank(); ++d) {
        if (!given.dims[d].axes.contains(axis_)) continue;
        auto cut =
            ProjectAxis(rule, (*slot.dims)[d], v->type.shape[d], given.dims[d], axis_, graph_.mesh);
        auto with = cut ? WithCut(rule, slot, d, *cut) : std::nullopt;
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
    const std::string& axis = graph_.mesh.axes()[axis_].name;
    given_up_[StrCat(" not cut over ", axis, WhyNotCut(v, d, axis_, graph_.mesh))].push_back(
        "the result of " + Describe(*constraint->operands[0]->producer));
    Strings axes = constraint->attrs.StringList("axes");
    std::erase(axes, axis);
    constraint->attrs.Set("axes", std::move(axes));
    SetProvenance(v, axis_, -1);
    decided_[v->id] = false;
  }

  void NoteGivenUp() {
    for (const auto& [what, values] : given_up_) {
      const size_t more = values.size() - 1;
      graph_.notes.push_back(StrCat(values.front(), more == 0 ? "" : StrCat(" and ", more, " more"),
                                    more == 0 ? " is" : " are", what));
    }
  }

  Diagnostic CannotBe(const Op& constraint, int d) const {
    const Value* v = constraint.result();
    return Diagnostic(
        "E2106", ExitCode::kBadSpec, WhereAsked(constraint),
        StrCat("dim ", d, " of ", TypeToString(v->type, graph_.mesh), " at ", constraint.site,
               " cannot be cut over ", graph_.mesh.axes()[axis_].name, " too",
               WhyNotCut(v, d, axis_, graph_.mesh)),
        "use a smaller axis, or leave this value whole");
  }

  bool Pinned(const Value* v) const { return pinned_[v->id] || decided_[v->id]; }

  // A value that was cut only because it may be, and that some user needs whole, costs an
  // all_gather there. It stays whole where making it so costs less: a slice is free, a gather of
  // what it is made from may be the same gather earlier (and the ops between need no statistics
  // then).
  void DropCostlyCuts() {
    std::vector<int64_t> cost(pinned_.size(), 0);  // bytes gathered to have the value whole
    for (Op* op : ops_) {
      for (Value* r : op->results) {
        if (dim_[r->id] < 0) continue;
        int64_t bytes = r->type.bytes();
        cost[r->id] = Native(*op, r) ? bytes : std::min(bytes, OperandsCost(*op, cost));
      }
    }
    for (const auto& input : graph_.inputs()) {
      if (dim_[input->id] >= 0) cost[input->id] = input->type.bytes();
    }
    for (auto it = ops_.rbegin(); it != ops_.rend(); ++it) {
      Op& op = **it;
      int64_t gathered = 0;
      bool free_to_drop = true;
      for (Value* r : op.results) {
        if (dim_[r->id] < 0) continue;
        free_to_drop = free_to_drop && !Native(op, r) && !wished_[r->id];
        if (NeededWhole(r)) gathered += r->type.bytes();
      }
      if (!free_to_drop || gathered == 0 || OperandsCost(op, cost) > gathered) continue;
      for (Value* r : op.results) Unassign(r);
    }
  }

  // What is much larger than what it is made of, as a value repeated for each expert, is cut as
  // what it is read with, and so are its readers' results: to move what it is made of costs less.
  void FollowReaders() {
    for (Op* op : ops_) {
      if (!op->def->rule || op->results.size() != 1) continue;
      Value* r = op->result();
      if (dim_[r->id] < 0 || Native(*op, r) || wished_[r->id]) continue;
      int64_t bytes = 0;
      for (const Value* v : op->operands) bytes += v->type.bytes();
      if (graph_.mesh.axis_size(axis_) * bytes >= r->type.bytes()) continue;
      const auto reads = [](const Op* user) {
        return user->def->rule && user->results.size() == 1;
      };
      if (r->users.empty() || !std::ranges::all_of(r->users, reads)) continue;
      if (!std::ranges::any_of(r->users, [&](Op* user) { return CutLikeOthers(*user, r); }))
        continue;
      for (Op* user : r->users) CutLikeOthers(*user, user->result());
    }
  }

  // Whether an operand of the op is cut along a factor that the value, which is another of its
  // operands or its result, could be cut along instead, and now is.
  bool CutLikeOthers(const Op& op, Value* v) {
    const ShardingRule& rule = *rules_[op.id];
    const std::vector<Slot> slots = SlotsOf(op, rule);
    const Slot own = *std::ranges::find(slots, v, &Slot::value);
    if (Pinned(v) || wished_[v->id] || dim_[v->id] < 0) return false;
    for (const Slot& s : slots) {
      const auto cut = s.result || s.value == v ? std::nullopt : CutOf(rule, *s.value, *s.dims);
      const int d = cut ? DimOfFactor(*own.dims, cut->factor) : -1;
      if (d < 0 || d == dim_[v->id]) continue;
      const auto with = WithCut(rule, own, d, *cut);
      if (!with) continue;
      const int why = ProvenanceOf(v, axis_);
      Unassign(v);
      Assign(v, d, *with, why);
      return true;
    }
    return false;
  }

  // A sum over the axis of which all readers make much less, by ops that are linear in it, is left
  // to them: what each expert makes, which is added up with the shares of a token. Whether any is.
  bool LeaveSums() {
    bool any = false;
    for (Op* op : ops_) {
      if (!op->def->rule || op->results.size() != 1 || dim_[op->result()->id] < 0) continue;
      if (!Contracts(*op)) continue;
      const int64_t bytes = op->out().bytes();
      std::vector<Value*> left = {op->result()};
      int64_t moved = 0;
      for (size_t i = 0; i < left.size() && moved < bytes; ++i) {
        const auto of_readers = MovedByReaders(left[i], bytes, left);
        moved = of_readers ? moved + *of_readers : bytes;
      }
      if (moved >= bytes) continue;
      for (Value* v : left) {
        Unassign(v);
        v->type.sharding.partial_sum.push_back(axis_);
      }
      any = true;
    }
    return any;
  }

  // Whether it sums over a factor that cuts its operands over the axis.
  bool Contracts(const Op& op) const {
    const ShardingRule& rule = *rules_[op.id];
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const auto cut = CutOf(rule, *op.operands[i], rule.operands[i]);
      if (!cut || DimOfFactor(rule.results[0], cut->factor) >= 0) continue;
      const Factor& f = rule.factors[cut->factor];
      if (f.kind == FactorKind::kPlain && f.reduce == ReduceKind::kSum) return true;
    }
    return false;
  }

  // What travels if the value stays a sum over the axis: operands beside it, and results of half of
  // `bytes` or less; larger ones, which stay sums too, are added to `left`. Nothing where it has to
  // be complete.
  std::optional<int64_t> MovedByReaders(const Value* v, int64_t bytes,
                                        std::vector<Value*>& left) const {
    if (Pinned(v) || wished_[v->id] || graph_.IsOutput(v)) return std::nullopt;
    int64_t moved = 0;
    for (const Op* user : v->users) {
      const auto at = std::find(user->operands.begin(), user->operands.end(), v);
      const std::vector<int> alone = {static_cast<int>(at - user->operands.begin())};
      const bool linear = user->def->rule && Contains(rules_[user->id]->linear, alone) &&
                          std::ranges::count(user->operands, v) == 1;
      if (!linear || user->def->constrains || user->results.size() > 1) return std::nullopt;
      for (const Value* other : user->operands) {
        if (other != v && dim_[other->id] >= 0) moved += other->type.bytes();
      }
      if (2 * user->out().bytes() <= bytes) {
        moved += user->out().bytes();
      } else if (!Contains(left, user->result())) {
        left.push_back(user->result());
      }
    }
    return moved;
  }

  int64_t OperandsCost(const Op& op, const std::vector<int64_t>& cost) const {
    int64_t sum = 0;
    for (const Value* v : op.operands) {
      if (dim_[v->id] >= 0 && !GatheredBeside(op, v)) sum += cost[v->id];
    }
    return sum;
  }

  // Whether another op gathers the value anyway, as a product with a weight that is cut along its
  // columns does. Of very many readers the first tell enough.
  bool GatheredBeside(const Op& op, const Value* v) const {
    constexpr size_t kMaxReaders = 64;
    const auto asked = std::span(v->users).first(std::min(v->users.size(), kMaxReaders));
    return std::ranges::any_of(asked, [&](const Op* user) {
      if (user == &op || user->phase != op.phase) return false;
      return AnyRead(*user, *v, [&](const ShardingRule& rule, const std::optional<FactorCut>& cut) {
        return cut && UsesWeightOtherwise(*user, rule, *cut);
      });
    });
  }

  // Cut by a state or by hand, and not by choice.
  bool Native(const Op& op, const Value* r) const {
    if (Pinned(r) || !op.def->rule) return true;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Value* v = op.operands[i];
      if (dim_[v->id] < 0 || !weights_.contains(v)) continue;
      const ShardingRule& rule = *rules_[op.id];
      if (CutOf(rule, *v, rule.operands[i])) return true;
    }
    return false;
  }

  bool NeededWhole(Value* v) const {
    if (gradient_[v->id] && !wished_[v->id]) return true;
    return std::ranges::any_of(v->users, [&](const Op* user) {
      return AnyRead(*user, *v, [&](const ShardingRule& rule, const std::optional<FactorCut>& cut) {
        return !cut || rule.factors[cut->factor].kind == FactorKind::kReplicated ||
               UsesOtherwise(*user, rule, *cut);
      });
    });
  }

  // Whether it holds for a place where the op reads the value, by how the cut goes on there.
  template <typename Holds>
  bool AnyRead(const Op& user, const Value& v, const Holds& holds) const {
    if (!user.def->rule) return false;
    const ShardingRule& rule = *rules_[user.id];
    for (size_t i = 0; i < user.operands.size(); ++i) {
      if (user.operands[i] == &v && holds(rule, CutOf(rule, v, rule.operands[i]))) return true;
    }
    return false;
  }

  // Whether the op has a result that should carry the factor and is whole, or one that has to be
  // cut along another one, as an operand is, or a state that is.
  bool UsesOtherwise(const Op& op, const ShardingRule& rule, const FactorCut& cut) const {
    for (size_t i = 0; i < op.results.size(); ++i) {
      const Value* r = op.results[i];
      if (DimOfFactor(rule.results[i], cut.factor) >= 0 && dim_[r->id] < 0) return true;
      const auto other = CutOf(rule, *r, rule.results[i]);
      if (!wished_[r->id] || !other || other->factor == cut.factor) continue;
      for (size_t k = 0; k < op.operands.size(); ++k) {
        const auto beside = CutOf(rule, *op.operands[k], rule.operands[k]);
        if (beside && beside->factor == other->factor) return true;
      }
    }
    return UsesWeightOtherwise(op, rule, cut);
  }

  bool UsesWeightOtherwise(const Op& op, const ShardingRule& rule, const FactorCut& cut) const {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Value* v = op.operands[i];
      if (!weights_.contains(v)) continue;
      auto other = CutOf(rule, *v, rule.operands[i]);
      if (other && other->factor != cut.factor) return true;
    }
    return false;
  }

  void Unassign(Value* v) {
    if (dim_[v->id] < 0) return;
    const auto at = static_cast<size_t>(dim_[v->id]);
    DimSharding& d = v->type.sharding.dims[at];
    d.axes.erase(axis_);
    d = Canonical(v->type.shape[at], std::move(d), graph_.mesh);
    dim_[v->id] = -1;
    SetProvenance(v, axis_, -1);
  }

  // Gradients and new values end up cut like the parameter or state they belong to.
  void WishForGradients() {
    auto wish = [&](Value* v, const Op* state) {
      if (!state || Pinned(v) || dim_[v->id] >= 0) return;
      const Value* like = state->result();
      if (dim_[like->id] < 0 || like->type.shape != v->type.shape) return;
      const int dim = dim_[like->id];
      const DimSharding& layout = like->type.sharding.dims[dim];
      const int64_t size = v->type.shape[dim];
      int upto = 1;
      while (layout.axes[upto - 1] != axis_) ++upto;
      // Where another axis cuts the dim by choice, it is made like the state at the end.
      DimSharding now = v->type.sharding.dims[dim];
      if (now != FirstAxes(size, layout, upto - 1, graph_.mesh)) return;
      wished_[v->id] = true;
      Assign(v, dim, FirstAxes(size, layout, upto, graph_.mesh), ProvenanceOf(like, axis_));
    };
    std::map<std::string_view, Op*> states;
    for (Op* op : ops_) {
      if (op->def->is_state) states[op->attrs.String("name")] = op;
    }
    auto find = [&](std::string_view name) {
      auto it = states.find(name);
      return it == states.end() ? nullptr : it->second;
    };
    for (const Output& o : graph_.outputs) wish(o.value, find(ParamOfGradient(o.name)));
    for (Op* op : ops_) {
      if (op->name() != "update") continue;
      Value* v = op->operands[0];
      const Op* state = find(op->attrs.String("name"));
      // A state that is whole asks for a new value that is: there are more of these than gradients.
      if (state && dim_[state->result()->id] < 0 && dim_[v->id] < 0) decided_[v->id] = true;
      wish(v, state);
    }
  }

  void Assign(Value* v, int dim, DimSharding with_axis, int provenance) {
    v->type.sharding.dims[dim] = std::move(with_axis);
    dim_[v->id] = dim;
    SetProvenance(v, axis_, provenance);
    if (v->producer) waiting_[v->producer->id] = true;
    for (const Op* user : v->users) waiting_[user->id] = true;
  }

  // The cut of the value over this axis alone, as a cut of one of the rule's factors.
  std::optional<FactorCut> CutOf(const ShardingRule& rule, const Value& v,
                                 const std::vector<DimFactors>& dims) const {
    const int d = dim_[v.id];
    if (d < 0) return std::nullopt;
    return ProjectAxis(rule, dims[d], v.type.shape[d], v.type.sharding.dims[d], axis_, graph_.mesh);
  }

  // The dim of the slot's value with the cut added to what the axes before do. Nothing where that
  // cannot be written down, or leaves a part without anything.
  std::optional<DimSharding> WithCut(const ShardingRule& rule, const Slot& slot, int d,
                                     const FactorCut& cut) const {
    return WithCut(rule, slot, d, slot.value->type.sharding.dims[d], cut);
  }

  std::optional<DimSharding> WithCut(const ShardingRule& rule, const Slot& slot, int d,
                                     const DimSharding& now, const FactorCut& cut) const {
    const TensorType& type = slot.value->type;
    std::vector<FactorCut> cuts;
    if (now.cut()) {
      auto before = ProjectToFactors(rule, (*slot.dims)[d], type.shape[d], now, graph_.mesh);
      if (!before) return std::nullopt;
      cuts = std::move(*before);
    }
    if (!AddCut(rule, cut, graph_.mesh, cuts)) return std::nullopt;
    auto with = LiftToDim(rule, (*slot.dims)[d], type.shape[d], cuts, graph_.mesh);
    return with && FillsParts(type.shape[d], *with, graph_.mesh) ? with : std::nullopt;
  }

  // Whether what the spec asks of the value over axes that have their turn later still fits.
  bool LeavesRoom(const Value* v, int d, const DimSharding& now) const {
    if (!v->producer || !v->producer->def->constrains) return true;
    const auto asked = std::ranges::find(constraints_, v->producer, &Constraint::first);
    const auto& [op, given] = *asked;
    const ShardingRule& rule = *rules_[op->id];
    const Slot slot{op->result(), &rule.results[0], true};
    return std::ranges::all_of(given.dims[d].axes, [&, &given = given](int axis) {
      if (axis <= axis_) return true;
      auto cut =
          ProjectAxis(rule, rule.results[0][d], v->type.shape[d], given.dims[d], axis, graph_.mesh);
      return !cut || WithCut(rule, slot, d, now, *cut).has_value();
    });
  }

  // Whether the producer of the value can give it cut along the dim without help.
  bool ProducerCuts(const Value* v, int dim, const DimSharding& with_axis) const {
    const Op* op = v->producer;
    if (!op || !op->def->rule) return false;
    const ShardingRule& rule = *rules_[op->id];
    auto cut = ProjectAxis(rule, rule.results[v->index][dim], v->type.shape[dim], with_axis, axis_,
                           graph_.mesh);
    return cut && rule.factors[cut->factor].kind == FactorKind::kPlain;
  }

  static std::vector<Slot> SlotsOf(const Op& op, const ShardingRule& rule) {
    std::vector<Slot> slots;
    slots.reserve(op.operands.size() + op.results.size());
    for (size_t i = 0; i < op.operands.size(); ++i) {
      slots.push_back({op.operands[i], &rule.operands[i], false});
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      slots.push_back({op.results[i], &rule.results[i], true});
    }
    return slots;
  }

  struct Source {
    const Value* value;
    FactorCut cut;
  };
  // The value whose cut the op passes on: the first weight that has one, else the first value.
  std::optional<Source> SourceOf(const ShardingRule& rule, const std::vector<Slot>& slots) const {
    for (bool weights : {true, false}) {
      for (const Slot& s : slots) {
        if (weights_.contains(s.value) != weights) continue;
        const auto cut = CutOf(rule, *s.value, *s.dims);
        if (!cut) continue;
        const FactorKind kind = rule.factors[cut->factor].kind;
        if (kind == FactorKind::kPlain || (kind == FactorKind::kExpandable && !s.result)) {
          return Source{s.value, *cut};
        }
      }
    }
    return std::nullopt;
  }

  // Whether one of its values takes a cut.
  bool Visit(Op& op, int level) {
    if (!waiting_[op.id] || priority_[op.id] > level || !op.def->rule) return false;
    waiting_[op.id] = false;
    const ShardingRule& rule = *rules_[op.id];
    const std::vector<Slot> slots = SlotsOf(op, rule);
    const std::optional<Source> source = SourceOf(rule, slots);
    if (!source) return false;
    const auto& [from, cut] = *source;
    const bool expandable = rule.factors[cut.factor].kind == FactorKind::kExpandable;
    bool changed = false;
    int step = -1;
    for (const Slot& s : slots) {
      if (Pinned(s.value) || dim_[s.value->id] >= 0 || (expandable && !s.result)) continue;
      int d = DimOfFactor(*s.dims, cut.factor);
      if (d < 0) continue;
      auto with = WithCut(rule, s, d, cut);
      if (!with) continue;
      if (!s.result && !ProducerCuts(s.value, d, *with)) continue;
      // What a reader would like is no reason to cut it.
      const bool liked = !s.result || liked_[from->id];
      if (liked && !LeavesRoom(s.value, d, *with)) continue;
      liked_[s.value->id] = liked;
      if (step < 0) {
        step = AddProvenance(graph_, ProvenanceOf(from, axis_), "through " + Describe(op));
      }
      Assign(s.value, d, std::move(*with), step);
      changed = true;
    }
    return changed;
  }

  Graph& graph_;
  std::unordered_set<const Value*> weights_;
  const std::vector<Op*> ops_;
  Rules all_rules_;
  std::vector<const ShardingRule*> rules_;  // by Op::id; null where there is none
  std::vector<Priority> priority_;
  std::vector<bool> pinned_;    // by Value::id
  std::vector<bool> gradient_;  // by Value::id: of a parameter, an output
  std::vector<Constraint> constraints_;
  std::map<std::string, Strings> given_up_;  // values by what is said of them
  int axis_ = 0;
  std::vector<int> dim_;       // by Value::id: the dim that axis_ cuts, or -1
  std::vector<bool> decided_;  // by Value::id: by a constraint over axis_
  std::vector<bool> liked_;    // by Value::id: cut because a reader is, directly or not
  std::vector<bool> wished_;   // by Value::id: cut like the state it becomes
  std::vector<bool> waiting_;  // by Op::id: a value of it has changed since its last visit
};

}  // namespace

void PropagateShardings(Graph& graph) { Propagation(graph).Run(); }

}  // namespace shardc
