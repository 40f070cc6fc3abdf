// What mixes the positions of a sequence and is no attention: a state space, linear attention that
// decays, a gated convolution of each channel. It is cut by heads, or by channels, as attention is.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "frontend/recover/match.h"
#include "frontend/recover/roles.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

constexpr size_t kMostValues = 20000;  // between the products: a scan is written out step by step

using ValueDim = std::pair<const Value*, int>;

// The ways back from a dim of a value to the linears that it has it from, by the sharding rules of
// the ops: on each the heads, or channels, stay apart.
class HeadsFinder {
 public:
  // `failed`: from where others found nothing, to which this one adds.
  HeadsFinder(const LinearRoles& roles, std::set<ValueDim>& failed)
      : roles_(roles), failed_(failed) {}

  // False where the dim comes from elsewhere, or is mixed, on some way.
  bool Find(const Value* v, int dim) {
    at_ = {v, dim};
    Add(v, dim);
    while (!open_.empty()) {
      at_ = open_.back();
      open_.pop_back();
      if (seen_.size() > kMostValues) return false;
      if (failed_.contains(at_) || !GoBack(at_.first, at_.second)) {
        failed_.insert(at_);
        do {
          at_ = seen_.at(at_);
        } while (failed_.insert(at_).second);
        return false;
      }
    }
    return true;
  }

  // Whether positions meet on the way.
  bool mixes() const { return mixes_; }
  // Whether by a softmax over them.
  bool attends() const { return attends_; }
  const std::set<const Linear*>& found() const { return found_; }

 private:
  void Add(const Value* v, int dim) {
    if (seen_.try_emplace({v, dim}, at_).second) open_.emplace_back(v, dim);
  }

  bool GoBack(const Value* v, int dim) {
    // Of a product for each head its heads stay apart, too.
    const Linear* linear = roles_.At(v);
    // Of the positions of each channel (gMLP's).
    if (linear != nullptr && !linear->experts && dim != v->type.rank() - 1) {
      const Value* x = linear->matmul->operands[0];
      mixes_ = true;
      if (x->type.rank() == v->type.rank()) Add(x, dim);
      return x->type.rank() == v->type.rank();
    }
    if (linear != nullptr && !(linear->experts && dim != v->type.rank() - 1)) {
      found_.insert(linear);
      return dim == v->type.rank() - 1 && !linear->experts && IsOpen(*linear->weight);
    }
    const Op* op = v->producer;
    if (op == nullptr) return false;
    if (op->def->is_state) return IsOpen(*op);
    if (op->operands.empty()) return true;
    attends_ |= OneOf(op->name(), {"attention", "softmax"});
    // Statistics of a norm of the whole width are sums over what is cut (gMLP's, of what gates).
    if (IsNorm(op) && v->index == 0 && v->type.rank() <= 3 && dim == v->type.rank() - 1) {
      Add(op->operands[0], dim);
      return true;
    }
    if (!op->def->rule) return false;
    const ShardingRule rule = op->def->rule(*op);
    const auto& factors = rule.results[v->index][dim].factors;
    if (factors.empty()) return false;
    const int factor = factors[0];
    const FactorKind kind = rule.factors[factor].kind;
    if (kind != FactorKind::kPlain && kind != FactorKind::kExpandable) return false;
    mixes_ |= op->name() == "cumsum" || MovesPositions(*op, v, dim) ||
              (IsProduct(op) && DependsOnMore(op->operands[0]) && DependsOnMore(op->operands[1]));
    for (size_t i = 0; i < op->operands.size(); ++i) {
      const int d = DimOfFactor(rule.operands[i], factor);
      if (d < 0) continue;
      if (rule.operands[i][d].factors[0] != factor) return false;
      Add(op->operands[i], d);
    }
    return true;
  }

  // No part of anything else that has a role.
  static bool IsOpen(const Op& param) {
    return OneOf(param.attrs.String("role", ""), {"", "QKV", "NORM"});
  }
  // Whether other dims than this one are padded, to be shifted, as by a convolution, or taken
  // apart, for the steps of a scan.
  static bool MovesPositions(const Op& op, const Value* v, int dim) {
    if (!OneOf(op.name(), {"pad", "split", "slice"})) return false;
    for (int d = 0; d < v->type.rank(); ++d) {
      if (d != dim && v->type.shape[d] != op.in(0).shape[d]) return true;
    }
    return false;
  }
  static bool DependsOnMore(const Value* v) { return !IsParam(ArrangedFrom(v)) && !ConstantOf(v); }

  const LinearRoles& roles_;
  std::set<ValueDim>& failed_;
  std::map<ValueDim, ValueDim> seen_;  // by what it was reached
  std::vector<ValueDim> open_;
  ValueDim at_;
  std::set<const Linear*> found_;
  bool mixes_ = false, attends_ = false;
};

}  // namespace

void SetRolesOfRates(LinearRoles& roles) {
  std::set<ValueDim> failed;
  for (const Linear& out : roles.linears()) {
    if (LinearRoles::Of(out) != "ATTENTION_OUT") continue;
    const Value* v = out.matmul->operands[0];
    HeadsFinder finder(roles, failed);
    if (!finder.Find(v, v->type.rank() - 1) || !finder.mixes() || finder.attends()) continue;
    for (const Linear* in : finder.found()) roles.Set(*in, "QKV");
  }
}

void SetMixerRoles(LinearRoles& roles) {
  std::set<ValueDim> failed;
  for (const Linear& out : roles.linears()) {
    if (out.experts || !LinearRoles::Of(out).empty()) continue;
    const Value* v = out.matmul->operands[0];
    HeadsFinder finder(roles, failed);
    if (!finder.Find(v, v->type.rank() - 1) || !finder.mixes()) continue;
    // Back to the width of the residual stream.
    const bool back = std::ranges::any_of(finder.found(), [&](const Linear* in) {
      return in->matmul->in(0).shape.back() == out.matmul->out().shape.back();
    });
    // One weight on both sides is cut as neither.
    const bool own = std::ranges::none_of(
        finder.found(), [&](const Linear* in) { return in->weight == out.weight; });
    if (!back || !own) continue;
    for (const Linear* in : finder.found()) roles.Set(*in, "QKV");
    roles.Set(out, "ATTENTION_OUT");
  }
}

}  // namespace shardc::recover
