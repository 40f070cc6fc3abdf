#include "ir/rule_check.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/op_def.h"

namespace shardc {
namespace {

// How a tensor is placed over one mesh axis.
struct AxisPlacement {
  enum Kind : uint8_t { kWhole, kCut, kPartialSum, kPartialMax } kind = kWhole;
  int dim = -1;  // kCut
};

AxisPlacement PlacementOver(const Sharding& s, int axis) {
  if (s.partial_sum.contains(axis)) return {AxisPlacement::kPartialSum, -1};
  if (s.partial_max.contains(axis)) return {AxisPlacement::kPartialMax, -1};
  for (size_t d = 0; d < s.dims.size(); ++d) {
    if (s.dims[d].axes.contains(axis)) return {AxisPlacement::kCut, static_cast<int>(d)};
  }
  return {};
}

// Whether the shardings of an op's operands and results are what its rule makes of one strategy per
// mesh axis: run whole, cut along one factor, or let partial sums through a linear group.
class RuleCheck {
 public:
  RuleCheck(const Op& op, const Mesh& mesh) : op_(op), mesh_(mesh), rule_(op.def->rule(op)) {}

  // What is wrong, or nothing.
  std::optional<std::string> Run() {
    if (rule_.operands.size() != op_.operands.size() ||
        rule_.results.size() != op_.results.size()) {
      return "its sharding rule is for another number of operands or results";
    }
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (mesh_.axis_size(axis) == 1) continue;
      if (!AxisAgrees(axis)) {
        return StrCat("operands and results do not agree with its sharding rule over axis '",
                      mesh_.axes()[axis].name, "': ", Types());
      }
    }
    for (size_t f = 0; f < rule_.factors.size(); ++f) {
      if (!LayoutsAgree(static_cast<int>(f))) {
        return "dims of the same factor are cut in different layouts: " + Types();
      }
    }
    for (int64_t rank : RanksThatDiffer()) {
      if (!HoldsTheSame(rank)) {
        return StrCat("rank ", rank, " does not hold the same of every factor: ", Types());
      }
    }
    return std::nullopt;
  }

 private:
  template <typename Fn>
  void ForEachSlot(Fn fn) const {
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      fn(op_.operands[i]->type, rule_.operands[i], false);
    }
    for (size_t i = 0; i < op_.results.size(); ++i) {
      fn(op_.results[i]->type, rule_.results[i], true);
    }
  }

  bool AxisAgrees(int axis) {
    operands_.clear();
    results_.clear();
    const std::vector<DimFactors>* cut = nullptr;
    int dim = -1;
    bool whole = true;
    ForEachSlot([&](const TensorType& type, const std::vector<DimFactors>& dims, bool result) {
      AxisPlacement p = PlacementOver(type.sharding, axis);
      (result ? results_ : operands_).push_back(p);
      whole = whole && p.kind == AxisPlacement::kWhole;
      if (p.kind == AxisPlacement::kCut && !cut) {
        cut = &dims;
        dim = p.dim;
      }
    });
    if (whole) return true;
    if (!cut) return PassesThrough();
    const auto& factors = (*cut)[dim].factors;
    return std::any_of(factors.begin(), factors.end(), [&](int f) { return CutsFactor(f); });
  }

  bool CutsFactor(int factor) const {
    const Factor& f = rule_.factors[factor];
    if (f.kind != FactorKind::kPlain) return false;
    auto agrees = [&](const AxisPlacement& p, const std::vector<DimFactors>& dims,
                      AxisPlacement::Kind without) {
      int d = DimOfFactor(dims, factor);
      return d < 0 ? p.kind == without : p.kind == AxisPlacement::kCut && p.dim == d;
    };
    auto reduced =
        f.reduce == ReduceKind::kMax ? AxisPlacement::kPartialMax : AxisPlacement::kPartialSum;
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (!agrees(operands_[i], rule_.operands[i], AxisPlacement::kWhole)) return false;
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      if (!agrees(results_[i], rule_.results[i], reduced)) return false;
    }
    return true;
  }

  // Partial sums in exactly the operands of a linear group, and in all results.
  bool PassesThrough() const {
    auto is_sum = [](const AxisPlacement& p) { return p.kind == AxisPlacement::kPartialSum; };
    if (!std::all_of(results_.begin(), results_.end(), is_sum)) return false;
    return std::any_of(rule_.linear.begin(), rule_.linear.end(), [&](const auto& group) {
      for (size_t i = 0; i < operands_.size(); ++i) {
        bool in_group = std::find(group.begin(), group.end(), static_cast<int>(i)) != group.end();
        auto want = in_group ? AxisPlacement::kPartialSum : AxisPlacement::kWhole;
        if (operands_[i].kind != want) return false;
      }
      return true;
    });
  }

  // Dims that are the factor and nothing else are cut alike. (Dims of several factors or pieces
  // hold it in layouts of their own.)
  bool LayoutsAgree(int factor) const {
    std::optional<DimSharding> layout;
    bool agree = true;
    ForEachSlot([&](const TensorType& type, const std::vector<DimFactors>& dims, bool) {
      int d = DimOfFactor(dims, factor);
      if (d < 0 || dims[d].factors.size() != 1 || !dims[d].segments.empty()) return;
      if (type.shape[d] != rule_.factors[factor].size) return;
      DimSharding now = Canonical(type.shape[d], type.sharding.dims[d], mesh_);
      if (!layout) layout = now;
      agree = agree && now == *layout;
    });
    return agree;
  }

  // Where dims of several factors are cut: one rank for each way in which the axes at work number
  // them, as the others hold what one of these does.
  std::vector<int64_t> RanksThatDiffer() const {
    AxisList axes;
    bool several = false;
    ForEachSlot([&](const TensorType& type, const std::vector<DimFactors>& dims, bool) {
      for (size_t d = 0; d < dims.size(); ++d) {
        several = several || (dims[d].factors.size() > 1 && type.sharding.dims[d].cut());
        for (int a : type.sharding.dims[d].axes) {
          if (!axes.contains(a)) axes.push_back(a);
        }
      }
    });
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; several && rank < mesh_.num_ranks(); ++rank) {
      bool first = true;
      for (int a = 0; a < mesh_.num_axes(); ++a) {
        first = first && (axes.contains(a) || mesh_.Coordinate(rank, a) == 0);
      }
      if (first) ranks.push_back(rank);
    }
    return ranks;
  }

  // Whether what the rank holds of a dim of several factors is the product of what it holds of each
  // of them, and that the same in all dims that have the factor.
  bool HoldsTheSame(int64_t rank) const {
    std::vector<std::optional<Stretches>> held(rule_.factors.size());
    bool same = true;
    ForEachSlot([&](const TensorType& type, const std::vector<DimFactors>& dims, bool) {
      for (size_t d = 0; same && d < dims.size(); ++d) {
        int64_t size = 1;
        for (int f : dims[d].factors) size *= rule_.factors[f].size;
        if (dims[d].factors.empty() || !dims[d].segments.empty() || size != type.shape[d]) continue;
        Stretches whole;
        for (const shardc::Run& run : LocalRuns(size, type.sharding.dims[d], mesh_, rank)) {
          whole.push_back({run.global, run.global + run.size});
        }
        if (whole.empty()) continue;  // of which factor says another dim
        int64_t product = 1, right = size;
        for (int f : dims[d].factors) {
          const int64_t own = rule_.factors[f].size;
          right /= std::max<int64_t>(own, 1);
          Stretches of = Along(whole, own, right);
          product *= Count(of);
          if (!held[f]) held[f] = of;
          same = same && *held[f] == of;
        }
        same = same && product == Count(whole);
      }
    });
    return same;
  }

  using Stretches = std::vector<std::pair<int64_t, int64_t>>;  // sorted, [begin, end)

  static int64_t Count(const Stretches& s) {
    int64_t n = 0;
    for (auto [begin, end] : s) n += end - begin;
    return n;
  }

  // The elements of a factor of `own` elements, each of `right`, that stretches of its dim touch.
  static Stretches Along(const Stretches& dim, int64_t own, int64_t right) {
    Stretches found;
    for (auto [begin, end] : dim) {
      const int64_t from = begin / right, to = (end - 1) / right + 1;
      if (to - from >= own) return {{0, own}};
      const int64_t first = from % own, last = first + (to - from);
      found.push_back({first, std::min(last, own)});
      if (last > own) found.push_back({0, last - own});
    }
    std::sort(found.begin(), found.end());
    Stretches merged;
    for (auto [begin, end] : found) {
      if (merged.empty() || merged.back().second < begin) {
        merged.push_back({begin, end});
      } else {
        merged.back().second = std::max(merged.back().second, end);
      }
    }
    return merged;
  }

  std::string Types() const {
    std::string text;
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      text += (i ? ", " : "") + TypeToString(op_.operands[i]->type, mesh_);
    }
    text += " ->";
    for (size_t i = 0; i < op_.results.size(); ++i) {
      text += (i ? ", " : " ") + TypeToString(op_.results[i]->type, mesh_);
    }
    return text;
  }

  const Op& op_;
  const Mesh& mesh_;
  ShardingRule rule_;
  std::vector<AxisPlacement> operands_, results_;  // over the axis at hand
};

}  // namespace

std::optional<std::string> DisagreementWithRule(const Op& op, const Mesh& mesh) {
  return RuleCheck(op, mesh).Run();
}

}  // namespace shardc
