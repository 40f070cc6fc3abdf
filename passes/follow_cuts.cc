#include "passes/follow_cuts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/constant.h"
#include "ir/op_def.h"
#include "passes/axis_cuts.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

struct DimCut {
  int dim = -1;
  DimSharding layout;
  bool operator==(const DimCut&) const = default;
};

// Over one axis: the cuts of weights are passed on to what is made with them, and from there to the
// other parameters that this is combined with.
class Follower {
 public:
  Follower(AxisCuts& cuts, int axis) : cuts_(cuts), axis_(axis) { FindMade(); }

  void Run() {
    cuts_.Begin(axis_);
    cuts_.ReadTypes();
    for (Op* op : cuts_.ops()) {
      // What a constraint asks for is the spec's word.
      if (op->def->rule && !op->def->constrains) {
        PassOn(*op, *cuts_.RuleOf(*op));
        continue;
      }
      for (Value* v : op->operands) {
        if (IsMadeOfParams(v)) Ask(v, std::nullopt, *op, -1);
      }
    }
    for (auto& [weight, wish] : wishes_) {
      if (!wish.cut || !weight->producer->def->is_state) continue;
      cuts_.Assign(weight, wish.cut->dim, wish.cut->layout, wish.step);
    }
    for (Value* v : made_) cuts_.Unassign(v);
  }

 private:
  struct Wish {
    std::optional<DimCut> cut;  // nothing: it stays whole
    int step = -1;
  };

  // What tables hold of each token, or of each distance, and what becomes of it, or of weights,
  // element by element with weights and constants.
  void FindMade() {
    for (Op* op : cuts_.ops()) {
      if (!op->def->rule || op->operands.empty()) continue;
      const bool lookup = op->name() == "embedding" && cuts_.IsWeight(op->operands[0]) &&
                          !cuts_.IsWeight(op->operands[1]);
      const bool moves = op->def->elementwise || op->name() == "reshape" ||
                         op->name() == "transpose" || op->name() == "broadcast_to";
      const bool of_params =
          moves &&
          std::ranges::any_of(op->operands, [&](const Value* v) { return IsMadeOfParams(v); }) &&
          std::ranges::all_of(op->operands,
                              [&](const Value* v) { return IsMadeOfParams(v) || ConstantOf(v); });
      if (lookup || of_params) of_params_.insert(op->results.begin(), op->results.end());
    }
  }

  bool IsMadeOfParams(const Value* v) const { return cuts_.IsWeight(v) || of_params_.contains(v); }

  // Cut because weights are.
  bool IsOfWeights(Value* v) const {
    return cuts_.IsCut(v) && (cuts_.IsWeight(v) || made_.contains(v));
  }

  static bool IsPlain(const ShardingRule& rule, const FactorCut& cut) {
    return rule.factors[cut.factor].kind == FactorKind::kPlain ||
           rule.factors[cut.factor].kind == FactorKind::kExpandable;
  }

  struct FromWeights {
    FactorCut cut;
    Value* weight = nullptr;
    int step = -1;
  };

  void PassOn(Op& op, const ShardingRule& rule) {
    const std::vector<Slot> slots = AxisCuts::SlotsOf(op, rule);
    const std::optional<FromWeights> from = CutOfWeights(slots, rule);
    if (from) CutResults(slots, rule, *from);
    const bool reads_values = std::ranges::any_of(
        slots, [&](const Slot& s) { return !s.result && !IsMadeOfParams(s.value); });
    if (reads_values && !of_params_.contains(op.results[0])) AskParams(op, slots, rule, from);
  }

  // Nothing also where those of several differ: which of them the op will have is not known yet.
  std::optional<FromWeights> CutOfWeights(const std::vector<Slot>& slots,
                                          const ShardingRule& rule) const {
    std::optional<FromWeights> from;
    for (const Slot& s : slots) {
      if (s.result || !IsOfWeights(s.value)) continue;
      const auto own = cuts_.CutOf(rule, *s.value, *s.dims);
      if (!own || !IsPlain(rule, *own)) continue;
      if (from && from->cut != *own) return std::nullopt;
      from = {*own, s.value, ProvenanceOf(s.value, axis_)};
    }
    return from;
  }

  void CutResults(const std::vector<Slot>& slots, const ShardingRule& rule,
                  const FromWeights& from) {
    for (const Slot& s : slots) {
      if (!s.result || cuts_.IsCut(s.value)) continue;
      std::optional<DimCut> cut = CutAsWeights(s, rule, from);
      if (!cut) continue;
      made_.insert(s.value);
      cuts_.Assign(s.value, cut->dim, std::move(cut->layout), from.step);
    }
  }

  // The other parameters, which the op combines with values.
  void AskParams(const Op& op, const std::vector<Slot>& slots, const ShardingRule& rule,
                 const std::optional<FromWeights>& from) {
    // What is summed over is no element beside another: with it the result is partial, which costs
    // less than the whole operand only where that is much larger (Mamba's dt, B and C).
    const bool each = from && std::ranges::any_of(rule.results, [&](const auto& dims) {
                        return DimOfFactor(dims, from->cut.factor) >= 0;
                      });
    const bool follows =
        each || (from && 2 * op.out().num_elements() <= from->weight->type.num_elements());
    for (const Slot& s : slots) {
      if (s.result || !IsMadeOfParams(s.value) || cuts_.IsCut(s.value)) continue;
      Ask(s.value, follows ? CutAsWeights(s, rule, *from) : std::nullopt, op,
          from ? from->step : -1);
    }
  }

  std::optional<DimCut> CutAsWeights(const Slot& s, const ShardingRule& rule,
                                     const FromWeights& from) const {
    const int d = DimOfFactor(*s.dims, from.cut.factor);
    auto with = d < 0 ? std::nullopt : cuts_.WithCut(rule, s, d, from.cut);
    return with ? std::optional(DimCut{d, std::move(*with)}) : std::nullopt;
  }

  // One of the weight's readers wants the parameters that it is made of cut so, or whole.
  void Ask(Value* weight, std::optional<DimCut> cut, const Op& reader, int step) {
    std::vector<Asked> open = {{weight, std::move(cut)}};  // the last is next
    while (!open.empty()) {
      Asked asked = std::move(open.back());
      open.pop_back();
      if (Wishes(asked, reader, step)) AskOperands(asked, open);
    }
  }

  // A weight, or what is made of some.
  struct Asked {
    Value* weight;
    std::optional<DimCut> cut;
  };

  // Whether that says anything new of what it is made of.
  bool Wishes(Asked& asked, const Op& reader, int step) {
    auto& [weight, cut] = asked;
    const Op* op = weight->producer;
    const bool state = op->def->is_state;
    if (state ? op->name() != "param" || op->attrs.Has("whole") || cuts_.IsCut(weight)
              : !op->def->rule) {
      return false;
    }
    const auto [it, first] = wishes_.emplace(weight, Wish{cut, -1});
    Wish& wish = it->second;
    if (!first) {
      // Nothing new. What is made of one weight by many ops has very many ways back to it.
      if (!wish.cut || wish.cut == cut) return false;
      wish.cut.reset();
      cut.reset();
    }
    if (state && cut) wish.step = AddProvenance(cuts_.graph(), step, "read by " + Describe(reader));
    return !state;
  }

  void AskOperands(const Asked& asked, std::vector<Asked>& open) const {
    const auto& [weight, cut] = asked;
    const Op& op = *weight->producer;
    const ShardingRule& rule = *cuts_.RuleOf(op);
    std::optional<FactorCut> factor;
    if (cut) {
      const auto& dims = rule.results[weight->index];
      factor = ProjectAxis(rule, dims[cut->dim], weight->type.shape[cut->dim], cut->layout, axis_,
                           cuts_.graph().mesh);
    }
    if (factor && rule.factors[factor->factor].kind != FactorKind::kPlain) factor.reset();
    const std::vector<Slot> slots = AxisCuts::SlotsOf(op, rule);
    for (const Slot& s : slots | std::views::reverse) {
      if (s.result || !IsMadeOfParams(s.value)) continue;
      const int d = factor ? DimOfFactor(*s.dims, factor->factor) : -1;
      auto with = d < 0 ? std::nullopt : cuts_.WithCut(rule, s, d, *factor);
      open.push_back({s.value, with ? std::optional(DimCut{d, std::move(*with)}) : std::nullopt});
    }
  }

  AxisCuts& cuts_;
  const int axis_;
  std::map<Value*, Wish> wishes_;               // of weights, and of what is made of them
  std::unordered_set<Value*> made_;             // values that are cut here for the time being
  std::unordered_set<const Value*> of_params_;  // beside what AxisCuts calls weights
};

bool CutsInput(const Graph& graph, int axis) {
  return std::ranges::any_of(graph.inputs(),
                             [&](const auto& v) { return v->type.sharding.Uses(axis); });
}
bool CutsParam(const Graph& graph, int axis) {
  return std::ranges::any_of(graph.Params(),
                             [&](const Op* p) { return p->out().sharding.Uses(axis); });
}

}  // namespace

void FollowCuts(Graph& graph) {
  std::vector<int> axes;
  for (int axis = 0; axis < graph.mesh.num_axes(); ++axis) {
    if (graph.mesh.axis_size(axis) > 1 && CutsParam(graph, axis) && !CutsInput(graph, axis)) {
      axes.push_back(axis);
    }
  }
  if (axes.empty()) return;
  AxisCuts cuts(graph);
  for (const int axis : axes) Follower(cuts, axis).Run();
}

}  // namespace shardc
