#include "passes/strategy.h"

#include <algorithm>
#include <limits>
#include <span>

#include "passes/provenance.h"

namespace shardc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Weights stay where they are wherever the op can be run otherwise.
constexpr double kMoveWeightsPenalty = 1e6;
// To gather what is cut and cut nothing else makes every rank do all the work: a strategy that
// keeps operands where they are and reduces its result is preferred (with few tokens, moving
// activations instead of summing gradients over dp would be fewer bytes, and is not what data
// parallelism means). Not of what makes a much larger result (a broadcast, say) that would keep the
// cut and is wished for without it.
constexpr double kUndoCutPenalty = 1e3;
constexpr int64_t kLittleWork = 4;  // flops for each element of a result
constexpr size_t kMaxReaders = 64;  // of a value, that are asked how they would read it

std::optional<Slot> PlaceSlot(const ShardingRule& rule, const std::vector<DimFactors>& dims,
                              const TensorType& type, int factor, int axis,
                              const std::vector<FactorCut>& cuts, const Mesh& mesh) {
  int d = DimOfFactor(dims, factor);
  if (d < 0) return Slot();
  auto dim = LiftToDim(rule, dims[d], type.shape[d], cuts, mesh);
  if (!dim) return std::nullopt;
  DimSharding alone = Canonical(type.shape[d], {{axis}, dim->granule, dim->segments}, mesh);
  return Slot{{Placement::kCut, d, std::move(alone)}, std::move(*dim)};
}

class Chooser {
 public:
  Chooser(const Op& op, const ShardingRule& rule, int axis, const std::vector<FactorCut>& cuts,
          bool wished, const Versions& versions, const Mesh& mesh)
      : op_(op),
        rule_(rule),
        axis_(axis),
        cuts_(cuts),
        wished_(wished),
        versions_(versions),
        mesh_(mesh) {
    for (size_t i = 0; i < op.results.size() && wished; ++i) {
      const TensorType& type = op.out(static_cast<int>(i));
      for (size_t d = 0; d < type.shape.size(); ++d) {
        const DimSharding& dim = type.sharding.dims[d];
        // Minor axes cut after this one.
        if (dim.axes.contains(axis)) continue;
        for (int a : dim.axes) {
          if (a < axis) continue;
          const auto cut = ProjectAxis(rule, rule.results[i][d], type.shape[d], dim, a, mesh);
          if (cut) later_.emplace_back(a, cut->factor);
        }
      }
    }
  }

  // The cheapest of the options. On a tie the first wins.
  Strategy Choose() const {
    Strategy best;
    double best_cost = kInfinity;
    for (const Strategy& s : Options()) {
      auto p = EffectOf(s, op_, rule_, axis_, cuts_, mesh_);
      if (!p || !LeavesRoom(p->cuts)) continue;
      const double cost = Cost(s, *p);
      if (cost < best_cost * (1 - 1e-9)) {
        best = s;
        best_cost = cost;
      }
    }
    return best;
  }

 private:
  // Ways to run the op, the better ones on a tie first: divide the work along a factor, leave the
  // sum over ranks to later, run whole.
  std::vector<Strategy> Options() const {
    std::vector<Strategy> options;
    auto add_factor = [&](const TensorType& type, const std::vector<DimFactors>& dims) {
      Placement at = PlacementOf(type, axis_, mesh_);
      if (at.kind != Placement::kCut) return;
      auto cut = ProjectAxis(rule_, dims[at.dim], type.shape[at.dim], type.sharding.dims[at.dim],
                             axis_, mesh_);
      if (!cut || rule_.factors[cut->factor].kind == FactorKind::kReplicated) return;
      for (const Strategy& o : options) {
        if (o.kind == Strategy::kFactor && o.cut.factor == cut->factor &&
            o.cut.layout == cut->layout) {
          return;
        }
      }
      options.push_back({Strategy::kFactor, *cut, 0});
    };
    bool partial = false;
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      add_factor(op_.in(i), rule_.operands[i]);
      if (PlacementOf(op_.in(i), axis_, mesh_).kind != Placement::kPartialSum) continue;
      partial = true;
      // It can be had as it was wished for.
      if (const Sharding* wish = versions_.WishOf(op_.operands[i])) {
        add_factor({op_.in(i).dtype, op_.in(i).shape, *wish}, rule_.operands[i]);
      }
    }
    for (size_t i = 0; i < op_.results.size(); ++i) add_factor(op_.out(i), rule_.results[i]);
    // Scalars are rather reduced at once, where others of their kind can join them in one
    // collective.
    bool scalar = op_.out().shape.empty();
    if (scalar) options.push_back({});
    for (size_t g = 0; partial && g < rule_.linear.size(); ++g) {
      options.push_back({Strategy::kLinear, {}, static_cast<int>(g)});
    }
    if (!scalar) options.push_back({});
    return options;
  }

  // Bytes of the value that the ranks of one group of the axis hold together.
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
  double UndoneBytes(const TensorType& type, int dim) const {
    double bytes = 0;
    for (int later : type.sharding.dims[dim].axes) {
      if (later < axis_) continue;
      const Placement cut = PlacementOf(type, later, mesh_);
      bytes += ReshardBytes(cut, Placement(), mesh_.axis_size(later), GroupBytes(type, later));
    }
    return bytes;
  }

  // What the op gives where it reads the value cut like this over the axis, and its other operands
  // as they are; nothing where it cannot.
  std::optional<Effect> Reads(const Op& user, const Value* v, int dim,
                              const DimSharding& cut_dim) const {
    if (!user.def->rule || user.def->constrains) return std::nullopt;
    const ShardingRule rule = user.def->rule(user);
    const auto at = std::find(user.operands.begin(), user.operands.end(), v);
    const auto operand = static_cast<size_t>(at - user.operands.begin());
    const auto d = static_cast<size_t>(dim);
    const auto cut =
        ProjectAxis(rule, rule.operands[operand][d], v->type.shape[d], cut_dim, axis_, mesh_);
    if (!cut || rule.factors[cut->factor].kind != FactorKind::kPlain) return std::nullopt;
    auto p = EffectOf({Strategy::kFactor, *cut, 0}, user, rule, axis_, {}, mesh_);
    for (size_t i = 0; p && i < user.operands.size(); ++i) {
      if (user.operands[i] == v) continue;
      const Placement from = PlacementOf(user.in(static_cast<int>(i)), axis_, mesh_);
      if (from.kind != Placement::kWhole && !(from == p->operands[i].placement))
        return std::nullopt;
    }
    return p;
  }

  // The ops that a value moved from one cut to another serves: those that take it so and could not
  // read it where it lies without a sum over ranks. A weight may have a reader in each step of a
  // sequence, or in each microbatch: some tell enough.
  double Served(const Value* v, const Placement& from, const Slot& slot) const {
    auto is_served = [&](const Op* user) {
      if (user == &op_ || !Reads(*user, v, slot.placement.dim, slot.dim)) return false;
      const auto now = Reads(*user, v, from.dim, v->type.sharding.dims[from.dim]);
      return !now || std::any_of(now->results.begin(), now->results.end(),
                                 [](const Slot& r) { return r.placement.partial(); });
    };
    const auto asked = std::span(v->users).first(std::min(v->users.size(), kMaxReaders));
    return 1.0 + static_cast<double>(std::ranges::count_if(asked, is_served));
  }

  // Whether the op has little to do, and would keep the cut of its operand in results that are all
  // to be whole or cut otherwise, and at least twice as large.
  bool GrowsUncut(size_t operand) const {
    const TensorType& type = op_.in(static_cast<int>(operand));
    const Placement at = PlacementOf(type, axis_, mesh_);
    if (at.kind != Placement::kCut || op_.def->picks) return false;
    if (Flops(op_) > kLittleWork * op_.out().num_elements()) return false;
    const auto d = static_cast<size_t>(at.dim);
    const auto cut = ProjectAxis(rule_, rule_.operands[operand][d], type.shape[d],
                                 type.sharding.dims[d], axis_, mesh_);
    for (size_t i = 0; cut && i < op_.results.size(); ++i) {
      const TensorType& result = op_.out(i);
      const Placement wish = PlacementOf(result, axis_, mesh_);
      const int kept = DimOfFactor(rule_.results[i], cut->factor);
      if (kept < 0 || wish.partial() || (wish.kind == Placement::kCut && wish.dim == kept)) {
        return false;
      }
      if (2 * type.num_elements() > result.num_elements()) return false;
    }
    return cut && wished_;
  }

  // Bytes of a version of the operand that the ranks of one group of the axis hold together, once
  // the axes before have brought it to where the op reads it, and later ones to where results are
  // wished for. `gathered`: the dim of which the axis is undone, or -1: minor axes of it are undone
  // before, and major ones after.
  double OperandBytes(size_t operand, const TensorType& type, int gathered) const {
    AxisList cut;
    auto add = [&](int a) {
      if (!cut.contains(a)) cut.push_back(a);
    };
    for (const auto& [a, factor] : later_) {
      const int d = DimOfFactor(rule_.operands[operand], factor);
      if (d >= 0 && d != gathered) add(a);
    }
    for (int d = 0; d < type.rank(); ++d) {
      for (int a : type.sharding.dims[d].axes) {
        if (d == gathered ? a < axis_ : a > axis_) add(a);
      }
      const auto read = LiftToDim(rule_, rule_.operands[operand][d], type.shape[d], cuts_, mesh_);
      for (int a : read ? read->axes : AxisList()) add(a);
    }
    return static_cast<double>(type.bytes()) / static_cast<double>(NumParts(cut, mesh_));
  }

  // `split`: the ranks divide the work, whatever has to be moved for it.
  double OperandCost(size_t operand, const Slot& slot, bool split) const {
    const Value* v = op_.operands[operand];
    const Placement& want = slot.placement;
    double best = kInfinity;
    auto consider = [&](const Value* version) {
      Placement from = PlacementOf(version->type, axis_, mesh_);
      // Cut along the dim by other axes before this one, the ranks have other parts of it.
      const bool others = from == want && want.kind == Placement::kCut &&
                          AxesBefore(version->type.sharding.dims[want.dim]) != AxesBefore(slot.dim);
      const bool stays = from == want && !others;
      const double held = OperandBytes(operand, version->type, stays ? -1 : from.dim);
      double bytes = ReshardBytes(from, others ? Placement() : want, mesh_.axis_size(axis_), held);
      if (from.kind == Placement::kWhole && want.kind == Placement::kCut) {
        bytes += UndoneBytes(version->type, want.dim);
      }
      if (version == v && from.kind == Placement::kCut && want.kind == Placement::kCut &&
          bytes > 0 && !others) {
        bytes /= Served(v, from, slot);
      }
      bool undone = from.kind == Placement::kCut && !split;
      best = std::min(best, undone ? bytes * kUndoCutPenalty : bytes);
    };
    consider(v);
    // What is complete is not summed once more.
    for (const Value* version : versions_.Of(v)) {
      if (!PlacementOf(version->type, axis_, mesh_).partial()) consider(version);
    }
    return versions_.IsWeight(v) ? best * kMoveWeightsPenalty : best;
  }

  AxisList AxesBefore(const DimSharding& dim) const {
    AxisList axes;
    for (int a : dim.axes) {
      if (a < axis_) axes.push_back(a);
    }
    return axes;
  }

  // Into how many parts the dim is cut only after this axis has cut it.
  double MinorParts(const DimSharding& dim) const {
    double parts = 1;
    for (int a : dim.axes) {
      if (a > axis_) parts *= static_cast<double>(mesh_.axis_size(a));
    }
    return parts;
  }

  // The factor along which all operands that have it are cut, and no other is cut otherwise; or -1.
  int SettledFactor() const {
    int settled = -1;
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      const TensorType& type = op_.in(static_cast<int>(i));
      const Placement at = PlacementOf(type, axis_, mesh_);
      if (at.kind != Placement::kCut) continue;
      auto cut = ProjectAxis(rule_, rule_.operands[i][at.dim], type.shape[at.dim],
                             type.sharding.dims[at.dim], axis_, mesh_);
      if (!cut || (settled >= 0 && settled != cut->factor)) return -1;
      settled = cut->factor;
    }
    for (size_t i = 0; i < op_.operands.size() && settled >= 0; ++i) {
      const Placement at = PlacementOf(op_.in(static_cast<int>(i)), axis_, mesh_);
      if (at.kind != Placement::kCut && DimOfFactor(rule_.operands[i], settled) >= 0) return -1;
    }
    return settled;
  }

  // Whether propagation leaves the sum to all that read it.
  bool IsLeftASum(const Value* v) const {
    const Sharding* wish = versions_.WishOf(v);
    return wish && wish->partial_sum.contains(axis_);
  }

  double Cost(const Strategy& s, const Effect& p) const {
    double cost = 0;
    bool split = s.kind == Strategy::kFactor;
    // That a result is wished for otherwise does not move what lies ready.
    if (const int settled = split ? SettledFactor() : -1; settled >= 0) {
      split = settled == s.cut.factor;
    }
    // What is left a sum is so with what is gathered beside it.
    split |= s.kind == Strategy::kLinear &&
             std::ranges::any_of(op_.operands, [&](const Value* v) { return IsLeftASum(v); });
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      const Value* v = op_.operands[i];
      // A partial value that others need reduced as well is reduced once, before them.
      const Placement& want = p.operands[i].placement;
      if (want.partial() && v->users.size() > 1 && !IsLeftASum(v)) return kInfinity;
      cost += OperandCost(i, p.operands[i], split || GrowsUncut(i));
    }
    for (size_t i = 0; i < op_.results.size(); ++i) {
      const TensorType& type = op_.out(i);
      Placement wish = PlacementOf(type, axis_, mesh_);
      if (wish.partial() && !(p.results[i].placement == wish)) wish = Placement();
      if (!wished_ && wish.kind == Placement::kWhole &&
          p.results[i].placement.kind == Placement::kCut) {
        continue;
      }
      const Placement& from = p.results[i].placement;
      double bytes = GroupBytes(type, axis_);
      if (wish.kind == Placement::kCut && !(from == wish)) {
        bytes *= MinorParts(type.sharding.dims[wish.dim]);
      }
      if (from == wish && wish.kind == Placement::kCut) {
        const AxisList before = AxesBefore(p.results[i].dim);
        const AxisList asked = AxesBefore(type.sharding.dims[wish.dim]);
        // Cut along the dim by other axes before this one, the ranks have other parts of it. Then
        // it is gathered, and what those axes leave to sum is first summed whole.
        if (before != asked) wish.kind = Placement::kWhole;
        for (int a : asked) {
          if (before.contains(a)) continue;
          const double cut = bytes / static_cast<double>(mesh_.axis_size(axis_));
          bytes *= static_cast<double>(mesh_.axis_size(a));
          cost += cut * static_cast<double>(mesh_.axis_size(a) - 1);
        }
      }
      cost += ReshardBytes(from, wish, mesh_.axis_size(axis_), bytes);
    }
    if (s.kind == Strategy::kFactor) {
      const Factor& f = rule_.factors[s.cut.factor];
      // Two or three statistics per row travel.
      if (f.kind == FactorKind::kExpandable) {
        double rows =
            GroupBytes(op_.in(0), axis_) / static_cast<double>(std::max<int64_t>(f.size, 1));
        cost += 6 * rows;
      }
    }
    return cost;
  }

  // Whether what a constraint asks for over later axes goes with the cuts over this axis and those
  // before. Whole always does.
  bool LeavesRoom(std::vector<FactorCut> cuts) const {
    for (int later = axis_ + 1; later < mesh_.num_axes(); ++later) {
      if (!Constrains(op_, later, mesh_)) continue;
      auto p = EffectOf(AskedFor(op_, rule_, later, mesh_), op_, rule_, later, cuts, mesh_);
      if (!p) return false;
      cuts = std::move(p->cuts);
    }
    return true;
  }

  const Op& op_;
  const ShardingRule& rule_;
  const int axis_;
  const std::vector<FactorCut>& cuts_;
  const bool wished_;
  const Versions& versions_;
  const Mesh& mesh_;
  std::vector<std::pair<int, int>> later_;  // axes, and the factors that they cut of results
};

}  // namespace

std::optional<Effect> EffectOf(const Strategy& s, const Op& op, const ShardingRule& rule, int axis,
                               const std::vector<FactorCut>& cuts, const Mesh& mesh) {
  Effect p{std::vector<Slot>(op.operands.size()), std::vector<Slot>(op.results.size()), cuts};
  if (s.kind == Strategy::kLinear) {
    for (int i : rule.linear[s.group]) p.operands[i].placement.kind = Placement::kPartialSum;
    for (Slot& r : p.results) r.placement.kind = Placement::kPartialSum;
  } else if (s.kind == Strategy::kFactor) {
    if (!AddCut(rule, s.cut, mesh, p.cuts)) return std::nullopt;
    const Factor& factor = rule.factors[s.cut.factor];
    for (size_t i = 0; i < op.operands.size(); ++i) {
      auto slot = PlaceSlot(rule, rule.operands[i], op.in(i), s.cut.factor, axis, p.cuts, mesh);
      if (!slot) return std::nullopt;
      p.operands[i] = std::move(*slot);
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      auto slot = PlaceSlot(rule, rule.results[i], op.out(i), s.cut.factor, axis, p.cuts, mesh);
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

Strategy AskedFor(const Op& op, const ShardingRule& rule, int axis, const Mesh& mesh) {
  Placement at = PlacementOf(op.out(), axis, mesh);
  if (at.kind != Placement::kCut) return {};
  auto cut = ProjectAxis(rule, rule.results[0][at.dim], op.out().shape[at.dim],
                         op.out().sharding.dims[at.dim], axis, mesh);
  SHARDC_CHECK(cut, Describe(op), ": ", TypeToString(op.out(), mesh));
  return {Strategy::kFactor, *cut, 0};
}

Strategy ChooseStrategy(const Op& op, const ShardingRule& rule, int axis,
                        const std::vector<FactorCut>& cuts, bool wished, const Versions& versions,
                        const Mesh& mesh) {
  return Chooser(op, rule, axis, cuts, wished, versions, mesh).Choose();
}

}  // namespace shardc
