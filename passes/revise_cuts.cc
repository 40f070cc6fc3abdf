#include "passes/revise_cuts.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "ir/contains.h"
#include "ir/op_def.h"
#include "passes/forward_uses.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

class Revision {
 public:
  explicit Revision(AxisCuts& cuts) : cuts_(cuts) {}

  void Run() {
    FollowReaders();
    DropCostlyCuts();
    if (LeaveSums()) DropCostlyCuts();  // of what is read beside these sums
  }

 private:
  // What is much larger than what it is made of, as a value repeated for each expert, is cut as
  // what it is read with, and so are its readers' results: to move what it is made of costs less.
  void FollowReaders() {
    for (Op* op : cuts_.ops()) {
      if (!op->def->rule || op->results.size() != 1) continue;
      Value* r = op->result();
      if (!cuts_.IsCut(r) || Native(*op, r) || cuts_.Wished(r)) continue;
      int64_t bytes = 0;
      for (const Value* v : op->operands) bytes += v->type.bytes();
      if (cuts_.graph().mesh.axis_size(cuts_.axis()) * bytes >= r->type.bytes()) continue;
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
    const ShardingRule& rule = *cuts_.RuleOf(op);
    const std::vector<Slot> slots = cuts_.SlotsOf(op, rule);
    const Slot own = *std::ranges::find(slots, v, &Slot::value);
    if (cuts_.Pinned(v) || cuts_.Wished(v) || !cuts_.IsCut(v)) return false;
    for (const Slot& s : slots) {
      const auto cut =
          s.result || s.value == v ? std::nullopt : cuts_.CutOf(rule, *s.value, *s.dims);
      const int d = cut ? DimOfFactor(*own.dims, cut->factor) : -1;
      if (d < 0 || d == cuts_.DimOf(v)) continue;
      const auto with = cuts_.WithCut(rule, own, d, *cut);
      if (!with) continue;
      const int why = ProvenanceOf(v, cuts_.axis());
      cuts_.Unassign(v);
      cuts_.Assign(v, d, *with, why);
      return true;
    }
    return false;
  }

  // A value that was cut only because it may be, and that some user needs whole, costs an
  // all_gather there. It stays whole where making it so costs less: a slice is free, a gather of
  // what it is made from may be the same gather earlier (and the ops between need no statistics
  // then).
  void DropCostlyCuts() {
    std::vector<int64_t> cost(cuts_.num_values(), 0);  // bytes gathered to have the value whole
    for (Op* op : cuts_.ops()) {
      for (Value* r : op->results) {
        if (!cuts_.IsCut(r)) continue;
        int64_t bytes = r->type.bytes();
        cost[r->id] = Native(*op, r) ? bytes : std::min(bytes, OperandsCost(*op, cost));
      }
    }
    for (const auto& input : cuts_.graph().inputs()) {
      if (cuts_.IsCut(input.get())) cost[input->id] = input->type.bytes();
    }
    for (auto it = cuts_.ops().rbegin(); it != cuts_.ops().rend(); ++it) {
      Op& op = **it;
      int64_t gathered = 0;
      bool free_to_drop = true;
      for (Value* r : op.results) {
        if (!cuts_.IsCut(r)) continue;
        free_to_drop = free_to_drop && !Native(op, r) && !cuts_.Wished(r);
        if (NeededWhole(r)) gathered += r->type.bytes();
      }
      if (!free_to_drop || gathered == 0 || OperandsCost(op, cost) > gathered) continue;
      for (Value* r : op.results) cuts_.Unassign(r);
    }
  }

  int64_t OperandsCost(const Op& op, const std::vector<int64_t>& cost) const {
    int64_t sum = 0;
    for (const Value* v : op.operands) {
      if (cuts_.IsCut(v) && !GatheredBeside(op, v)) sum += cost[v->id];
    }
    return sum;
  }

  // Whether another op gathers the value anyway, as a product with a weight that is cut along its
  // columns does. Of very many readers the first tell enough.
  bool GatheredBeside(const Op& op, const Value* v) const {
    constexpr size_t kMaxReaders = 64;
    const auto asked = std::span(v->users).first(std::min(v->users.size(), kMaxReaders));
    return AnyUser(asked, [&](const Op& user) {
      if (&user == &op || user.phase != op.phase) return false;
      return AnyRead(user, *v, [&](const ShardingRule& rule, const std::optional<FactorCut>& cut) {
        return cut && UsesWeightOtherwise(user, rule, *cut);
      });
    });
  }

  // Cut by a state or by hand, and not by choice.
  bool Native(const Op& op, const Value* r) const {
    if (cuts_.Pinned(r) || !op.def->rule) return true;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Value* v = op.operands[i];
      if (!cuts_.IsCut(v) || !cuts_.IsWeight(v)) continue;
      const ShardingRule& rule = *cuts_.RuleOf(op);
      if (cuts_.CutOf(rule, *v, rule.operands[i])) return true;
    }
    return false;
  }

  bool NeededWhole(Value* v) const {
    if (cuts_.IsGradient(v) && !cuts_.Wished(v)) return true;
    return AnyUser(v->users, [&](const Op& user) {
      return AnyRead(user, *v, [&](const ShardingRule& rule, const std::optional<FactorCut>& cut) {
        return !cut || rule.factors[cut->factor].kind == FactorKind::kReplicated ||
               UsesOtherwise(user, rule, *cut);
      });
    });
  }

  // Whether the op has a result that should carry the factor and is whole, or one that has to be
  // cut along another one, as an operand is, or a state that is.
  bool UsesOtherwise(const Op& op, const ShardingRule& rule, const FactorCut& cut) const {
    for (size_t i = 0; i < op.results.size(); ++i) {
      const Value* r = op.results[i];
      if (DimOfFactor(rule.results[i], cut.factor) >= 0 && !cuts_.IsCut(r)) return true;
      const auto other = cuts_.CutOf(rule, *r, rule.results[i]);
      if (!cuts_.Wished(r) || !other || other->factor == cut.factor) continue;
      for (size_t k = 0; k < op.operands.size(); ++k) {
        const auto beside = cuts_.CutOf(rule, *op.operands[k], rule.operands[k]);
        if (beside && beside->factor == other->factor) return true;
      }
    }
    return UsesWeightOtherwise(op, rule, cut);
  }

  bool UsesWeightOtherwise(const Op& op, const ShardingRule& rule, const FactorCut& cut) const {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Value* v = op.operands[i];
      if (!cuts_.IsWeight(v)) continue;
      auto other = cuts_.CutOf(rule, *v, rule.operands[i]);
      if (other && other->factor != cut.factor) return true;
    }
    return false;
  }

  // Whether it holds for a place where the op reads the value, by how the cut goes on there.
  template <typename Holds>
  bool AnyRead(const Op& user, const Value& v, const Holds& holds) const {
    if (!user.def->rule) return false;
    const ShardingRule& rule = *cuts_.RuleOf(user);
    for (size_t i = 0; i < user.operands.size(); ++i) {
      if (user.operands[i] == &v && holds(rule, cuts_.CutOf(rule, v, rule.operands[i])))
        return true;
    }
    return false;
  }

  // A sum over the axis of which all readers make much less, by ops that are linear in it, is left
  // to them: what each expert makes, which is added up with the shares of a token. Whether any is.
  bool LeaveSums() {
    bool any = false;
    for (Op* op : cuts_.ops()) {
      if (!op->def->rule || op->results.size() != 1 || !cuts_.IsCut(op->result())) continue;
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
        cuts_.Unassign(v);
        v->type.sharding.partial_sum.push_back(cuts_.axis());
      }
      any = true;
    }
    return any;
  }

  // Whether it sums over a factor that cuts its operands over the axis.
  bool Contracts(const Op& op) const {
    const ShardingRule& rule = *cuts_.RuleOf(op);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const auto cut = cuts_.CutOf(rule, *op.operands[i], rule.operands[i]);
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
    if (cuts_.Pinned(v) || cuts_.Wished(v) || cuts_.graph().IsOutput(v)) return std::nullopt;
    int64_t moved = 0;
    for (const Op* user : v->users) {
      const auto at = std::find(user->operands.begin(), user->operands.end(), v);
      const std::vector<int> alone = {static_cast<int>(at - user->operands.begin())};
      const bool linear = user->def->rule && Contains(cuts_.RuleOf(*user)->linear, alone) &&
                          std::ranges::count(user->operands, v) == 1;
      if (!linear || user->def->constrains || user->results.size() > 1) return std::nullopt;
      for (const Value* other : user->operands) {
        if (other != v && cuts_.IsCut(other)) moved += other->type.bytes();
      }
      if (2 * user->out().bytes() <= bytes) {
        moved += user->out().bytes();
      } else if (!Contains(left, user->result())) {
        left.push_back(user->result());
      }
    }
    return moved;
  }

  AxisCuts& cuts_;
};

}  // namespace

void ReviseCuts(AxisCuts& cuts) { Revision(cuts).Run(); }

}  // namespace shardc
