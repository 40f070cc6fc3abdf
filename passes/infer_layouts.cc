#include "passes/infer_layouts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "passes/forward_uses.h"
#include "passes/layout.h"
#include "passes/weights.h"

namespace shardc {
namespace {

// Ops between a weight and the split or reshape that takes its result apart, at most.
constexpr int kMaxDepth = 12;

// Elements to which an uneven cut is rounded, 16 bytes of halves: tensor cores take rows of other
// lengths only in parts. Padding of less than a part in 64 is worth that.
constexpr int64_t kAlignment = 8, kLeastAligned = 64 * kAlignment;

bool Informative(const DimSharding& d) { return d.granule != 1 || !d.segments.empty(); }

// Answers how a dim would best be cut over the axes by looking at the ops that make and read the
// value. A layout is always that of a cut over all of the axes.
class Inference {
 public:
  Inference(const Mesh& mesh, AxisList axes)
      : mesh_(mesh), axes_(axes), parts_(NumParts(axes, mesh)) {}

  // Whether a cut of the dim survives the ops that use the value.
  bool Carries(const Value* v, int dim, int depth = 0) {
    if (depth > kMaxDepth) return true;
    return Once(carries_, {v, dim, depth}, [&] {
      return !AnyForwardUse(v, rules_,
                            [&](const Op& user, const ShardingRule& rule, size_t operand) {
                              return !UseCarries(user, rule, rule.operands[operand][dim], depth);
                            });
    });
  }

  // For dims of v, major to minor, that an op ahead merges into one: the one among them that is cut
  // when the merged dim is cut as its users want. Nothing where they want no cut, or one along
  // several.
  std::optional<int64_t> DimToCut(const Value* v, const Ints& dims, int depth = 0) {
    std::optional<int64_t> found;
    if (depth > kMaxDepth) return found;
    AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
      found = DimToCut(user, rule, rule.operands[operand], dims, depth);
      return found.has_value();
    });
    return found;
  }

  // Whether nothing takes the dim apart, puts it together with others or says how to cut it: any
  // cut of it will do.
  bool IsAlone(const Value* v, int dim, int depth = 0) {
    if (depth > kMaxDepth || !seen_.insert({v, dim}).second) return true;
    return !AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
      return !UseIsAlone(user, rule, operand, dim, depth);
    });
  }

  // The layout that the users of the value ask for; Plain() when they ask for nothing.
  DimSharding Forward(const Value* v, int dim, int depth = 0) {
    if (depth > kMaxDepth) return Plain();
    return Once(forward_, {v, dim, depth}, [&] {
      DimSharding wanted;
      const bool found =
          AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
            wanted = FromUse(user, rule, operand, dim, depth);
            return Informative(wanted);
          });
      return found ? wanted : Plain();
    });
  }

 private:
  std::optional<int64_t> DimToCut(const Op& op, const ShardingRule& rule,
                                  const std::vector<DimFactors>& operand, const Ints& dims,
                                  int depth) {
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

  static std::optional<int> OnlyFactor(const DimFactors& dim) {
    if (dim.factors.size() != 1 || !dim.segments.empty()) return std::nullopt;
    return dim.factors[0];
  }

  // Whether one use of the dim, by the operand that it is of, leaves it alone.
  bool UseIsAlone(const Op& op, const ShardingRule& rule, size_t operand, int dim, int depth) {
    const auto factor = OnlyFactor(rule.operands[operand][dim]);
    if (!factor || op.def->constrains) return false;
    if (!OperandsAreMadeAlone(op, rule, *factor, operand, depth)) return false;
    for (size_t r = 0; r < op.results.size(); ++r) {
      const int d = DimOfFactor(rule.results[r], *factor);
      if (d < 0) continue;
      if (!OnlyFactor(rule.results[r][d]) || IsCut(*op.results[r], d) ||
          !IsAlone(op.results[r], d, depth + 1)) {
        return false;
      }
    }
    return true;
  }

  // That is so by the spec, which cuts evenly.
  static bool IsCut(const Value& v, int dim) { return v.type.sharding.dims[dim].cut(); }

  // Whether all operands with the factor, but for operand `but`, are made without a wish of their
  // own for its layout.
  bool OperandsAreMadeAlone(const Op& op, const ShardingRule& rule, int factor, size_t but,
                            int depth) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const int d = DimOfFactor(rule.operands[i], factor);
      if (i == but || d < 0) continue;
      if (!OnlyFactor(rule.operands[i][d]) || !IsMadeAlone(op.operands[i], d, depth + 1)) {
        return false;
      }
    }
    return true;
  }
  bool IsMadeAlone(const Value* v, int dim, int depth) {
    const Op* op = v->producer;
    if (op && op->def->is_state) return true;  // asked by itself
    if (IsCut(*v, dim)) return false;
    if (!op || !op->def->rule || depth > kMaxDepth) return true;
    return Once(made_alone_, {v, dim, depth}, [&] {
      const ShardingRule& rule = rules_.Of(*op);
      const auto factor = OnlyFactor(rule.results[v->index][dim]);
      return factor && !op->def->constrains &&
             OperandsAreMadeAlone(*op, rule, *factor, op->operands.size(), depth);
    });
  }

  bool FactorCarries(const Op& op, const ShardingRule& rule, int factor, int depth) {
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
                                                    const DimFactors& f, int depth) {
    return CutsOf(rule, f, [&](int factor) { return FactorCarries(op, rule, factor, depth); });
  }

  bool UseCarries(const Op& op, const ShardingRule& rule, const DimFactors& f, int depth) {
    for (int64_t n : f.segments) {
      if (n < parts_) return false;
    }
    return CarriedCuts(op, rule, f, depth).has_value();
  }

  // The layout of a cut where no op asks for one: without granule or segments.
  DimSharding Plain() const { return {axes_, 1, {}}; }

  // The layout of a factor that readers of the results ask for.
  std::optional<DimSharding> FromResults(const Op& op, const ShardingRule& rule, int factor,
                                         int depth) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      const int d = DimOfFactor(rule.results[i], factor);
      if (d < 0) continue;
      const Value* v = op.results[i];
      if (auto own = Project(rule, rule.results[i][d], v->type.shape[d], Forward(v, d, depth + 1),
                             factor)) {
        return own;
      }
    }
    return std::nullopt;
  }

  // The layout of a factor in which an operand that has it is made. Operand `but` is not asked.
  std::optional<DimSharding> FromOperands(const Op& op, const ShardingRule& rule, int factor,
                                          size_t but, int depth) {
    const Made made = Once(made_, {&op, factor, depth}, [&] {
      Made first_two;
      for (size_t i = 0; i < op.operands.size() && first_two.size() < 2; ++i) {
        const int d = DimOfFactor(rule.operands[i], factor);
        if (d < 0) continue;
        const Value* v = op.operands[i];
        auto own =
            Project(rule, rule.operands[i][d], v->type.shape[d], Backward(v, d, depth + 1), factor);
        if (own) first_two.emplace_back(i, std::move(*own));
      }
      return first_two;
    });
    const auto other = std::ranges::find_if(made, [&](const auto& m) { return m.first != but; });
    return other == made.end() ? std::nullopt : std::optional(other->second);
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

  // The layout of a dim whose factors are cut so. Of one that is cut alone: as `wanted` finds it,
  // if that can be written down.
  template <typename Wanted>
  DimSharding Lift(const ShardingRule& rule, const DimFactors& dim, int64_t size,
                   const std::optional<std::vector<FactorCut>>& cuts, const Wanted& wanted) const {
    if (!cuts) return Plain();
    if (cuts->size() > 1) return LiftToDim(rule, dim, size, *cuts, mesh_).value_or(Plain());
    const int factor = cuts->front().factor;
    for (DimSharding layout : {wanted(factor).value_or(Plain()), Plain()}) {
      if (auto d = LiftToDim(rule, dim, size, {{factor, std::move(layout)}}, mesh_)) return *d;
    }
    return Plain();
  }

  DimSharding FromUse(const Op& op, const ShardingRule& rule, size_t operand, int dim, int depth) {
    const DimFactors& f = rule.operands[operand][dim];
    const int64_t size = op.operands[operand]->type.shape[dim];
    return Lift(rule, f, size, CarriedCuts(op, rule, f, depth), [&](int factor) {
      auto wanted = FromResults(op, rule, factor, depth);
      return wanted ? wanted : FromOperands(op, rule, factor, operand, depth);
    });
  }

  // The layout in which the producer of the value would give it, were the dim cut.
  DimSharding Backward(const Value* v, int dim, int depth) {
    const Op* op = v->producer;
    if (!op || !op->def->rule || depth > kMaxDepth) return Plain();
    // The spec cuts it, whatever made it: ops are asked in order, so that its layout is known.
    if (op->def->constrains) {
      const DimSharding& own = v->type.sharding.dims[dim];
      return own.axes == axes_ ? own : Plain();
    }
    return Once(backward_, {v, dim, depth}, [&] {
      const ShardingRule& rule = rules_.Of(*op);
      const DimFactors& f = rule.results[v->index][dim];
      const auto cuts = CutsOf(rule, f, [](int) { return true; });
      return Lift(rule, f, v->type.shape[dim], cuts, [&](int factor) {
        return FromOperands(*op, rule, factor, op->operands.size(), depth);
      });
    });
  }

  // Of a dim of a value, or a factor of an op, and how many ops away from the first one it is.
  template <typename Of, typename Answer>
  using Answers = std::map<std::tuple<const Of*, int, int>, Answer>;
  // Operands of an op that are made in a layout of a factor: the first two.
  using Made = std::vector<std::pair<size_t, DimSharding>>;

  // What is reached by many ways is asked once: steps of a sequence share weights, and are joined.
  template <typename Of, typename Answer, typename Ask>
  static Answer Once(Answers<Of, Answer>& answers, const std::tuple<const Of*, int, int>& question,
                     const Ask& ask) {
    if (auto known = answers.find(question); known != answers.end()) return known->second;
    return answers.emplace(question, ask()).first->second;
  }

  const Mesh& mesh_;
  AxisList axes_;
  int64_t parts_;
  RulesOfOps rules_;
  Answers<Value, bool> carries_, made_alone_;
  Answers<Value, DimSharding> forward_, backward_;
  Answers<Op, Made> made_;
  std::set<std::pair<const Value*, int>> seen_;  // by IsAlone
};

}  // namespace

bool CutIsCarried(const Value* value, int dim, int64_t parts) {
  Mesh mesh({{"parts", parts}});
  return Inference(mesh, {0}).Carries(value, dim);
}

std::optional<DimSharding> CarriedLayout(const Value* value, int dim, const AxisList& axes,
                                         const Mesh& mesh) {
  const int64_t size = value->type.shape[dim];
  Inference inference(mesh, axes);
  DimSharding layout = Canonical(size, inference.Forward(value, dim), mesh);
  if (!FillsParts(size, layout, mesh) || !inference.Carries(value, dim)) return std::nullopt;
  return layout;
}

std::optional<int64_t> DimToCut(const Value* value, const Ints& dims, int64_t parts) {
  Mesh mesh({{"parts", parts}});
  return Inference(mesh, {0}).DimToCut(value, dims);
}

namespace {

// Of a param, a large dim of which nothing asks anything may be cut at multiples of kAlignment.
void InferLayout(Op& param, const Mesh& mesh) {
  TensorType& type = param.result()->type;
  for (int d = 0; d < type.rank(); ++d) {
    DimSharding& dim = type.sharding.dims[d];
    if (!dim.cut() || Informative(dim)) continue;
    const int64_t size = type.shape[d];
    Inference inference(mesh, dim.axes);
    dim = Canonical(size, inference.Forward(param.result(), d), mesh);
    const int64_t local = LocalDim(size, dim, mesh);
    if (!Informative(dim) && local % kAlignment != 0 && local >= kLeastAligned &&
        inference.IsAlone(param.result(), d)) {
      dim.granule = kAlignment;
    }
  }
}

// Of a value that the spec cuts.
void InferConstraint(const Op& constraint, const Mesh& mesh) {
  Value* value = constraint.result();
  for (int d = 0; d < value->type.rank(); ++d) {
    DimSharding& dim = value->type.sharding.dims[d];
    if (!dim.cut() || Informative(dim)) continue;
    if (const auto axes = AxesBesideWeights(constraint, d, mesh)) {
      dim = CarriedLayout(value, d, *axes, mesh).value_or(dim);
      continue;
    }
    const int64_t size = value->type.shape[d];
    const DimSharding wanted = Canonical(size, Inference(mesh, dim.axes).Forward(value, d), mesh);
    if (FillsParts(size, wanted, mesh)) dim = wanted;
  }
}

}  // namespace

void InferLayouts(Graph& graph) {
  for (const auto& op : graph.ops()) {
    if (op->def->constrains) InferConstraint(*op, graph.mesh);
  }
  for (Op* param : graph.Params()) {
    InferLayout(*param, graph.mesh);
    CheckSharding(param->out(), graph.mesh, "parameter '" + param->attrs.String("name") + "'");
  }
}

}  // namespace shardc
