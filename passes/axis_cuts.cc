#include "passes/axis_cuts.h"

#include <utility>

#include "ir/op_def.h"
#include "passes/numbering.h"
#include "passes/provenance.h"
#include "passes/weights.h"

namespace shardc {

AxisCuts::AxisCuts(Graph& graph)
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
  }
}

void AxisCuts::Begin(int axis) {
  axis_ = axis;
  dim_.assign(pinned_.size(), -1);
  decided_.assign(pinned_.size(), false);
  wished_.assign(pinned_.size(), false);
  changed_.assign(ops_.size(), true);
}

void AxisCuts::ReadTypes() {
  auto read = [&](const Value* v) {
    for (int d = 0; d < v->type.rank(); ++d) {
      if (v->type.sharding.dims[d].axes.contains(axis_)) dim_[v->id] = d;
    }
  };
  for (const auto& input : graph_.inputs()) read(input.get());
  for (Op* op : ops_) {
    for (Value* r : op->results) read(r);
  }
}

void AxisCuts::Assign(Value* v, int dim, DimSharding with_axis, int provenance) {
  v->type.sharding.dims[dim] = std::move(with_axis);
  dim_[v->id] = dim;
  SetProvenance(v, axis_, provenance);
  if (v->producer) changed_[v->producer->id] = true;
  for (const Op* user : v->users) changed_[user->id] = true;
}

void AxisCuts::Unassign(Value* v) {
  if (!IsCut(v)) return;
  const int at = DimOf(v);
  DimSharding& d = v->type.sharding.dims[at];
  d.axes.erase(axis_);
  d = Canonical(v->type.shape[at], std::move(d), graph_.mesh);
  dim_[v->id] = -1;
  SetProvenance(v, axis_, -1);
}

bool AxisCuts::TakeChanged(const Op& op) {
  const bool changed = changed_[op.id];
  changed_[op.id] = false;
  return changed;
}

std::optional<FactorCut> AxisCuts::CutOf(const ShardingRule& rule, const Value& v,
                                         const std::vector<DimFactors>& dims) const {
  const int d = DimOf(&v);
  if (d < 0) return std::nullopt;
  return ProjectAxis(rule, dims[d], v.type.shape[d], v.type.sharding.dims[d], axis_, graph_.mesh);
}

std::optional<DimSharding> AxisCuts::WithCut(const ShardingRule& rule, const Slot& slot, int d,
                                             const FactorCut& cut) const {
  return WithCut(rule, slot, d, slot.value->type.sharding.dims[d], cut);
}

std::optional<DimSharding> AxisCuts::WithCut(const ShardingRule& rule, const Slot& slot, int d,
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
  if (!with || FillsParts(type.shape[d], *with, graph_.mesh)) return with;
  // Where params have fewer heads than there are ranks, so has what is made of them.
  const bool given_empty = !FillsParts(rule.factors[cut.factor].size, cut.layout, graph_.mesh);
  return given_empty ? with : std::nullopt;
}

AxisList AxisCuts::AxesBefore(const ShardingRule& rule, const Slot& slot, int factor) const {
  AxisList axes;
  const int d = DimOfFactor(*slot.dims, factor);
  const TensorType& type = slot.value->type;
  if (d < 0 || !type.sharding.dims[d].cut()) return axes;
  const auto cuts =
      ProjectToFactors(rule, (*slot.dims)[d], type.shape[d], type.sharding.dims[d], graph_.mesh);
  for (const FactorCut& c : cuts.value_or(std::vector<FactorCut>())) {
    for (int a : c.layout.axes) {
      if (c.factor == factor && a < axis_) axes.push_back(a);
    }
  }
  return axes;
}

std::vector<Slot> AxisCuts::SlotsOf(const Op& op, const ShardingRule& rule) {
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

}  // namespace shardc
