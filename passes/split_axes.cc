#include "passes/split_axes.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>
#include <vector>

#include "ir/diagnostic.h"
#include "passes/carried_layout.h"
#include "passes/first_of.h"
#include "passes/forward_uses.h"
#include "passes/layout.h"
#include "passes/provenance.h"
#include "passes/weights.h"

namespace shardc {
namespace {

constexpr int kMaxDepth = 24;    // ops between a weight and the op that shares its result
constexpr size_t kMostOps = 64;  // that make a weight, or look some of it up

// The size of the factor that some op shares between parts of another operand, which can be cut in
// `ranks` parts, or repeats for them, on the way of the dim from `v`; 0 when there is none.
class SharedFactor {
 public:
  // What does not depend on the dim that is asked of, as long as the graph stays as it is.
  struct Known {
    RulesOfOps rules;
    std::unordered_set<const Op*> others;  // that make no weights
  };

  // `least_sharers`: how many must share it, at least.
  SharedFactor(int64_t ranks, int64_t least_sharers, Known& known)
      : ranks_(ranks), least_sharers_(least_sharers), rules_(known.rules), others_(known.others) {}

  // `major`: a cut of the dim that Find began with cuts this one.
  int64_t Find(const Value* v, int dim, bool major = true, int depth = 0) {
    if (depth > kMaxDepth || !seen_.insert({v, dim}).second) return 0;
    int64_t size = 0;
    AnyForwardUse(v, rules_, [&](const Op& user, const ShardingRule& rule, size_t operand) {
      size = SharedIn(rule, operand, dim);
      if (size == 0) size = RepeatedIn(user, rule, operand, dim);
      if (size == 0 && major && IsSummedIn(user, rule, operand, dim)) size = 1;
      if (size == 0) {
        size = Follow(user, rule, rule.operands[operand][dim],
                      major && !IsOfExperts(user, rule, operand, dim), depth);
      }
      return size > 0;
    });
    return size;
  }

 private:
  // Some dim of the operand is one factor, and another operand has that factor times others.
  int64_t SharedIn(const ShardingRule& rule, size_t operand, int dim) const {
    const auto& dims = rule.operands[operand];
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d].factors.size() != 1) continue;
      int factor = dims[d].factors[0];
      int64_t size = rule.factors[factor].size;
      // A single shared head takes no part of the dim that comes from the weight: all do.
      if (static_cast<int>(d) != dim && size != 1) continue;
      for (const auto& other : rule.operands) {
        int at = DimOfFactor(other, factor);
        if (at < 0 || other[at].factors[0] != factor) continue;
        int64_t product = 1;
        for (int f : other[at].factors) product *= rule.factors[f].size;
        if (product >= least_sharers_ && product > size) return size;
      }
    }
    return 0;
  }

  // A dim of a result is a factor of the dim times one along which the operand repeats itself, as
  // where heads are written out for all that share them.
  int64_t RepeatedIn(const Op& op, const ShardingRule& rule, size_t operand, int dim) {
    const auto& dims = rule.operands[operand];
    for (const auto& result : rule.results) {
      for (const DimFactors& d : result) {
        if (d.factors.size() != 2 || DimOfFactor({dims[dim]}, d.factors[0]) < 0) continue;
        const int repeats = DimOfFactor(dims, d.factors[1]);
        if (repeats < 0 || repeats == dim || !Repeats(*op.operands[operand], repeats)) continue;
        const int64_t size = rule.factors[d.factors[0]].size;
        if (size < ranks_ && size * rule.factors[d.factors[1]].size >= ranks_) return size;
      }
    }
    return 0;
  }

  using Dims = std::vector<std::vector<DimFactors>>;  // of all operands, or of all results

  static bool AnyHas(const Dims& values, int factor) {
    return std::ranges::any_of(values,
                               [&](const auto& dims) { return DimOfFactor(dims, factor) >= 0; });
  }
  static bool AllHave(const Dims& values, int factor) {
    return std::ranges::all_of(values,
                               [&](const auto& dims) { return DimOfFactor(dims, factor) >= 0; });
  }

  // Whether the op is a product: of several operands, with a sum over some factor of them.
  static bool Multiplies(const Op& op, const ShardingRule& rule) {
    if (op.operands.size() < 2) return false;
    for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
      if (AnyHas(rule.operands, factor) && !AnyHas(rule.results, factor)) return true;
    }
    return false;
  }

  // Whether a few ops make the value of nothing but weights and constants, or of rows of them that
  // are looked up, as those of experts: without a product, since a model computes with rows of its
  // embedding, and with what it learned instead of an input. But a matrix may have an update of low
  // rank, or a norm that products estimate.
  bool IsOfWeights(const Value* value) {
    const bool matrix = value->type.rank() == 2;
    bool picks = false, multiplies = false;
    std::set<const Op*> seen;
    std::vector<const Value*> waiting = {value};
    while (!waiting.empty()) {
      const Op* op = waiting.back()->producer;
      waiting.pop_back();
      if (!op || seen.size() > kMostOps) return false;
      if (!seen.insert(op).second) continue;
      if (op->def->picks) {
        picks = true;
        waiting.push_back(op->operands[0]);
      } else {
        multiplies |= op->def->rule && Multiplies(*op, rules_.Of(*op));
        waiting.insert(waiting.end(), op->operands.begin(), op->operands.end());
      }
      if (multiplies && (picks || !matrix)) return false;
    }
    return true;
  }

  // Whether the op sums over the dim, in a product that is none with a weight: as the one group of
  // a state space's B and C is summed over for all heads.
  bool IsSummedIn(const Op& op, const ShardingRule& rule, size_t operand, int dim) {
    const auto& factors = rule.operands[operand][dim].factors;
    if (factors.empty() || rule.factors[factors[0]].kind != FactorKind::kPlain) return false;
    if (op.operands.size() < 2 || AnyHas(rule.results, factors[0])) return false;
    return AllHave(rule.operands, factors[0]) &&
           std::ranges::none_of(op.operands, [&](const Value* v) { return IsOfWeights(v); }) &&
           std::ranges::none_of(op.operands, [&](const Value* v) { return IsWeight(v, others_); });
  }

  // Whether the op is a product for each of several matrices of a weight, along them: the sum over
  // what they make is one over the ranks that have them.
  bool IsOfExperts(const Op& op, const ShardingRule& rule, size_t operand, int dim) {
    const auto& factors = rule.operands[operand][dim].factors;
    return !factors.empty() && AllHave(rule.operands, factors[0]) &&
           AllHave(rule.results, factors[0]) && Multiplies(op, rule) &&
           IsWeight(op.operands[operand], others_);
  }

  bool Repeats(const Value& v, int dim) {
    const Op* op = v.producer;
    if (op == nullptr || !op->def->rule || op->operands.size() != 1) return false;
    const ShardingRule& rule = rules_.Of(*op);
    const auto& factors = rule.results[v.index][dim].factors;
    return std::all_of(factors.begin(), factors.end(), [&](int f) {
      return std::all_of(rule.operands.begin(), rule.operands.end(),
                         [&](const auto& dims) { return DimOfFactor(dims, f) < 0; });
    });
  }

  int64_t Follow(const Op& op, const ShardingRule& rule, const DimFactors& factors, bool major,
                 int depth) {
    // A dim of one element, a single head, has no factor by which to know it again.
    for (const Value* r : op.results) {
      for (int d = 0; factors.factors.empty() && d < r->type.rank(); ++d) {
        if (r->type.shape[d] != 1) continue;
        if (int64_t size = Find(r, d, false, depth + 1)) return size;
      }
    }
    for (int factor : factors.factors) {
      for (size_t r = 0; r < op.results.size(); ++r) {
        int d = DimOfFactor(rule.results[r], factor);
        if (d < 0) continue;
        const bool first =
            major && factor == factors.factors[0] && factor == rule.results[r][d].factors[0];
        if (int64_t size = Find(op.results[r], d, first, depth + 1)) return size;
      }
    }
    return 0;
  }

  int64_t ranks_, least_sharers_;
  RulesOfOps& rules_;
  std::unordered_set<const Op*>& others_;
  std::set<std::pair<const Value*, int>> seen_;
};

int64_t SharedHeadsOf(const Value* value, int dim, int64_t ranks, SharedFactor::Known& known,
                      int64_t least_sharers = 0) {
  const int64_t heads = SharedFactor(ranks, least_sharers, known).Find(value, dim);
  return heads < ranks ? heads : 0;
}

int64_t NarrowPartsOf(const Value* value, int dim, int64_t ranks, SharedFactor::Known& known,
                      int64_t least_sharers = 0) {
  const int64_t parts = SharedHeadsOf(value, dim, ranks, known, least_sharers);
  if (parts == 0 || ranks % parts != 0) return ranks;
  return parts == 1 || CutIsCarried(value, dim, parts) ? parts : ranks;
}

// A dim of a parameter, or of a value that the spec cuts, that can be cut in fewer parts than its
// axis has ranks.
struct Narrow {
  Op* op;
  int dim;
  int axis;
  int64_t parts;
};

std::vector<Narrow> FindNarrow(const Graph& graph) {
  std::vector<Narrow> all;
  SharedFactor::Known known;
  for (const auto& op : graph.ops()) {
    const bool param = op->name() == "param";
    if (!param && !op->def->constrains) continue;
    const TensorType& type = op->out();
    for (int d = 0; d < type.rank(); ++d) {
      const DimSharding& dim = type.sharding.dims[d];
      if (dim.axes.size() != 1 || !dim.segments.empty()) continue;
      const int axis = dim.axes[0];
      const int64_t ranks = graph.mesh.axis_size(axis);
      const int64_t parts = param ? NarrowPartsOf(op->result(), d, ranks, known)
                                  : NarrowPartsBeside(op->result(), d, axis, graph.mesh);
      if (parts < ranks) all.push_back({op.get(), d, axis, parts});
    }
  }
  return all;
}

// The mesh with axes split, and where the old axes are in it.
class SplitMesh {
 public:
  // `cuts`: for an axis, the parts that its first axes shall make.
  SplitMesh(const Mesh& mesh, const std::map<int, std::set<int64_t>>& cuts) {
    std::vector<MeshAxis> axes;
    for (int a = 0; a < mesh.num_axes(); ++a) {
      const MeshAxis& old = mesh.axes()[a];
      first_.push_back(static_cast<int>(axes.size()));
      int64_t before = 1;
      auto it = cuts.find(a);
      if (it != cuts.end()) {
        for (int64_t parts : it->second) {
          // Parts that are no multiple of others cannot be made of the same axes.
          if (parts % before != 0 || parts == before) continue;
          axes.push_back({Name(mesh, old, axes.size()), parts / before});
          before = parts;
        }
      }
      axes.push_back({before == 1 ? old.name : Name(mesh, old, axes.size()), old.size / before});
    }
    first_.push_back(static_cast<int>(axes.size()));
    fits_ = axes.size() <= AxisList::kMax;
    if (fits_) mesh_ = Mesh(std::move(axes));
  }

  // Whether a dim can be cut over so many.
  bool fits() const { return fits_; }

  const Mesh& mesh() const { return mesh_; }
  int begin(int old) const { return first_[old]; }
  int end(int old) const { return first_[old + 1]; }

  AxisList Map(const AxisList& old) const {
    AxisList axes;
    for (int a : old) {
      for (int i = begin(a); i < end(a); ++i) axes.push_back(i);
    }
    return axes;
  }

  void Map(Value* v) const {
    for (DimSharding& d : v->type.sharding.dims) d.axes = Map(d.axes);
    v->type.sharding.partial_sum = Map(v->type.sharding.partial_sum);
    v->type.sharding.partial_max = Map(v->type.sharding.partial_max);
    std::vector<int> steps;
    for (size_t a = 0; a < v->provenance.size(); ++a) {
      steps.resize(end(static_cast<int>(a)), v->provenance[a]);
    }
    v->provenance = std::move(steps);
  }

  Strings Map(const Strings& names, const Mesh& before) const {
    Strings mapped;
    for (const std::string& name : names) {
      auto old = before.FindAxis(name);
      for (int i = old ? begin(*old) : 0; old && i < end(*old); ++i) {
        mapped.push_back(mesh_.axes()[i].name);
      }
    }
    return mapped;
  }

  // The first axes of an old one that make so many parts; nothing when none do.
  std::optional<AxisList> First(int old, int64_t parts) const {
    AxisList axes;
    for (int i = begin(old); i < end(old) && NumParts(axes, mesh_) < parts; ++i) axes.push_back(i);
    if (NumParts(axes, mesh_) != parts) return std::nullopt;
    return axes;
  }

 private:
  // "tp.0"; with more dots where the user has such names.
  std::string Name(const Mesh& mesh, const MeshAxis& old, size_t at) const {
    std::string prefix = old.name + ".";
    while (std::any_of(mesh.axes().begin(), mesh.axes().end(),
                       [&](const MeshAxis& a) { return a.name.starts_with(prefix); })) {
      prefix += ".";
    }
    return prefix + std::to_string(at - static_cast<size_t>(first_.back()));
  }

  Mesh mesh_;
  bool fits_ = false;
  std::vector<int> first_;
};

std::string NameOf(const Narrow& n) {
  return n.op->def->constrains ? "the result of " + Describe(*n.op->operands[0]->producer)
                               : n.op->attrs.String("name");
}

bool Apply(Graph& graph, const Narrow& n, const SplitMesh& split) {
  auto axes = split.First(n.axis, n.parts);
  if (!axes) return false;
  Value* v = n.op->result();
  DimSharding& dim = v->type.sharding.dims[n.dim];
  dim = Canonical(v->type.shape[n.dim], {*axes, 1, {}}, graph.mesh);
  for (int a = split.begin(n.axis); a < split.end(n.axis); ++a) {
    if (axes->contains(a)) continue;
    SetProvenance(v, a,
                  AddProvenance(graph, ProvenanceOf(v, a),
                                StrCat("each part of ", NameOf(n), " is repeated over ",
                                       graph.mesh.axes()[a].name)));
  }
  return true;
}

void Note(Graph& graph, const std::vector<Narrow>& narrow, const Mesh& before) {
  std::map<std::pair<int, int64_t>, std::vector<std::string>> names;
  for (const Narrow& n : narrow) names[{n.axis, n.parts}].push_back(NameOf(n));
  for (const auto& [key, list] : names) {
    const MeshAxis& axis = before.axes()[key.first];
    graph.notes.push_back(StrCat(FirstOf(list), list.size() > 1 ? " hold " : " holds ", key.second,
                                 key.second == 1 ? " head" : " heads", " for ", axis.size,
                                 " ranks of ", axis.name, ": each is repeated on ",
                                 axis.size / key.second, " ranks"));
  }
}

}  // namespace

bool IsPartOfAxis(std::string_view name, std::string_view axis) {
  if (!name.starts_with(axis)) return false;
  name.remove_prefix(axis.size());
  const size_t number = name.find_first_not_of('.');
  return number != 0 && number != std::string_view::npos &&
         name.find_first_not_of("0123456789", number) == std::string_view::npos;
}

int64_t NarrowParts(const Value* value, int dim, int64_t ranks, int64_t least_sharers) {
  SharedFactor::Known known;
  return NarrowPartsOf(value, dim, ranks, known, least_sharers);
}

std::vector<int64_t> NarrowParts(std::span<Value* const> values, int dim, int64_t ranks) {
  SharedFactor::Known known;
  std::vector<int64_t> parts;
  for (const Value* v : values) parts.push_back(NarrowPartsOf(v, dim, ranks, known));
  return parts;
}

int64_t NarrowPartsBeside(const Value* value, int dim, int axis, const Mesh& mesh) {
  const int64_t ranks = mesh.axis_size(axis);
  const auto weights = AxesOfWeights(value, dim);
  if (!weights) return ranks;
  int64_t beside = 1;
  for (int a : *weights) beside *= a < axis ? mesh.axis_size(a) : 1;
  const int64_t heads = SharedHeads(value, dim, beside * ranks), parts = heads / beside;
  if (parts < 2 || heads % beside != 0 || ranks % parts != 0) return ranks;
  return CutIsCarried(value, dim, heads) ? parts : ranks;
}

int64_t SharedHeads(const Value* value, int dim, int64_t ranks) {
  SharedFactor::Known known;
  return SharedHeadsOf(value, dim, ranks, known);
}

void SplitAxes(Graph& graph) {
  std::vector<Narrow> narrow = FindNarrow(graph);
  if (narrow.empty()) return;
  const Mesh before = graph.mesh;
  std::map<int, std::set<int64_t>> cuts;
  for (const Narrow& n : narrow) cuts[n.axis].insert(n.parts);
  SplitMesh split(before, cuts);
  if (!split.fits()) return;
  graph.mesh = split.mesh();
  for (const auto& input : graph.inputs()) split.Map(input.get());
  for (const auto& op : graph.ops()) {
    for (Value* r : op->results) split.Map(r);
    if (op->def->constrains) {
      op->attrs.Set("axes", split.Map(op->attrs.StringList("axes"), before));
    }
  }
  std::erase_if(narrow, [&](const Narrow& n) { return !Apply(graph, n, split); });
  Note(graph, narrow, before);
}

}  // namespace shardc
