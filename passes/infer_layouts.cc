#include "passes/infer_layouts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "ir/diagnostic.h"
#include "passes/carried_layout.h"
#include "passes/first_of.h"
#include "passes/forward_uses.h"
#include "passes/layout.h"
#include "passes/layout_inference.h"
#include "passes/split_axes.h"
#include "passes/weights.h"

namespace shardc {
namespace {

// Ops that are followed, at most.
constexpr int kMaxDepth = 12;

// Elements to which an uneven cut is rounded, 16 bytes of halves: tensor cores take rows of other
// lengths only in parts. Padding of less than a part in 64 is worth that.
constexpr int64_t kAlignment = 8, kLeastAligned = 64 * kAlignment;

// Whether nothing takes a dim apart, puts it together with others or says how to cut it: any cut of
// it will do.
class AnyCut {
 public:
  bool WillDo(const Value* v, int dim, int depth = 0) {
    if (depth > kMaxDepth || !seen_.insert({v, dim}).second) return true;
    return !AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
      return !UseIsAlone(user, rule, operand, dim, depth);
    });
  }

 private:
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
          !WillDo(op.results[r], d, depth + 1)) {
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

  RulesOfOps rules_;
  std::set<std::pair<const Value*, int>> seen_;
  std::map<std::tuple<const Value*, int, int>, bool> made_alone_;
};

// Whether ops only sum over the dim: it is cut as what it meets there was made.
bool IsContracted(const Value* v, int dim, RulesOfOps& rules) {
  return !AnyForwardUse(v, rules, [&](const Op&, const ShardingRule& rule, size_t operand) {
    return std::ranges::any_of(rule.operands[operand][dim].factors, [&](int factor) {
      return std::ranges::any_of(rule.results,
                                 [&](const auto& dims) { return DimOfFactor(dims, factor) >= 0; });
    });
  });
}

// The layouts of params that the spec cuts.
class ParamLayouts {
 public:
  explicit ParamLayouts(const Mesh& mesh) : mesh_(mesh) {}

  // First what values are made of, in parts that are filled; then what cannot be cut so, in blocks
  // of which there are too few; then what is contracted with these values.
  void Infer(const std::vector<Op*>& params) {
    RulesOfOps rules;
    std::vector<ParamDim> in_blocks, contracted;
    for (const Op* op : params) {
      for (int d = 0; d < op->out().rank(); ++d) {
        const ParamDim dim{op->result(), d};
        if (dim.layout().cut() && IsOfEach(*op, d, dim.layout())) InferInStack(dim, rules);
        if (!dim.layout().cut() || IsInformative(dim.layout())) continue;
        if (IsContracted(dim.param, d, rules)) {
          contracted.push_back(dim);
        } else if (!InferFilled(dim, {})) {
          in_blocks.push_back(dim);
        }
      }
    }
    InferBlocks(std::move(in_blocks));
    for (const ParamDim& dim : contracted) InferFilled(dim, known_);
  }

 private:
  using Parts = LayoutInference::Parts;

  struct ParamDim {
    Value* param;
    int dim;

    DimSharding& layout() const { return param->type.sharding.dims[dim]; }
    int64_t size() const { return param->type.shape[dim]; }
  };

  // Whether each matrix of a stack of them is cut by itself.
  static bool IsOfEach(const Op& param, int dim, const DimSharding& layout) {
    const Ints stacked = param.attrs.IntList("stacked", {});
    return !stacked.empty() && stacked[0] == dim && std::ssize(layout.segments) == stacked[1];
  }

  // Where an op takes the stack apart, each matrix as what reads it wants.
  void InferInStack(const ParamDim& dim, RulesOfOps& rules) {
    AnyForwardUse(dim.param, rules, [&](const Op& user, const ShardingRule& rule, size_t operand) {
      const DimFactors& f = rule.operands[operand][dim.dim];
      const Value* apart = user.results[0];
      const int d = f.factors.size() > 1 ? DimOfFactor(rule.results[0], f.factors.back()) : -1;
      if (d < 0 || rule.results[0][d].factors.size() != 1 ||
          rule.factors[f.factors.back()].size != dim.layout().segments[0]) {
        return false;
      }
      const DimSharding each = LayoutInference(mesh_, dim.layout().axes).Wanted(apart, d);
      const auto layout = LiftToDim(rule, f, dim.size(), {{f.factors.back(), each}}, mesh_);
      if (layout) dim.layout() = *layout;
      return layout.has_value();
    });
    known_.insert(dim.param);
  }

  // Whether that is how it will be.
  bool InferFilled(const ParamDim& dim, const LayoutInference::Values& known) {
    LayoutInference inference(mesh_, dim.layout().axes, Parts::kFilled, known);
    dim.layout() = inference.Wanted(dim.param, dim.dim);
    if (!IsInformative(dim.layout()) && !inference.Carries(dim.param, dim.dim)) return false;
    Settle(dim);
    return true;
  }

  // In blocks, as long as all that meet each other are.
  void InferBlocks(std::vector<ParamDim> dims) {
    std::vector<std::pair<ParamDim, DimSharding>> in_blocks;  // and how they would be cut otherwise
    for (const ParamDim& dim : dims) {
      LayoutInference inference(mesh_, dim.layout().axes, Parts::kSomeEmpty, known_);
      DimSharding blocks = inference.Wanted(dim.param, dim.dim);
      if (!IsInformative(blocks)) continue;
      in_blocks.emplace_back(dim, std::exchange(dim.layout(), std::move(blocks)));
    }
    for (const ParamDim& dim : dims) Settle(dim);
    const auto revert_misfit = [&](const auto& in_blocks) {
      const auto& [dim, otherwise] = in_blocks;
      LayoutInference inference(mesh_, otherwise.axes, Parts::kSomeEmpty, known_);
      if (inference.Fits(dim.param, dim.dim, dim.layout())) return false;
      dim.layout() = otherwise;
      return true;
    };
    while (std::erase_if(in_blocks, revert_misfit) > 0) {
    }
  }

  // A large dim of which nothing asks anything may be cut at multiples of kAlignment.
  void Settle(const ParamDim& dim) {
    DimSharding& layout = dim.layout();
    const int64_t local = LocalDim(dim.size(), layout, mesh_);
    if (!IsInformative(layout) && local % kAlignment != 0 && local >= kLeastAligned &&
        AnyCut().WillDo(dim.param, dim.dim)) {
      layout.granule = kAlignment;
    }
    known_.insert(dim.param);
  }

  const Mesh& mesh_;
  LayoutInference::Values known_;  // are cut as they will be
};

// Of a dim with fewer granules than there are ranks to cut it over.
std::string EmptyParts(const TensorType& type, int d, const std::string& axes, int64_t parts) {
  const DimSharding& dim = type.sharding.dims[d];
  const int64_t size = dim.segments.empty() ? type.shape[d] : std::ranges::min(dim.segments);
  const int64_t blocks = (size + dim.granule - 1) / dim.granule;
  if (blocks >= parts) return "";
  return StrCat(blocks, blocks > 1 ? " blocks" : " block", " (heads, say) for ", parts,
                " ranks of ", axes, ": ", parts - blocks,
                parts - blocks > 1 ? " of these have none" : " of these has none");
}

// Of a dim with heads that others share, of which no cut in so many parts leaves each whole.
std::string TornHeads(const Value* param, int d, const std::string& axes, int64_t parts) {
  if (IsInformative(param->type.sharding.dims[d])) return "";
  const int64_t heads = SharedHeads(param, d, parts);
  if (heads < 2) return "";
  return StrCat(heads, " heads for ", parts, " ranks of ", axes,
                ", which are cut within: the ranks gather what they make");
}

// What cuts cost that one might not expect, once for all params that have the same.
void NoteCosts(Graph& graph, const std::vector<Op*>& params) {
  std::map<std::string, Strings> names;  // by what is said of them
  for (const Op* param : params) {
    const TensorType& type = param->out();
    for (int d = 0; d < type.rank(); ++d) {
      const DimSharding& dim = type.sharding.dims[d];
      if (!dim.cut()) continue;
      const std::string axes = Join(graph.mesh.Names(dim.axes), " and ");
      const int64_t parts = NumParts(dim, graph.mesh);
      for (const std::string& what :
           {EmptyParts(type, d, axes, parts), TornHeads(param->result(), d, axes, parts)}) {
        if (!what.empty()) names[what].push_back(param->attrs.String("name"));
      }
    }
  }
  for (const auto& [what, list] : names) {
    graph.notes.push_back(StrCat(FirstOf(list), list.size() > 1 ? " have " : " has ", what));
  }
}

// Of a value that the spec cuts.
void InferConstraint(const Op& constraint, const Mesh& mesh) {
  Value* value = constraint.result();
  for (int d = 0; d < value->type.rank(); ++d) {
    DimSharding& dim = value->type.sharding.dims[d];
    if (!dim.cut() || IsInformative(dim)) continue;
    if (const auto axes = AxesBesideWeights(constraint, d, mesh)) {
      dim = CarriedLayout(value, d, *axes, mesh).value_or(dim);
      continue;
    }
    const int64_t size = value->type.shape[d];
    const DimSharding wanted = LayoutInference(mesh, dim.axes).Wanted(value, d);
    if (FillsParts(size, wanted, mesh)) dim = wanted;
  }
}

}  // namespace

void InferLayouts(Graph& graph) {
  for (const auto& op : graph.ops()) {
    if (op->def->constrains) InferConstraint(*op, graph.mesh);
  }
  const std::vector<Op*> params = graph.Params();
  ParamLayouts(graph.mesh).Infer(params);
  for (const Op* param : params) {
    CheckSharding(param->out(), graph.mesh, "parameter '" + param->attrs.String("name") + "'");
  }
  NoteCosts(graph, params);
}

}  // namespace shardc
