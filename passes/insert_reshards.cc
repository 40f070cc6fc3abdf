#include "passes/insert_reshards.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/layout.h"
#include "passes/provenance.h"
#include "passes/reshard_cost.h"
#include "passes/rules.h"
#include "passes/weights.h"

namespace shardc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMoveWeightsPenalty = 1e6;
// To gather what is cut and cut nothing else makes every rank do all the work: a strategy that
// keeps operands where they are and reduces its result is preferred (with few tokens, moving
// activations instead of summing gradients over dp would be fewer bytes, and is not what data
// parallelism means).
constexpr double kUndoCutPenalty = 1e3;

// How an op runs over one axis.
struct Strategy {
  enum Kind { kWhole, kFactor, kLinear } kind = kWhole;
  FactorCut cut;  // kFactor
  int group = 0;  // kLinear: index into ShardingRule::linear
};

// An operand or result over one axis under a strategy.
struct Slot {
  Placement placement;
  DimSharding dim;  // of placement.dim, with the axes that were settled before
};

// What a strategy over one axis makes of an op.
struct Placements {
  std::vector<Slot> operands, results;
  std::vector<FactorCut> cuts;  // of the op's factors, over this axis and those before
};

class Inserter {
 public:
  explicit Inserter(Graph& graph) : graph_(graph), mesh_(graph.mesh), weights_(WeightsOf(graph)) {
    for (int a = 0; a < mesh_.num_axes(); ++a) {
      if (mesh_.axis_size(a) > 1) axes_.push_back(a);
    }
    for (const auto& op : graph.ops()) {
      if (op->def->is_state) states_[op->attrs.String("name")] = op.get();
    }
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      if (StateOfGradient(i)) gradients_[graph.outputs[i].value].push_back(i);
    }
  }

  void Run() {
    Op* op = graph_.ops().empty() ? nullptr : graph_.ops().front().get();
    while (op) op = Visit(op);
    for (size_t i = 0; i < graph_.outputs.size(); ++i) FinishOutput(i);
  }

 private:
  // Returns the op to visit next.
  Op* Visit(Op* op) {
    if (op->name() == "update") {
      const Op* state = states_.at(op->attrs.String("name"));
      Require(op, 0, state->out().sharding);
      return graph_.Next(op);
    }
    if (!op->def->rule) return graph_.Next(op);
    const ShardingRule& rule = rules_.Of(*op);
    std::vector<Sharding> operands, results;
    for (const Value* v : op->operands) operands.emplace_back(v->type.shape.size());
    for (const Value* v : op->results) results.emplace_back(v->type.shape.size());
    std::vector<FactorCut> cuts;
    bool expand = false;
    for (int axis : axes_) {
      Strategy s =
          Constrains(*op, axis, mesh_) ? Given(*op, rule, axis) : Choose(*op, rule, axis, cuts);
      expand |=
          s.kind == Strategy::kFactor && rule.factors[s.cut.factor].kind == FactorKind::kExpandable;
      if (expand) break;
      Explain(*op, rule, axis, s);
      auto placed = Place(*op, rule, axis, s, cuts);
      SHARDC_CHECK(placed, Describe(*op), " does not go with axis ", mesh_.axes()[axis].name);
      Placements p = std::move(*placed);
      cuts = std::move(p.cuts);
      for (size_t i = 0; i < operands.size(); ++i) Apply(p.operands[i], axis, operands[i]);
      for (size_t i = 0; i < results.size(); ++i) Apply(p.results[i], axis, results[i]);
    }
    if (expand) return Expand(op);
    for (size_t i = 0; i < op->operands.size(); ++i) {
      Require(op, static_cast<int>(i),
              Canonical({op->in(i).dtype, op->in(i).shape, operands[i]}, mesh_));
    }
    if (op->def->constrains) return Dissolve(op);
    for (size_t i = 0; i < op->results.size(); ++i) {
      Value* r = op->results[i];
      wishes_[r] = r->type.sharding;
      r->type.sharding = std::move(results[i]);
      r->type.sharding = Canonical(r->type, mesh_);
    }
    // What reads a gradient later, as the update does, finds it as its state is.
    Op* next = graph_.Next(op);
    for (Value* r : op->results) {
      auto outputs = gradients_.find(r);
      if (outputs == gradients_.end()) continue;
      for (size_t i : outputs->second) FinishOutput(i);
    }
    return next;
  }

  // The operand is as the constraint asks.
  Op* Dissolve(Op* op) {
    Op* next = graph_.Next(op);
    graph_.ReplaceAllUses(op->result(), op->operands[0]);
    graph_.Erase(op);
    return next;
  }

  Op* Expand(Op* op) {
    Op* previous = graph_.Previous(op);
    Builder builder(graph_, op);
    builder.phase = op->phase;
    builder.BelongWith(*op);
    std::vector<Value*> values = op->def->expand(builder, *op);
    SHARDC_CHECK(values.size() == op->results.size(), op->name());
    Op* first = previous ? graph_.Next(previous) : graph_.ops().front().get();
    for (Op* o = first; o != op; o = graph_.Next(o)) wishless_.insert(o);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i]->type.sharding = op->results[i]->type.sharding;
      values[i]->provenance = op->results[i]->provenance;
      graph_.ReplaceAllUses(op->results[i], values[i]);
    }
    graph_.Erase(op);
    return first;
  }

  static void Apply(const Slot& slot, int axis, Sharding& s) {
    switch (slot.placement.kind) {
      case Placement::kWhole:
        break;
      case Placement::kCut:
        s.dims[slot.placement.dim] = slot.dim;
        break;
      case Placement::kPartialSum:
        s.partial_sum.push_back(axis);
        break;
      case Placement::kPartialMax:
        s.partial_max.push_back(axis);
        break;
    }
  }

  std::optional<Slot> PlaceSlot(const ShardingRule& rule, const std::vector<DimFactors>& dims,
                                const TensorType& type, int factor, int axis,
                                const std::vector<FactorCut>& cuts) const {
    int d = DimOfFactor(dims, factor);
    if (d < 0) return Slot();
    auto dim = LiftToDim(rule, dims[d], type.shape[d], cuts, mesh_);
    if (!dim) return std::nullopt;
    DimSharding alone = Canonical(type.shape[d], {{axis}, dim->granule, dim->segments}, mesh_);
    return Slot{{Placement::kCut, d, std::move(alone)}, std::move(*dim)};
  }

  // Nothing where the strategy does not go with what `cuts`, of the axes before, do to the op.
  std::optional<Placements> Place(const Op& op, const ShardingRule& rule, int axis,
                                  const Strategy& s, const std::vector<FactorCut>& cuts) const {
    Placements p{std::vector<Slot>(op.operands.size()), std::vector<Slot>(op.results.size()), cuts};
    if (s.kind == Strategy::kLinear) {
      for (int i : rule.linear[s.group]) p.operands[i].placement.kind = Placement::kPartialSum;
      for (Slot& r : p.results) r.placement.kind = Placement::kPartialSum;
    } else if (s.kind == Strategy::kFactor) {
      if (!AddCut(rule, s.cut, mesh_, p.cuts)) return std::nullopt;
      const Factor& factor = rule.factors[s.cut.factor];
      for (size_t i = 0; i < op.operands.size(); ++i) {
        auto slot = PlaceSlot(rule, rule.operands[i], op.in(i), s.cut.factor, axis, p.cuts);
        if (!slot) return std::nullopt;
        p.operands[i] = std::move(*slot);
      }
      for (size_t i = 0; i < op.results.size(); ++i) {
        auto slot = PlaceSlot(rule, rule.results[i], op.out(i), s.cut.factor, axis, p.cuts);
        if (!slot) return std::nullopt;
        if (slot->placement.kind == Placement::kWhole && factor.kind != FactorKind::kExpandable) {
          slot->placement.kind =
              factor.reduce == ReduceKind::kMax ? Placement::kPartialMax : Placement::kPartialSum;
        }
        p.results[i] = std::move(*slot);
      }
    }
    return p;
  }

  // Bytes of the value that one group of the axis holds.
  double GroupBytes(const TensorType& type, int axis) const {
    double bytes = static_cast<double>(type.bytes());
    for (const DimSharding& d : type.sharding.dims) {
      for (int a : d.axes) {
        if (a != axis) bytes /= static_cast<double>(mesh_.axis_size(a));
      }
    }
    return bytes;
  }

  // Bytes that travel before a dim can be sliced over the axis: what later axes do to it is undone.
  double UndoneBytes(const TensorType& type, int dim, int axis) const {
    double bytes = 0;
    for (int later : type.sharding.dims[static_cast<size_t>(dim)].axes) {
      if (later < axis) continue;
      const Placement cut = PlacementOf(type, later, mesh_);
      bytes += ReshardBytes(cut, Placement(), mesh_.axis_size(later), GroupBytes(type, later));
    }
    return bytes;
  }

  // `split`: the ranks divide the work, whatever has to be moved for it.
  double OperandCost(const Value* v, const Slot& slot, int axis, bool split) const {
    const Placement& want = slot.placement;
    double best = kInfinity;
    auto consider = [&](const Value* version) {
      Placement from = PlacementOf(version->type, axis, mesh_);
      double bytes = ReshardBytes(from, want, mesh_.axis_size(axis), GroupBytes(v->type, axis));
      if (from.kind == Placement::kWhole && want.kind == Placement::kCut) {
        bytes += UndoneBytes(version->type, want.dim, axis);
      }
      bool undone = from.kind == Placement::kCut && !split;
      best = std::min(best, undone ? bytes * kUndoCutPenalty : bytes);
    };
    consider(v);
    if (auto it = versions_.find(Root(v)); it != versions_.end()) {
      for (const Value* version : it->second) consider(version);
    }
    return weights_.contains(v) ? best * kMoveWeightsPenalty : best;
  }

  // The factor along which all operands that have it are cut, and no other is cut otherwise; or -1.
  int SettledFactor(const Op& op, const ShardingRule& rule, int axis) const {
    int settled = -1;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const TensorType& type = op.in(static_cast<int>(i));
      const Placement at = PlacementOf(type, axis, mesh_);
      if (at.kind != Placement::kCut) continue;
      auto cut = ProjectAxis(rule, rule.operands[i][at.dim], type.shape[at.dim],
                             type.sharding.dims[at.dim], axis, mesh_);
      if (!cut || (settled >= 0 && settled != cut->factor)) return -1;
      settled = cut->factor;
    }
    for (size_t i = 0; i < op.operands.size() && settled >= 0; ++i) {
      const Placement at = PlacementOf(op.in(static_cast<int>(i)), axis, mesh_);
      if (at.kind != Placement::kCut && DimOfFactor(rule.operands[i], settled) >= 0) return -1;
    }
    return settled;
  }

  double Cost(const Op& op, const ShardingRule& rule, int axis, const Strategy& s,
              const Placements& p) const {
    double cost = 0;
    bool split = s.kind == Strategy::kFactor;
    // That a result is wished for otherwise does not move what lies ready.
    if (const int settled = split ? SettledFactor(op, rule, axis) : -1; settled >= 0) {
      split = settled == s.cut.factor;
    }
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Value* v = op.operands[i];
      // A partial value that others need reduced as well is reduced once, before them.
      const Placement& want = p.operands[i].placement;
      if (want.partial() && v->users.size() > 1) return kInfinity;
      cost += OperandCost(v, p.operands[i], axis, split);
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      const TensorType& type = op.out(i);
      Placement wish = PlacementOf(type, axis, mesh_);
      if (wishless_.contains(&op) && wish.kind == Placement::kWhole &&
          p.results[i].placement.kind == Placement::kCut) {
        continue;
      }
      cost +=
          ReshardBytes(p.results[i].placement, wish, mesh_.axis_size(axis), GroupBytes(type, axis));
    }
    if (s.kind == Strategy::kFactor) {
      const Factor& f = rule.factors[s.cut.factor];
      // Two or three statistics per row travel.
      if (f.kind == FactorKind::kExpandable) {
        double rows =
            GroupBytes(op.in(0), axis) / static_cast<double>(std::max<int64_t>(f.size, 1));
        cost += 6 * rows;
      }
    }
    return cost;
  }

  Strategy Choose(const Op& op, const ShardingRule& rule, int axis,
                  const std::vector<FactorCut>& cuts) const {
    std::vector<Strategy> options;
    auto add_factor = [&](const TensorType& type, const std::vector<DimFactors>& dims) {
      Placement at = PlacementOf(type, axis, mesh_);
      if (at.kind != Placement::kCut) return;
      auto cut = ProjectAxis(rule, dims[at.dim], type.shape[at.dim], type.sharding.dims[at.dim],
                             axis, mesh_);
      if (!cut || rule.factors[cut->factor].kind == FactorKind::kReplicated) return;
      for (const Strategy& o : options) {
        if (o.kind == Strategy::kFactor && o.cut.factor == cut->factor &&
            o.cut.layout == cut->layout) {
          return;
        }
      }
      options.push_back({Strategy::kFactor, *cut, 0});
    };
    bool partial = false;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      add_factor(op.in(i), rule.operands[i]);
      if (PlacementOf(op.in(i), axis, mesh_).kind != Placement::kPartialSum) continue;
      partial = true;
      // It can be had as it was wished for.
      if (auto wish = wishes_.find(op.operands[i]); wish != wishes_.end()) {
        add_factor({op.in(i).dtype, op.in(i).shape, wish->second}, rule.operands[i]);
      }
    }
    for (size_t i = 0; i < op.results.size(); ++i) add_factor(op.out(i), rule.results[i]);
    // On a tie the first wins: compute less, reduce later, run whole. Scalars are rather reduced at
    // once, where others of their kind can join them in one collective.
    bool scalar = op.out().shape.empty();
    if (scalar) options.push_back({});
    for (size_t g = 0; partial && g < rule.linear.size(); ++g) {
      options.push_back({Strategy::kLinear, {}, static_cast<int>(g)});
    }
    if (!scalar) options.push_back({});

    const Strategy* best = nullptr;
    double best_cost = kInfinity;
    for (const Strategy& s : options) {
      auto p = Place(op, rule, axis, s, cuts);
      if (!p || !LeavesRoom(op, rule, axis, p->cuts)) continue;
      double cost = Cost(op, rule, axis, s, *p);
      if (!best || cost < best_cost * (1 - 1e-9)) {
        best = &s;
        best_cost = cost;
      }
    }
    return best ? *best : Strategy();
  }

  // What a constraint asks for, which propagation left on its result.
  Strategy Given(const Op& op, const ShardingRule& rule, int axis) const {
    Placement at = PlacementOf(op.out(), axis, mesh_);
    if (at.kind != Placement::kCut) return {};
    auto cut = ProjectAxis(rule, rule.results[0][at.dim], op.out().shape[at.dim],
                           op.out().sharding.dims[at.dim], axis, mesh_);
    SHARDC_CHECK(cut, Describe(op), ": ", TypeToString(op.out(), mesh_));
    return {Strategy::kFactor, *cut, 0};
  }

  // Whether what a constraint asks for over later axes goes with the cuts over this axis and those
  // before. Whole always does.
  bool LeavesRoom(const Op& op, const ShardingRule& rule, int axis,
                  std::vector<FactorCut> cuts) const {
    for (int later : axes_) {
      if (later <= axis || !Constrains(op, later, mesh_)) continue;
      auto p = Place(op, rule, later, Given(op, rule, later), cuts);
      if (!p) return false;
      cuts = std::move(p->cuts);
    }
    return true;
  }

  // Records why the results are placed as they are.
  void Explain(Op& op, const ShardingRule& rule, int axis, const Strategy& s) {
    if (s.kind == Strategy::kWhole) return;
    int parent = -1;
    for (bool weights : {true, false}) {
      for (size_t i = 0; i < op.operands.size() && parent < 0; ++i) {
        const Value* v = op.operands[i];
        if (weights_.contains(v) != weights) continue;
        if (s.kind == Strategy::kFactor && DimOfFactor(rule.operands[i], s.cut.factor) < 0)
          continue;
        parent = ProvenanceOf(v, axis);
      }
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      Value* r = op.results[i];
      bool contracted =
          s.kind == Strategy::kFactor && DimOfFactor(rule.results[i], s.cut.factor) < 0;
      if (!contracted && ProvenanceOf(r, axis) >= 0) continue;
      // Why it is cut in the end, besides why it is partial before.
      if (ProvenanceOf(r, axis) >= 0) wished_because_[{r, axis}] = ProvenanceOf(r, axis);
      std::string text = contracted ? Describe(op) + " sums over a dim that is cut: partial"
                         : s.kind == Strategy::kLinear ? "partial through " + Describe(op)
                                                       : "through " + Describe(op);
      SetProvenance(r, axis, AddProvenance(graph_, parent, std::move(text)));
    }
  }

  const Value* Root(const Value* v) const {
    auto it = roots_.find(v);
    return it == roots_.end() ? v : it->second;
  }

  void Require(Op* op, int operand, const Sharding& want) {
    Value* v = op->operands[operand];
    if (v->type.sharding == want) return;
    graph_.SetOperand(op, operand, Version(v, want, op));
  }

  // The value under another sharding, made before `user`; null: for an output of the graph, as
  // early as can be.
  Value* Version(Value* value, const Sharding& want, Op* user) {
    Value* root = const_cast<Value*>(Root(value));
    auto& versions = versions_[root];
    if (versions.empty()) versions.push_back(root);
    Value* source = nullptr;
    double best = kInfinity;
    // A constraint on a weight is there to have a version of it that lives no longer than its uses.
    const bool own = user && user->def->constrains && weights_.contains(root);
    for (Value* v : versions) {
      if (own && v != root) continue;
      if (v->type.sharding == want) return v;
      double cost = ReshardBytes(v->type, want, mesh_);
      if (cost < best) {
        best = cost;
        source = v;
      }
    }
    SHARDC_CHECK(source, "no way from ", TypeToString(root->type, mesh_), " to ",
                 TypeToString({root->type.dtype, root->type.shape, want}, mesh_));
    // Several users of a partial value share one reduction, to what was wished for.
    bool shared = root->users.size() + (graph_.IsOutput(root) ? 1 : 0) > 1;
    if (source == root && root->type.sharding.partial() && shared && versions.size() == 1) {
      auto wish = wishes_.find(root);
      if (wish != wishes_.end() && wish->second != want &&
          ReshardBytes({root->type.dtype, root->type.shape, wish->second}, want, mesh_) == 0) {
        source = Make(root, wish->second, user, versions);
      }
    }
    return Make(source, want, user, versions);
  }

  Value* Make(Value* source, const Sharding& want, Op* user, std::vector<Value*>& versions) {
    TensorType type(source->type.dtype, source->type.shape, want);
    CheckSharding(type, mesh_, user ? Describe(*user) : "output");
    const Op* producer = source->producer;
    // A sum begins at once where it leaves less to be kept, or has time until a later phase.
    const bool early = source->type.sharding.partial() && user && producer &&
                       (producer->phase != user->phase ||
                        LocalBytes(type, mesh_) < LocalBytes(source->type, mesh_));
    Op* before = user && !early ? user
                 : producer     ? graph_.Next(producer)
                                : graph_.ops().front().get();
    Op* op = graph_.AddOp(GetOpDef("reshard"), {source}, {type}, {}, before);
    bool partial = source->type.sharding.partial();
    const Op* cause = partial || !user || user->def->constrains ? producer : user;
    op->phase = user && user->def->constrains ? user->phase
                : cause                       ? cause->phase
                                              : Phase::kForward;
    if (cause) op->BelongWith(*cause);
    if (user && user->def->constrains) {
      op->stage = user->stage;
      op->virtual_stage = user->virtual_stage;
      op->microbatch = user->microbatch;
    }
    Strings why;
    for (int axis : axes_) {
      Placement from = PlacementOf(source->type, axis, mesh_), to = PlacementOf(type, axis, mesh_);
      if (from == to) continue;
      int step = ProvenanceOf(source, axis);
      if (from.kind == Placement::kWhole && user) {
        for (const Value* r : user->results) step = std::max(step, ProvenanceOf(r, axis));
      }
      auto explain = [&](int last) {
        for (std::string& text : ProvenanceChain(graph_, last)) {
          if (std::find(why.begin(), why.end(), text) == why.end()) why.push_back(std::move(text));
        }
      };
      explain(step);
      // A constraint says why itself.
      auto wish = wished_because_.find({source, axis});
      if (wish != wished_because_.end() && from.partial() && to.kind == Placement::kCut &&
          !(user && user->def->constrains)) {
        explain(wish->second);
      }
      SetProvenance(op->result(), axis, step);
    }
    if (user && user->def->constrains) {
      const Strings spec = WhyOf(*user);
      why.insert(why.end(), spec.begin(), spec.end());
    } else {
      why.push_back((user ? Describe(*user) + " needs it as " : "an output of the graph is ") +
                    ShardingToString(type, mesh_));
    }
    op->attrs.Set("why", std::move(why));
    op->attrs.Set("for", std::string(cause ? cause->name() : "input"));
    op->result()->provenance = source->provenance;
    if (weights_.contains(source)) weights_.insert(op->result());
    roots_[op->result()] = Root(source);
    versions.push_back(op->result());
    return op->result();
  }

  // The parameter whose gradient this output of the graph is; or null.
  const Op* StateOfGradient(size_t output) const {
    auto state = states_.find(ParamOfGradient(graph_.outputs[output].name));
    return state == states_.end() ? nullptr : state->second;
  }

  void FinishOutput(size_t i) {
    Value* v = graph_.outputs[i].value;
    Sharding want = v->type.sharding;
    if (const Op* state = StateOfGradient(i)) {
      want = state->out().sharding;
    } else if (want.partial()) {
      auto wish = wishes_.find(v);
      want = wish != wishes_.end() ? wish->second : Sharding(v->type.shape.size());
    }
    if (v->type.sharding == want) return;
    graph_.outputs[i].value = Version(v, want, nullptr);
  }

  Graph& graph_;
  const Mesh& mesh_;
  Rules rules_;
  std::unordered_set<const Value*> weights_;
  std::vector<int> axes_;
  std::map<std::string, Op*, std::less<>> states_;
  std::unordered_map<const Value*, std::vector<size_t>> gradients_;  // and which outputs they are
  std::unordered_map<const Value*, Sharding> wishes_;
  std::map<std::pair<const Value*, int>, int> wished_because_;      // by axis: a step
  std::unordered_map<const Value*, const Value*> roots_;            // of reshard results
  std::unordered_map<const Value*, std::vector<Value*>> versions_;  // of roots, the root first
  std::unordered_set<const Op*> wishless_;  // made by expand: no one asked for their results
};

}  // namespace

void InsertReshards(Graph& graph) { Inserter(graph).Run(); }

}  // namespace shardc
