#include "passes/insert_reshards.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/provenance.h"
#include "passes/rules.h"
#include "passes/strategy.h"
#include "passes/take_apart.h"
#include "passes/versions.h"

namespace shardc {
namespace {

class Inserter {
 public:
  explicit Inserter(Graph& graph) : graph_(graph), mesh_(graph.mesh), versions_(graph) {
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
          Constrains(*op, axis, mesh_)
              ? AskedFor(*op, rule, axis, mesh_)
              : ChooseStrategy(*op, rule, axis, cuts, !wishless_.contains(op), versions_, mesh_);
      expand |=
          s.kind == Strategy::kFactor && rule.factors[s.cut.factor].kind == FactorKind::kExpandable;
      if (expand) break;
      auto effect = EffectOf(s, *op, rule, axis, cuts, mesh_);
      SHARDC_CHECK(effect, Describe(*op), " does not go with axis ", mesh_.axes()[axis].name);
      Explain(*op, rule, axis, s, *effect);
      cuts = std::move(effect->cuts);
      for (size_t i = 0; i < operands.size(); ++i) Apply(effect->operands[i], axis, operands[i]);
      for (size_t i = 0; i < results.size(); ++i) Apply(effect->results[i], axis, results[i]);
    }
    if (expand) return Expand(op);
    for (const FactorCut& cut : cuts) {
      const bool stretch = rule.factors[cut.factor].contiguous;
      if (!stretch || cut.layout.segments.empty()) continue;
      return Rewrite(op, [&](Builder& b) { return TakeApart(b, *op, rule, cut); });
    }
    for (size_t i = 0; i < op->operands.size(); ++i) {
      Require(op, static_cast<int>(i),
              Canonical({op->in(i).dtype, op->in(i).shape, operands[i]}, mesh_));
    }
    if (op->def->constrains) return Dissolve(op);
    for (size_t i = 0; i < op->results.size(); ++i) {
      Value* r = op->results[i];
      versions_.SetWish(r, r->type.sharding);
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

  // Puts what is made before the op in its place. Returns the first op made.
  template <typename Make>
  Op* Rewrite(Op* op, const Make& make) {
    Op* previous = graph_.Previous(op);
    Builder builder(graph_, op, *op);
    const std::vector<Value*> values = make(builder);
    SHARDC_CHECK(values.size() == op->results.size(), op->name());
    Op* first = previous ? graph_.Next(previous) : graph_.ops().front().get();
    Replace(op, first, values);
    return first;
  }

  Op* Expand(Op* op) {
    const Op* end = graph_.Next(op);
    Op* first = Rewrite(op, [op](Builder& b) { return op->def->expand(b, *op); });
    for (Op* o = first; o != end; o = graph_.Next(o)) wishless_.insert(o);
    return first;
  }

  // Replaces the op by values of the ops from `first` up to it. An operand that equals a result is
  // as it is.
  void Replace(Op* op, Op* first, const std::vector<Value*>& values) {
    std::unordered_set<const Op*> made;
    for (Op* o = first; o != op; o = graph_.Next(o)) made.insert(o);
    for (size_t i = 0; i < values.size(); ++i) {
      if (made.contains(values[i]->producer)) {
        values[i]->type.sharding = op->results[i]->type.sharding;
        values[i]->provenance = op->results[i]->provenance;
      }
      graph_.ReplaceAllUses(op->results[i], values[i]);
      if (auto outputs = gradients_.extract(op->results[i]); !outputs.empty()) {
        std::ranges::copy(outputs.mapped(), std::back_inserter(gradients_[values[i]]));
      }
    }
    graph_.Erase(op);
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

  bool IsPlaced(const Value* v, int axis, const Placement& placement) const {
    const Placement is = PlacementOf(v->type, axis, mesh_);
    return is.kind == placement.kind && is.dim == placement.dim;
  }

  // The step behind the operand that the op's cut comes from: one that is so itself, before one
  // that is made so for the op; a weight before a value.
  int StepBehind(const Op& op, const ShardingRule& rule, int axis, const Strategy& s,
                 const Effect& effect) const {
    for (bool is_so : {true, false}) {
      for (bool weights : {true, false}) {
        for (size_t i = 0; i < op.operands.size(); ++i) {
          const Value* v = op.operands[i];
          if (versions_.IsWeight(v) != weights || ProvenanceOf(v, axis) < 0) continue;
          if (s.kind == Strategy::kFactor && DimOfFactor(rule.operands[i], s.cut.factor) < 0)
            continue;
          if (!is_so || IsPlaced(v, axis, effect.operands[i].placement))
            return ProvenanceOf(v, axis);
        }
      }
    }
    return -1;
  }

  // Records why the results are placed as they are.
  void Explain(Op& op, const ShardingRule& rule, int axis, const Strategy& s,
               const Effect& effect) {
    if (s.kind == Strategy::kWhole) return;
    const int parent = StepBehind(op, rule, axis, s, effect);
    for (size_t i = 0; i < op.results.size(); ++i) {
      Value* r = op.results[i];
      const bool contracted =
          s.kind == Strategy::kFactor && DimOfFactor(rule.results[i], s.cut.factor) < 0;
      const int wished = ProvenanceOf(r, axis);
      if (wished >= 0 && IsPlaced(r, axis, effect.results[i].placement)) continue;
      // Why it is cut in the end, besides why it is otherwise before.
      if (wished >= 0) versions_.SetReason(r, axis, wished);
      std::string text = contracted ? Describe(op) + " sums over a dim that is cut: partial"
                         : s.kind == Strategy::kLinear ? "partial through " + Describe(op)
                                                       : "through " + Describe(op);
      SetProvenance(r, axis, AddProvenance(graph_, parent, std::move(text)));
    }
  }

  void Require(Op* op, int operand, const Sharding& want) {
    Value* v = op->operands[operand];
    if (v->type.sharding == want) return;
    graph_.SetOperand(op, operand, versions_.Get(v, want, op));
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
      const Sharding* wish = versions_.WishOf(v);
      want = wish ? *wish : Sharding(v->type.shape.size());
    }
    const auto output = graph_.outputs.begin() + static_cast<std::ptrdiff_t>(i);
    graph_.outputs.Set(output, versions_.Get(v, want, nullptr));
  }

  Graph& graph_;
  const Mesh& mesh_;
  Rules rules_;
  Versions versions_;
  std::vector<int> axes_;
  std::map<std::string, Op*, std::less<>> states_;
  std::unordered_map<const Value*, std::vector<size_t>> gradients_;  // and which outputs they are
  std::unordered_set<const Op*> wishless_;  // made by expand: no one asked for their results
};

}  // namespace

void InsertReshards(Graph& graph) { Inserter(graph).Run(); }

}  // namespace shardc
