#include "passes/infer_layouts.h"

#include <algorithm>
#include <set>

#include "ir/op_def.h"
#include "passes/layout.h"

namespace shardc {
namespace {

constexpr int kMaxDepth =
    12;  // ops between a weight and the split or reshape that takes its result apart

// Elements to which an uneven cut is rounded, 16 bytes of halves: tensor cores take rows of other
// lengths only in parts. Padding of less than a part in 64 is worth that.
constexpr int64_t kAlignment = 8, kLeastAligned = 64 * kAlignment;

bool Informative(const DimSharding& d) { return d.granule != 1 || !d.segments.empty(); }

// All layouts here are without regard to a particular number of parts; axes stand for any cut.
class Inference {
 public:
  Inference(const Mesh& mesh, AxisList axes)
      : mesh_(mesh), axes_(axes), parts_(NumParts(axes, mesh)) {}

  // Whether a cut of the dim survives the ops that use the value.
  bool Carries(const Value* v, int dim, int depth = 0) const {
    if (depth > kMaxDepth) return true;
    for (const Op* user : v->users) {
      if (user->phase != Phase::kForward || !user->def->rule) continue;
      ShardingRule rule = user->def->rule(*user);
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] == v && !UseCarries(*user, rule, rule.operands[i][dim], depth)) {
          return false;
        }
      }
    }
    return true;
  }

  // Of dims of v, major to minor, that ops bring together to one: that along which users want a cut
  // of the one. Nothing where they want none, or one along several.
  std::optional<int64_t> DimToCut(const Value* v, const Ints& dims, int depth = 0) const {
    if (depth > kMaxDepth) return std::nullopt;
    for (const Op* user : v->users) {
      if (user->phase != Phase::kForward || !user->def->rule) continue;
      const ShardingRule rule = user->def->rule(*user);
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] != v) continue;
        if (auto dim = DimToCut(*user, rule, rule.operands[i], dims, depth)) return dim;
      }
    }
    return std::nullopt;
  }

  // Whether nothing takes the dim apart, puts it together with others or says how to cut it: any
  // cut of it will do.
  bool IsAlone(const Value* v, int dim, int depth = 0) {
    if (depth > kMaxDepth || !seen_.insert({v, dim}).second) return true;
    for (const Op* user : v->users) {
      if (user->phase != Phase::kForward || !user->def->rule) continue;
      const ShardingRule rule = user->def->rule(*user);
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] != v) continue;
        const auto factor = OnlyFactor(rule.operands[i][dim]);
        if (!factor || user->def->constrains) return false;
        if (!OperandsAreMadeAlone(*user, rule, *factor, i, depth)) return false;
        for (size_t r = 0; r < user->results.size(); ++r) {
          const int d = DimOfFactor(rule.results[r], *factor);
          if (d < 0) continue;
          if (!OnlyFactor(rule.results[r][d]) || IsCut(*user->results[r], d) ||
              !IsAlone(user->results[r], d, depth + 1)) {
            return false;
          }
        }
      }
    }
    return true;
  }

  // The layout that the users of the value ask for; whole granularity when they ask for nothing.
  DimSharding Forward(const Value* v, int dim, int depth = 0) const {
    DimSharding none{axes_, 1, {}};
    if (depth > kMaxDepth) return none;
    for (const Op* user : v->users) {
      if (user->phase != Phase::kForward || !user->def->rule) continue;
      ShardingRule rule = user->def->rule(*user);
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] != v) continue;
        DimSharding d = FromUse(*user, rule, static_cast<int>(i), dim, depth);
        if (Informative(d)) return d;
      }
    }
    return none;
  }

 private:
  std::optional<int64_t> DimToCut(const Op& op, const ShardingRule& rule,
                                  const std::vector<DimFactors>& operand, const Ints& dims,
                                  int depth) const {
    std::vector<int> factors;
    for (int64_t d : dims) {
      const auto& more = operand[static_cast<size_t>(d)].factors;
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
        const auto& own = operand[static_cast<size_t>(d)].factors;
        const int to = own.size() == 1 ? DimOfFactor(rule.results[r], own[0]) : -1;
        if (to >= 0) apart.push_back(to);
      }
      if (apart.size() != dims.size()) continue;
      if (auto dim = DimToCut(result, apart, depth + 1)) {
        return dims[static_cast<size_t>(std::ranges::find(apart, *dim) - apart.begin())];
      }
    }
    return std::nullopt;
  }

  static std::optional<int> OnlyFactor(const DimFactors& dim) {
    if (dim.factors.size() != 1 || !dim.segments.empty()) return std::nullopt;
    return dim.factors[0];
  }

  // By the spec: such a cut is even.
  static bool IsCut(const Value& v, int dim) {
    return v.type.sharding.dims[static_cast<size_t>(dim)].cut();
  }

  // Of the operands with the factor, but one.
  bool OperandsAreMadeAlone(const Op& op, const ShardingRule& rule, int factor, size_t but,
                            int depth) const {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const int d = DimOfFactor(rule.operands[i], factor);
      if (i == but || d < 0) continue;
      if (!OnlyFactor(rule.operands[i][d]) || !IsMadeAlone(op.operands[i], d, depth + 1)) {
        return false;
      }
    }
    return true;
  }
  bool IsMadeAlone(const Value* v, int dim, int depth) const {
    const Op* op = v->producer;
    if (op && op->def->is_state) return true;  // asked by itself
    if (IsCut(*v, dim)) return false;
    if (!op || !op->def->rule || depth > kMaxDepth) return true;
    const ShardingRule rule = op->def->rule(*op);
    const auto factor = OnlyFactor(rule.results[static_cast<size_t>(v->index)][dim]);
    return factor && !op->def->constrains &&
           OperandsAreMadeAlone(*op, rule, *factor, op->operands.size(), depth);
  }

  bool FactorCarries(const Op& op, const ShardingRule& rule, int factor, int depth) const {
    for (size_t r = 0; r < op.results.size(); ++r) {
      int d = DimOfFactor(rule.results[r], factor);
      if (d >= 0 && !Carries(op.results[r], d, depth + 1)) return false;
    }
    return true;
  }

  // The axes from number `axis` on, dealt over the factors from number `at` on so that each but the
  // last is cut into single elements. Nothing when that leaves axes over, or takes a factor that
  // may not be cut.
  template <typename MayCut>
  std::optional<std::vector<FactorCut>> Deal(const ShardingRule& rule,
                                             const std::vector<int>& factors, size_t at, int axis,
                                             const MayCut& may_cut) const {
    if (at == factors.size()) return std::nullopt;
    const Factor& f = rule.factors[factors[at]];
    if (f.kind == FactorKind::kReplicated || !may_cut(factors[at])) return std::nullopt;
    DimSharding cut{{}, 1, {}};
    for (int i = axis; i < axes_.size(); ++i) {
      if (cut.cut() && NumParts(cut, mesh_) == f.size) {
        auto rest = Deal(rule, factors, at + 1, i, may_cut);
        if (rest) rest->insert(rest->begin(), {factors[at], cut});
        return rest;
      }
      cut.axes.push_back(axes_[i]);
    }
    if (f.size < NumParts(cut, mesh_)) return std::nullopt;
    return std::vector{FactorCut{factors[at], cut}};
  }

  // The factors of a dim that the axes cut: as far to the major side as can be.
  template <typename MayCut>
  std::optional<std::vector<FactorCut>> CutsOf(const ShardingRule& rule, const DimFactors& f,
                                               const MayCut& may_cut) const {
    for (size_t at = 0; at < f.factors.size(); ++at) {
      if (auto cuts = Deal(rule, f.factors, at, 0, may_cut)) return cuts;
    }
    return std::nullopt;
  }

  std::optional<std::vector<FactorCut>> CarriedCuts(const Op& op, const ShardingRule& rule,
                                                    const DimFactors& f, int depth) const {
    return CutsOf(rule, f, [&](int factor) { return FactorCarries(op, rule, factor, depth); });
  }

  bool UseCarries(const Op& op, const ShardingRule& rule, const DimFactors& f, int depth) const {
    for (int64_t n : f.segments) {
      if (n < parts_) return false;
    }
    return CarriedCuts(op, rule, f, depth).has_value();
  }

  // Layout of a factor as the results (forward) or else another operand (backward) want it.
  DimSharding Sub(const Op& op, const ShardingRule& rule, int factor, int skip_operand,
                  int depth) const {
    DimSharding none{axes_, 1, {}};
    for (size_t r = 0; r < op.results.size(); ++r) {
      int d = DimOfFactor(rule.results[r], factor);
      if (d < 0) continue;
      DimSharding sub = Forward(op.results[r], d, depth + 1);
      if (auto own = Project(rule, rule.results[r][d], op.results[r]->type.shape[d], sub, factor)) {
        return *own;
      }
    }
    for (size_t i = 0; i < op.operands.size(); ++i) {
      int d = DimOfFactor(rule.operands[i], factor);
      if (d < 0 || static_cast<int>(i) == skip_operand) continue;
      DimSharding sub = Backward(op.operands[i], d, depth + 1);
      if (auto own =
              Project(rule, rule.operands[i][d], op.operands[i]->type.shape[d], sub, factor)) {
        return *own;
      }
    }
    return none;
  }

  std::optional<DimSharding> Project(const ShardingRule& rule, const DimFactors& dim, int64_t size,
                                     const DimSharding& layout, int factor) const {
    if (!Informative(layout)) return std::nullopt;
    auto cuts = ProjectToFactors(rule, dim, size, layout, mesh_);
    if (!cuts || cuts->size() != 1) return std::nullopt;
    const FactorCut& cut = cuts->front();
    if (cut.factor != factor || !Informative(cut.layout)) return std::nullopt;
    return cut.layout;
  }

  DimSharding Lift(const ShardingRule& rule, const DimFactors& dim, int64_t size, int factor,
                   DimSharding sub) const {
    for (DimSharding layout : {std::move(sub), DimSharding{axes_, 1, {}}}) {
      if (auto d = LiftToDim(rule, dim, size, {{factor, std::move(layout)}}, mesh_)) return *d;
    }
    return {axes_, 1, {}};
  }

  DimSharding FromUse(const Op& op, const ShardingRule& rule, int operand, int dim,
                      int depth) const {
    const DimFactors& f = rule.operands[operand][dim];
    int64_t size = op.operands[operand]->type.shape[dim];
    auto cuts = CarriedCuts(op, rule, f, depth);
    if (!cuts) return {axes_, 1, {}};
    if (cuts->size() == 1) {
      int factor = cuts->front().factor;
      return Lift(rule, f, size, factor, Sub(op, rule, factor, operand, depth));
    }
    return LiftToDim(rule, f, size, *cuts, mesh_).value_or(DimSharding{axes_, 1, {}});
  }

  // The layout in which the producer of the value would give it, were the dim cut.
  DimSharding Backward(const Value* v, int dim, int depth) const {
    DimSharding none{axes_, 1, {}};
    const Op* op = v->producer;
    if (!op || !op->def->rule || depth > kMaxDepth) return none;
    ShardingRule rule = op->def->rule(*op);
    const DimFactors& f = rule.results[v->index][dim];
    const int64_t size = v->type.shape[dim];
    auto cuts = CutsOf(rule, f, [](int) { return true; });
    if (!cuts) return none;
    if (cuts->size() > 1) return LiftToDim(rule, f, size, *cuts, mesh_).value_or(none);
    const int factor = cuts->front().factor;
    DimSharding sub = none;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      int d = DimOfFactor(rule.operands[i], factor);
      if (d < 0) continue;
      DimSharding there = Backward(op->operands[i], d, depth + 1);
      if (auto own =
              Project(rule, rule.operands[i][d], op->operands[i]->type.shape[d], there, factor)) {
        sub = *own;
        break;
      }
    }
    return Lift(rule, f, size, factor, sub);
  }

  const Mesh& mesh_;
  AxisList axes_;
  int64_t parts_;
  std::set<std::pair<const Value*, int>> seen_;  // by IsAlone
};

}  // namespace

bool CutIsCarried(const Value* value, int dim, int64_t parts) {
  Mesh mesh({{"parts", parts}});
  return Inference(mesh, {0}).Carries(value, dim);
}

std::optional<int64_t> DimToCut(const Value* value, const Ints& dims, int64_t parts) {
  Mesh mesh({{"parts", parts}});
  return Inference(mesh, {0}).DimToCut(value, dims);
}

namespace {

// Whether each part gets a whole granule of each segment: a value is cut no finer.
bool IsFilled(int64_t size, const DimSharding& dim, const Mesh& mesh) {
  const int64_t parts = NumParts(dim, mesh);
  auto fits = [&](int64_t n) { return n / dim.granule >= parts; };
  return dim.segments.empty() ? fits(size) : std::ranges::all_of(dim.segments, fits);
}

// Of a param, a large dim of which nothing asks anything may be cut at multiples of kAlignment.
void InferLayout(Value* value, const Mesh& mesh, bool is_param) {
  TensorType& type = value->type;
  for (int d = 0; d < type.rank(); ++d) {
    DimSharding& dim = type.sharding.dims[static_cast<size_t>(d)];
    if (!dim.cut() || Informative(dim)) continue;
    const int64_t size = type.shape[static_cast<size_t>(d)];
    Inference inference(mesh, dim.axes);
    const DimSharding wanted = Canonical(size, inference.Forward(value, d), mesh);
    if (is_param || IsFilled(size, wanted, mesh)) dim = wanted;
    const int64_t local = LocalDim(size, dim, mesh);
    if (is_param && !Informative(dim) && local % kAlignment != 0 && local >= kLeastAligned &&
        inference.IsAlone(value, d)) {
      dim.granule = kAlignment;
    }
  }
}

}  // namespace

void InferLayouts(Graph& graph) {
  for (const auto& op : graph.ops()) {
    if (op->def->constrains) InferLayout(op->result(), graph.mesh, false);
  }
  for (Op* param : graph.Params()) {
    InferLayout(param->result(), graph.mesh, true);
    CheckSharding(param->out(), graph.mesh, "parameter '" + param->attrs.String("name") + "'");
  }
}

}  // namespace shardc
