#include "passes/fuse_elementwise.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "ir/op_def.h"
#include "ir/scalar_program.h"
#include "passes/add_in_passing.h"
#include "passes/infers.h"
#include "passes/narrow_params.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

// Ops further apart stay apart: what the first one reads would be held until the last. Casts of
// parameters do not count: whether an optimizer needs these in f32 is not to decide what is fused,
// and so rounded.
constexpr int kNear = 16;

bool IsFloatCast(const Op& op) {
  return op.name() == "cast" && IsFloat(op.in(0).dtype) && IsFloat(op.out().dtype);
}

// f64 runs are for comparing: they keep to the ops of the model.
bool Fits(const Value* v) {
  DType t = v->type.dtype;
  return IsFloat(t) && t != DType::kF64 && !v->type.sharding.partial();
}

// The comparison that decides in a `where`.
Op* ConditionOf(const Op& op) { return op.name() == "where" ? op.operands[0]->producer : nullptr; }

// But for its condition.
bool Fusable(const Op& op) {
  if (op.results.size() != 1 || op.out().rank() == 0 || !Fits(op.result())) return false;
  if (!ScalarOpOf(op) && !IsFloatCast(op)) return false;
  const auto first = op.operands.begin() + (op.name() == "where" ? 1 : 0);
  return std::all_of(first, op.operands.end(), Fits);
}

using Group = std::vector<Op*>;  // in order

class Fusion {
 public:
  explicit Fusion(Graph& graph) : graph_(graph), ops_(NumberedOps(graph)) {
    int count = 0;
    for (const Op* op : ops_) counts_.push_back(CastsParam(*op) ? count : count++);
  }

  void Run() {
    const AddsInPassing adds(graph_);
    for (Op* op : ops_) {
      if (!Fusable(*op) || adds.Of(*op).f) continue;
      if (op->name() != "where" || DecidesAlone(op)) Join(op);
    }
    for (Group& group : groups_) MakeAgain(group);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].size() > 1) Emit(groups_[g], places_[g]);
    }
  }

 private:
  static bool SamePlace(const Op& a, const Op& b) {
    return a.phase == b.phase && a.RunsWith(b) && a.out().shape == b.out().shape &&
           a.out().sharding == b.out().sharding;
  }

  bool Near(const Op& first, const Op& last) const {
    return counts_[last.id] - counts_[first.id] <= kNear;
  }

  // Whether the condition of a `where` is a comparison of floats that can become part of it.
  bool DecidesAlone(const Op* where) const {
    const Op* op = ConditionOf(*where);
    if (!op || !Near(*op, *where) || !graph_.OnlyUser(op->result())) return false;
    const std::optional<ScalarOp> scalar = ScalarOpOf(*op);
    return scalar && IsComparison(*scalar) && SamePlace(*op, *where) &&
           std::ranges::all_of(op->operands, Fits);
  }

  void Join(Op* op) {
    Group group;
    Op* condition = ConditionOf(*op);
    std::vector<Value*> reads = op->operands;
    if (condition) {
      group.push_back(condition);
      reads.insert(reads.end(), condition->operands.begin(), condition->operands.end());
    }
    std::vector<size_t> joined;
    auto offer = [&](const Op* other) {
      auto it = group_of_.find(other);
      if (it == group_of_.end()) return;
      size_t g = it->second;
      if (std::find(joined.begin(), joined.end(), g) != joined.end()) return;
      if (!SamePlace(*other, *op) || !MayMoveTo(groups_[g], op, condition)) return;
      if (condition && GivesHalf(groups_[g], *condition)) return;
      Group merged = Merged(group, groups_[g]);
      merged.push_back(op);
      if (!FitsOneProgram(merged)) return;
      merged.pop_back();
      group = std::move(merged);
      joined.push_back(g);
    };
    for (const Value* v : reads) {
      if (v->producer) offer(v->producer);
    }
    for (const Value* v : reads) {
      if (v->type.shape != op->out().shape) continue;
      // Its readers shortly before: there may be very many in all.
      int id = op->id;
      while (id > 0 && Near(*ops_[id - 1], *op)) --id;
      for (; id < op->id; ++id) {
        const Op* near = ops_[id];
        if (std::ranges::find(near->operands, v) != near->operands.end()) offer(near);
      }
    }
    if (joined.empty() && !condition && JoinEarlier(op)) return;
    group.push_back(op);
    for (size_t g : joined) groups_[g].clear();
    for (const Op* member : group) group_of_[member] = groups_.size();
    groups_.push_back(std::move(group));
    places_.push_back(op);
  }

  // Into a group that must stay before what others read of it: the op moves there. Only where it
  // reads what the group would write for it alone, so that no more is held meanwhile.
  bool JoinEarlier(Op* op) {
    for (const Value* v : op->operands) {
      auto it = group_of_.find(v->producer);
      if (it == group_of_.end() || graph_.OnlyUser(v) != op) continue;
      Group& group = groups_[it->second];
      const Op* place = places_[it->second];
      const bool there = std::ranges::all_of(op->operands, [&](const Value* read) {
        const Op* maker = read->producer;
        return !maker || Contains(group, maker) || PlaceOf(maker)->id < place->id;
      });
      if (!there || !SamePlace(*place, *op) || !Near(*group.front(), *op)) continue;
      group.push_back(op);
      if (FitsOneProgram(group)) {
        group_of_[op] = it->second;
        return true;
      }
      group.pop_back();
    }
    return false;
  }

  // What another group makes on its way, and would write for this one alone, this one makes again
  // of what it reads anyway: it is neither written nor read, and takes no memory. In any phase, so
  // that --recompute rounds the same.
  void MakeAgain(Group& group) {
    std::vector<Value*> reads = Reads(group);
    // The last that was made first: what it is made of may be made again, too.
    std::ranges::sort(reads, std::greater(),
                      [](const Value* v) { return v->producer ? v->producer->id : -1; });
    for (Value* v : reads) {
      const Op* op = v->producer;
      auto it = group_of_.find(op);
      if (it == group_of_.end() || !op->RunsWith(*group[0]) || graph_.IsOutput(v)) continue;
      // A row would be made for every element that it is stretched to.
      if (v->type.shape != group[0]->out().shape) continue;
      const Group& maker = groups_[it->second];
      if (!std::ranges::all_of(v->users, [&](const Op* user) {
            return Contains(maker, user) || (Contains(group, user) && !Compares(*user));
          })) {
        continue;
      }
      if (std::ranges::none_of(v->users, [&](const Op* u) { return Contains(maker, u); }) ||
          !std::ranges::all_of(op->operands, [&](Value* x) { return Contains(reads, x); })) {
        continue;
      }
      Op* again = graph_.AddOp(*op->def, op->operands, {v->type}, op->attrs, group[0], *group[0]);
      group.insert(group.begin(), again);
      if (!FitsOneProgram(group)) {
        group.erase(group.begin());
        graph_.Erase(again);
        continue;
      }
      for (Op* user : group) {
        for (size_t k = 0; k < user->operands.size(); ++k) {
          if (user->operands[k] == v) graph_.SetOperand(user, static_cast<int>(k), again->result());
        }
      }
    }
  }

  const Op* PlaceOf(const Op* op) const {
    auto it = group_of_.find(op);
    return it == group_of_.end() ? op : places_[it->second];
  }

  // A comparison of what was not rounded could turn out another way.
  static bool GivesHalf(const Group& group, const Op& comparison) {
    return std::ranges::any_of(comparison.operands, [&](const Value* v) {
      return IsHalf(v->type.dtype) && Contains(group, v->producer);
    });
  }

  static Group Merged(const Group& a, const Group& b) {
    Group all;
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all),
               [](const Op* x, const Op* y) { return x->id < y->id; });
    return all;
  }

  // Whether the group's ops could as well stand where `op` does, and its condition with it.
  bool MayMoveTo(const Group& group, const Op* op, const Op* condition) const {
    if (!Near(*group.front(), *op)) return false;
    size_t own = group_of_.at(group.front());
    for (const Op* member : group) {
      for (const Op* user : member->result()->users) {
        if (user->id >= op->id || user == condition) continue;
        auto it = group_of_.find(user);
        if (it == group_of_.end() || it->second != own) return false;
      }
    }
    return true;
  }

  static bool Compares(const Op& op) {
    const std::optional<ScalarOp> scalar = ScalarOpOf(op);
    return scalar && IsComparison(*scalar);
  }

  // What the group does not make, each once.
  static std::vector<Value*> Reads(const Group& group) {
    std::vector<Value*> reads;
    std::unordered_set<const Value*> seen;
    for (const Op* op : group) {
      for (Value* v : op->operands) {
        if (!Contains(group, v->producer) && seen.insert(v).second) reads.push_back(v);
      }
    }
    return reads;
  }

  bool FitsOneProgram(const Group& group) const {
    int results = 0, steps = 0;
    for (const Op* op : group) {
      results += Leaves(group, op->result());
      steps += !IsFloatCast(*op);
    }
    return static_cast<int>(Reads(group).size()) <= ScalarProgram::kMaxInputs &&
           results <= ScalarProgram::kMaxResults && steps <= ScalarProgram::kMaxSteps;
  }

  template <typename T>
  static bool Contains(const std::vector<T*>& all, const T* one) {
    return one && std::ranges::find(all, one) != all.end();
  }

  bool Leaves(const Group& group, const Value* v) const {
    return graph_.IsOutput(v) || std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
             return !Contains(group, user);
           });
  }

  // In an order in which ops read what the one before has made, where they may: kernels have that
  // at hand.
  static Group InChains(Group left) {
    Group ops;
    while (!left.empty()) {
      auto next = left.end();
      for (auto it = left.begin(); it != left.end(); ++it) {
        const auto& reads = (*it)->operands;
        if (std::ranges::any_of(reads, [&](Value* v) { return Contains(left, v->producer); })) {
          continue;
        }
        const bool follows = !ops.empty() && Contains(reads, ops.back()->result());
        if (follows || next == left.end()) next = it;
        if (follows) break;
      }
      ops.push_back(*next);
      left.erase(next);
    }
    return ops;
  }

  void Emit(const Group& group, Op* place) {
    ScalarProgram program;
    std::vector<Value*> operands = Reads(group), replaced;
    std::unordered_map<const Value*, int> number;
    for (const Value* v : operands) number[v] = program.inputs++;
    Strings types;
    std::vector<TensorType> result_types;
    Ints results;
    for (const Op* op : InChains(group)) {
      Value* v = op->result();
      if (auto scalar = ScalarOpOf(*op)) {
        ScalarStep step{*scalar};
        for (size_t k = 0; k < op->operands.size(); ++k) step.operands[k] = number[op->operands[k]];
        number[v] = program.inputs + static_cast<int>(program.steps.size());
        program.steps.push_back(step);
      } else {
        number[v] = number[op->operands[0]];
      }
      if (!Leaves(group, v)) continue;
      replaced.push_back(v);
      results.push_back(number[v]);
      types.emplace_back(DTypeName(v->type.dtype));
      result_types.push_back(v->type);
    }
    Op* fused =
        graph_.AddOp(GetOpDef("fused_elementwise"), std::move(operands), std::move(result_types),
                     {{"steps", program.StepsToStrings()},
                      {"results", std::move(results)},
                      {"types", std::move(types)}},
                     place, *place);
    for (size_t r = 0; r < replaced.size(); ++r) {
      fused->result(static_cast<int>(r))->name = replaced[r]->name;
      graph_.ReplaceAllUses(replaced[r], fused->result(static_cast<int>(r)));
    }
    for (auto it = group.rbegin(); it != group.rend(); ++it) graph_.Erase(*it);
  }

  Graph& graph_;
  const std::vector<Op*> ops_;  // by Op::id
  std::vector<int> counts_;     // by Op::id: how many are before it, but for casts of parameters
  std::vector<Group> groups_;
  std::vector<Op*> places_;  // by group: its op where all of them will be
  std::unordered_map<const Op*, size_t> group_of_;
};

// Whether `whole` is `part` stretched, each rank's its own.
bool StretchesOnEachRank(const TensorType& part, const TensorType& whole) {
  if (part.sharding.partial() || whole.sharding.partial()) return false;
  const int more = whole.rank() - part.rank();
  for (int d = 0; d < part.rank(); ++d) {
    if (part.shape[d] == whole.shape[d + more] &&
        part.sharding.dims[d] != whole.sharding.dims[d + more]) {
      return false;
    }
  }
  return true;
}

// Elementwise ops stretch their operands themselves.
void ReadUnstretched(Graph& graph) {
  for (const auto& op : graph.ops()) {
    if (op->results.size() != 1 || !op->def->elementwise) continue;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      Op* stretch = op->operands[i]->producer;
      if (!stretch || stretch->name() != "broadcast_to" || !stretch->RunsWith(*op)) continue;
      Value* part = stretch->operands[0];
      if (!StretchesOnEachRank(part->type, stretch->out())) continue;
      std::vector<TensorType> operands;
      for (const Value* v : op->operands) operands.push_back(v->type);
      operands[i] = part->type;
      const TensorType results[] = {op->out()};
      if (!Infers(*op->def, operands, op->attrs, results)) continue;
      graph.SetOperand(op.get(), static_cast<int>(i), part);
      if (stretch->result()->users.empty() && !graph.IsOutput(stretch->result())) {
        graph.Erase(stretch);
      }
    }
  }
}

}  // namespace

void FuseElementwise(Graph& graph) {
  ReadUnstretched(graph);
  Fusion(graph).Run();
}

}  // namespace shardc
