// The cuts of a graph's values over one mesh axis after the other, as propagation decides on them.
#pragma once

#include <optional>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "passes/layout.h"
#include "passes/rules.h"

namespace shardc {

// One use of a value in an op: an operand or a result.
struct Slot {
  Value* value;
  const std::vector<DimFactors>* dims;
  bool result;
};

// Of the axis whose turn it is. Values and ops are known by their ids.
class AxisCuts {
 public:
  // Numbers the ops and the values. Inputs and results of ops without a rule are pinned.
  explicit AxisCuts(Graph& graph);

  // The turn of another axis: nothing is decided or wished for, and all ops are visited.
  void Begin(int axis);
  // Takes what the values' types say of the axis.
  void ReadTypes();

  Graph& graph() const { return graph_; }
  const std::vector<Op*>& ops() const { return ops_; }
  int axis() const { return axis_; }
  size_t num_values() const { return dim_.size(); }
  // Null where the op has none.
  const ShardingRule* RuleOf(const Op& op) const { return rules_[op.id]; }
  bool IsWeight(const Value* v) const { return weights_.contains(v); }
  // A gradient of a parameter that is an output.
  bool IsGradient(const Value* v) const { return gradient_[v->id]; }

  // The dim that the axis cuts, or -1.
  int DimOf(const Value* v) const { return dim_[v->id]; }
  bool IsCut(const Value* v) const { return DimOf(v) >= 0; }
  // Not to be cut otherwise.
  bool Pinned(const Value* v) const { return pinned_[v->id] || decided_[v->id]; }
  // By a constraint over this axis, or by the state that it becomes.
  void Decide(const Value* v, bool decided) { decided_[v->id] = decided; }
  // To be cut like the state that it becomes.
  bool Wished(const Value* v) const { return wished_[v->id]; }
  void Wish(const Value* v) { wished_[v->id] = true; }

  // The dim is cut as said, for that reason; ops that have the value are to be visited again.
  void Assign(Value* v, int dim, DimSharding with_axis, int provenance);
  void Unassign(Value* v);
  // Whether a value of the op has changed since it was asked last.
  bool TakeChanged(const Op& op);

  // The cut of the value over this axis alone, as a cut of one of the rule's factors.
  std::optional<FactorCut> CutOf(const ShardingRule& rule, const Value& v,
                                 const std::vector<DimFactors>& dims) const;
  // The dim of the slot's value with the cut added to what the axes before do, or to `now`. Nothing
  // where that cannot be written down, or leaves a part without anything, but for a cut of the
  // factor in more parts than it has elements.
  std::optional<DimSharding> WithCut(const ShardingRule& rule, const Slot& slot, int d,
                                     const FactorCut& cut) const;
  std::optional<DimSharding> WithCut(const ShardingRule& rule, const Slot& slot, int d,
                                     const DimSharding& now, const FactorCut& cut) const;
  // The axes that had their turn and cut the factor where the slot's value has it.
  AxisList AxesBefore(const ShardingRule& rule, const Slot& slot, int factor) const;
  // Operands, then results.
  static std::vector<Slot> SlotsOf(const Op& op, const ShardingRule& rule);

 private:
  Graph& graph_;
  std::unordered_set<const Value*> weights_;
  const std::vector<Op*> ops_;
  Rules all_rules_;
  std::vector<const ShardingRule*> rules_;  // by Op::id
  std::vector<bool> gradient_, pinned_;     // by Value::id
  int axis_ = 0;
  std::vector<int> dim_;                // by Value::id
  std::vector<bool> decided_, wished_;  // by Value::id
  std::vector<bool> changed_;           // by Op::id
};

}  // namespace shardc
