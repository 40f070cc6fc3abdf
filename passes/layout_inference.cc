#include "passes/layout_inference.h"

#include <algorithm>

#include "passes/weights.h"

namespace shardc {
namespace {

// Ops between a weight and the split or reshape that takes its result apart, at most.
constexpr int kMaxDepth = 12;

const LayoutInference::Values kNone;

// The factors of a dim along which it may have been cut, the likeliest first: the one that is cut
// as it would be cut here, and those major to that, which may have too few elements.
std::vector<int> CandidatesOf(const DimFactors& f,
                              const std::optional<std::vector<FactorCut>>& cuts) {
  if (!cuts) return f.factors;
  const auto dealt = std::ranges::find(f.factors, cuts->front().factor);
  std::vector<int> candidates = {*dealt};
  candidates.insert(candidates.end(), f.factors.begin(), dealt);
  return candidates;
}

}  // namespace

bool IsInformative(const DimSharding& d) { return d.granule != 1 || !d.segments.empty(); }

LayoutInference::LayoutInference(const Mesh& mesh, AxisList axes, Parts parts)
    : LayoutInference(mesh, axes, parts, kNone) {}

bool LayoutInference::Carries(const Value* v, int dim) { return Carries(v, dim, 0); }

DimSharding LayoutInference::Wanted(const Value* v, int dim) {
  return Canonical(v->type.shape[dim], Forward(v, dim, 0), mesh_);
}

std::optional<int64_t> LayoutInference::DimToCut(const Value* v, const Ints& dims) {
  return DimToCut(v, dims, 0);
}

bool LayoutInference::Fits(const Value* v, int dim, const DimSharding& layout) {
  fitted_.clear();
  return Fits(v, dim, layout, 0);
}

bool LayoutInference::Carries(const Value* v, int dim, int depth) {
  if (depth > kMaxDepth) return true;
  return Once(carries_, {v, dim, depth}, [&] {
    return !AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
      return !UseCarries(user, rule, rule.operands[operand][dim], depth);
    });
  });
}

DimSharding LayoutInference::Forward(const Value* v, int dim, int depth) {
  if (depth > kMaxDepth) return Plain();
  return Once(forward_, {v, dim, depth}, [&] {
    DimSharding wanted;
    const bool found =
        AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
          wanted = FromUse(user, rule, operand, dim, depth);
          return IsInformative(wanted);
        });
    return found ? wanted : Plain();
  });
}

std::optional<int64_t> LayoutInference::DimToCut(const Value* v, const Ints& dims, int depth) {
  std::optional<int64_t> found;
  if (depth > kMaxDepth) return found;
  AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
    found = DimToCut(user, rule, rule.operands[operand], dims, depth);
    return found.has_value();
  });
  return found;
}

std::optional<int64_t> LayoutInference::DimToCut(const Op& op, const ShardingRule& rule,
                                                 const std::vector<DimFactors>& operand,
                                                 const Ints& dims, int depth) {
  std::vector<int> factors;
  for (int64_t d : dims) {
    const auto& more = operand[d].factors;
    factors.insert(factors.end(), more.begin(), more.end());
  }
  for (size_t r = 0; r < op.results.size(); ++r) {
    const Value* result = op.results[r];
    Ints apart;  // the dims of the result that these are, each by itself
    for (int d = 0; d < result->type.rank(); ++d) {
      const DimFactors& joined = rule.results[r][d];
      if (joined.factors != factors) continue;
      const auto cuts = ProjectToFactors(rule, joined, result->type.shape[d],
                                         Forward(result, d, depth + 1), mesh_);
      if (!cuts || cuts->size() != 1) return std::nullopt;
      return DimOfFactor(operand, cuts->front().factor);
    }
    for (int64_t d : dims) {
      const auto& own = operand[d].factors;
      const int to = own.size() == 1 ? DimOfFactor(rule.results[r], own[0]) : -1;
      if (to >= 0) apart.push_back(to);
    }
    if (apart.size() != dims.size()) continue;
    if (auto dim = DimToCut(result, apart, depth + 1)) {
      return dims[std::ranges::find(apart, *dim) - apart.begin()];
    }
  }
  return std::nullopt;
}

bool LayoutInference::Fits(const Value* v, int dim, const DimSharding& layout, int depth) {
  if (depth > 3 * kMaxDepth || !fitted_.insert({v, dim}).second) return true;
  return !AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
    const auto cuts =
        ProjectToFactors(rule, rule.operands[operand][dim], v->type.shape[dim], layout, mesh_);
    if (!cuts) return true;
    for (size_t i = 0; i < user.operands.size(); ++i) {
      if (i != operand && !IsMadeSo(user.operands[i], rule, rule.operands[i], *cuts)) return true;
    }
    for (size_t r = 0; r < user.results.size(); ++r) {
      const Value* result = user.results[r];
      for (int d = 0; d < result->type.rank(); ++d) {
        if (DimOfFactor({rule.results[r][d]}, cuts->front().factor) < 0) continue;
        const auto next = LiftToDim(rule, rule.results[r][d], result->type.shape[d], *cuts, mesh_);
        if (next && next->cut() && !Fits(result, d, *next, depth + 1)) return true;
      }
    }
    return false;
  });
}

bool LayoutInference::IsMadeSo(const Value* v, const ShardingRule& rule,
                               const std::vector<DimFactors>& dims,
                               const std::vector<FactorCut>& cuts) {
  for (int d = 0; d < v->type.rank(); ++d) {
    const auto made = Backward(v, d, 0);
    if (!made || made->source == Source::kOp) continue;
    // Tokens of a sequence that the spec cuts have to be exchanged in any case.
    const bool meets = std::ranges::any_of(
        cuts, [&](const FactorCut& cut) { return DimOfFactor({dims[d]}, cut.factor) >= 0; });
    if (!meets && made->source == Source::kConstraint) continue;
    const auto wanted = LiftToDim(rule, dims[d], v->type.shape[d], cuts, mesh_);
    if (wanted != Canonical(v->type.shape[d], made->layout, mesh_)) return false;
  }
  return true;
}

bool LayoutInference::FactorCarries(const Op& op, const ShardingRule& rule, int factor, int depth) {
  for (size_t r = 0; r < op.results.size(); ++r) {
    int d = DimOfFactor(rule.results[r], factor);
    if (d >= 0 && !Carries(op.results[r], d, depth + 1)) return false;
  }
  return true;
}

template <typename MayCut>
std::optional<std::vector<FactorCut>> LayoutInference::Deal(const ShardingRule& rule,
                                                            const std::vector<int>& factors,
                                                            size_t at, int axis, Parts parts,
                                                            const MayCut& may_cut) const {
  if (at == factors.size()) return std::nullopt;
  const Factor& f = rule.factors[factors[at]];
  if (f.kind == FactorKind::kReplicated || !may_cut(factors[at])) return std::nullopt;
  DimSharding cut{{}, 1, {}};
  for (int i = axis; i < axes_.size(); ++i) {
    if (cut.cut() && NumParts(cut, mesh_) == f.size) {
      auto rest = Deal(rule, factors, at + 1, i, parts, may_cut);
      if (rest) rest->insert(rest->begin(), {factors[at], cut});
      return rest;
    }
    cut.axes.push_back(axes_[i]);
  }
  if (f.size < NumParts(cut, mesh_) && (f.size == 1 || parts == Parts::kFilled)) {
    return std::nullopt;
  }
  return std::vector{FactorCut{factors[at], cut}};
}

template <typename MayCut>
std::optional<std::vector<FactorCut>> LayoutInference::CutsOf(const ShardingRule& rule,
                                                              const DimFactors& f, Parts parts,
                                                              const MayCut& may_cut) const {
  for (size_t at = 0; at < f.factors.size(); ++at) {
    if (auto cuts = Deal(rule, f.factors, at, 0, parts, may_cut)) return cuts;
  }
  return std::nullopt;
}

std::optional<std::vector<FactorCut>> LayoutInference::CarriedCuts(const Op& op,
                                                                   const ShardingRule& rule,
                                                                   const DimFactors& f, int depth) {
  const auto may_cut = [&](int factor) { return FactorCarries(op, rule, factor, depth); };
  auto cuts = CutsOf(rule, f, Parts::kFilled, may_cut);
  if (cuts || parts_ == Parts::kFilled) return cuts;
  return CutsOf(rule, f, Parts::kSomeEmpty, may_cut);
}

bool LayoutInference::UseCarries(const Op& op, const ShardingRule& rule, const DimFactors& f,
                                 int depth) {
  for (int64_t n : f.segments) {
    if (n < num_parts_ && parts_ == Parts::kFilled) return false;
  }
  return CarriedCuts(op, rule, f, depth).has_value();
}

DimSharding LayoutInference::FromUse(const Op& op, const ShardingRule& rule, size_t operand,
                                     int dim, int depth) {
  const DimFactors& f = rule.operands[operand][dim];
  const int64_t size = op.operands[operand]->type.shape[dim];
  return Lift(rule, f, size, CarriedCuts(op, rule, f, depth), [&](int factor) {
    auto wanted = FromResults(op, rule, factor, depth);
    const auto made = wanted ? std::nullopt : FromOperands(op, rule, factor, operand, depth);
    return made ? made->layout : wanted;
  });
}

std::optional<DimSharding> LayoutInference::FromResults(const Op& op, const ShardingRule& rule,
                                                        int factor, int depth) {
  for (size_t i = 0; i < op.results.size(); ++i) {
    const int d = DimOfFactor(rule.results[i], factor);
    if (d < 0) continue;
    const Value* v = op.results[i];
    const DimSharding wanted = Forward(v, d, depth + 1);
    if (!IsInformative(wanted)) continue;
    const auto own = Project(rule, rule.results[i][d], v->type.shape[d], wanted, factor);
    if (own && IsInformative(*own)) return own;
  }
  return std::nullopt;
}

std::optional<LayoutInference::Origin> LayoutInference::FromOperands(const Op& op,
                                                                     const ShardingRule& rule,
                                                                     int factor, size_t but,
                                                                     int depth) {
  const Made made = Once(made_, {&op, factor, depth}, [&] {
    Made all;
    for (size_t i = 0; i < op.operands.size() && all.informative.size() < 2; ++i) {
      const int d = DimOfFactor(rule.operands[i], factor);
      if (d < 0) continue;
      const Value* v = op.operands[i];
      const auto origin = Backward(v, d, depth + 1);
      if (!origin) continue;
      auto own = Project(rule, rule.operands[i][d], v->type.shape[d], origin->layout, factor);
      if (!own) continue;
      auto& found = IsInformative(*own) ? all.informative : all.plain;
      if (found.size() < 2) found.emplace_back(i, Origin{std::move(*own), origin->source});
    }
    return all;
  });
  for (const auto* found : {&made.informative, &made.plain}) {
    for (const auto& [operand, origin] : *found) {
      if (operand != but) return origin;
    }
  }
  return std::nullopt;
}

std::optional<DimSharding> LayoutInference::Project(const ShardingRule& rule, const DimFactors& dim,
                                                    int64_t size, const DimSharding& layout,
                                                    int factor) const {
  auto cuts = ProjectToFactors(rule, dim, size, layout, mesh_);
  if (!cuts || cuts->size() != 1) return std::nullopt;
  const FactorCut& cut = cuts->front();
  return cut.factor == factor ? std::optional(cut.layout) : std::nullopt;
}

template <typename Ask>
DimSharding LayoutInference::Lift(const ShardingRule& rule, const DimFactors& dim, int64_t size,
                                  const std::optional<std::vector<FactorCut>>& cuts,
                                  const Ask& wanted) const {
  if (!cuts) return Plain();
  if (cuts->size() > 1) return LiftToDim(rule, dim, size, *cuts, mesh_).value_or(Plain());
  const int factor = cuts->front().factor;
  const std::optional<DimSharding> first = wanted(factor);
  for (DimSharding layout : {first.value_or(Plain()), Plain()}) {
    if (auto d = LiftToDim(rule, dim, size, {{factor, std::move(layout)}}, mesh_)) return *d;
  }
  return Plain();
}

std::optional<LayoutInference::Origin> LayoutInference::AlongSeveral(const Op& op,
                                                                     const ShardingRule& rule,
                                                                     const DimFactors& f,
                                                                     int64_t size, int depth) {
  for (size_t i = 0; i < op.operands.size() && f.factors.size() > 1; ++i) {
    const int d = DimOfFactor(rule.operands[i], f.factors[0]);
    if (d < 0) continue;
    const Value* v = op.operands[i];
    const auto origin = Backward(v, d, depth + 1);
    if (!origin) continue;
    const auto cuts =
        ProjectToFactors(rule, rule.operands[i][d], v->type.shape[d], origin->layout, mesh_);
    if (!cuts || cuts->size() < 2) continue;
    if (auto lifted = LiftToDim(rule, f, size, *cuts, mesh_)) {
      return Origin{std::move(*lifted), origin->source};
    }
  }
  return std::nullopt;
}

std::optional<LayoutInference::Origin> LayoutInference::Backward(const Value* v, int dim,
                                                                 int depth) {
  const Op* op = v->producer;
  if (!op || depth > kMaxDepth) return std::nullopt;
  // What the spec cuts, whatever made it, is asked in order, so that its layout is known.
  if (op->def->constrains || (op->def->is_state && known_.contains(v))) {
    const DimSharding& own = v->type.sharding.dims[dim];
    if (own.axes == axes_) {
      return Origin{own, op->def->constrains ? Source::kConstraint : Source::kParam};
    }
    // Beside weights the spec cuts further what these make.
    if (op->def->constrains && own.cut() && AxesBesideWeights(*op, dim, mesh_)) {
      return Backward(op->operands[0], dim, depth + 1);
    }
    return std::nullopt;
  }
  if (!op->def->rule) return std::nullopt;
  return Once(backward_, {v, dim, depth}, [&]() -> std::optional<Origin> {
    const ShardingRule& rule = rules_.Of(*op);
    const DimFactors& f = rule.results[v->index][dim];
    const int64_t size = v->type.shape[dim];
    const auto cuts = CutsOf(rule, f, Parts::kFilled, [](int) { return true; });
    for (int factor : CandidatesOf(f, cuts)) {
      auto made = FromOperands(*op, rule, factor, op->operands.size(), depth);
      if (!made) continue;
      auto layout = LiftToDim(rule, f, size, {{factor, std::move(made->layout)}}, mesh_);
      if (layout) return Origin{std::move(*layout), made->source};
    }
    if (auto several = AlongSeveral(*op, rule, f, size, depth)) return several;
    DimSharding guess = Lift(rule, f, size, cuts, [](int) { return std::nullopt; });
    if (!IsInformative(guess)) return std::nullopt;
    return Origin{std::move(guess), Source::kOp};
  });
}

}  // namespace shardc
