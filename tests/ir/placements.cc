#include "tests/ir/placements.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/op_def.h"

namespace shardc::testing {
namespace {

class Placer {
 public:
  Placer(const Op& op, const Mesh& mesh) : op_(op), rule_(op.def->rule(op)), mesh_(mesh) {}

  // Nothing where that cannot be written down or is not legal.
  std::optional<Placed> Place(const std::vector<Way>& ways) {
    Placed p;
    for (const Value* v : op_.operands) p.operands.emplace_back(v->type.shape.size());
    for (const Value* v : op_.results) p.results.emplace_back(v->type.shape.size());
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (!Add(ways[axis], axis, p)) return std::nullopt;
    }
    return p;
  }

 private:
  bool Add(const Way& way, int axis, Placed& p) {
    if (way.kind == Way::kWhole) return true;
    if (way.kind == Way::kLinear) {
      for (int i : rule_.linear[way.index]) p.operands[i].partial_sum.push_back(axis);
      for (Sharding& s : p.results) s.partial_sum.push_back(axis);
      return true;
    }
    const Factor& factor = rule_.factors[way.index];
    bool expandable = factor.kind == FactorKind::kExpandable;
    p.expands |= expandable;
    FactorCut cut{way.index, way.layout};
    cut.layout.axes = {axis};
    if (!AddCut(rule_, cut, mesh_, p.cuts)) return false;
    for (size_t i = 0; i < p.operands.size(); ++i) {
      if (!Cut(rule_.operands[i], op_.in(static_cast<int>(i)), cut, p.cuts, p.operands[i])) {
        return false;
      }
    }
    for (size_t i = 0; i < p.results.size(); ++i) {
      if (DimOfFactor(rule_.results[i], way.index) < 0) {
        if (expandable) continue;
        (factor.reduce == ReduceKind::kMax ? p.results[i].partial_max : p.results[i].partial_sum)
            .push_back(axis);
      } else if (!Cut(rule_.results[i], op_.out(static_cast<int>(i)), cut, p.cuts, p.results[i])) {
        return false;
      }
    }
    return true;
  }

  bool Cut(const std::vector<DimFactors>& dims, const TensorType& type, const FactorCut& cut,
           const std::vector<FactorCut>& cuts, Sharding& s) {
    int d = DimOfFactor(dims, cut.factor);
    if (d < 0) return true;
    auto lifted = LiftToDim(rule_, dims[d], type.shape[d], cuts, mesh_);
    if (lifted) s.dims[d] = *lifted;
    return lifted.has_value();
  }

  const Op& op_;
  ShardingRule rule_;
  const Mesh& mesh_;
};

// With `layouts` also in granules and segments.
std::vector<Way> Ways(const Op& op, bool layouts) {
  ShardingRule rule = op.def->rule(op);
  std::vector<Way> ways;
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    const Factor& factor = rule.factors[f];
    int id = static_cast<int>(f);
    bool used = std::any_of(rule.operands.begin(), rule.operands.end(),
                            [&](const auto& dims) { return DimOfFactor(dims, id) >= 0; }) ||
                std::any_of(rule.results.begin(), rule.results.end(),
                            [&](const auto& dims) { return DimOfFactor(dims, id) >= 0; });
    if (factor.kind == FactorKind::kReplicated || factor.size < 2 || !used) continue;
    ways.push_back({Way::kFactor, id});
    if (!layouts) continue;
    for (int64_t granule = 2; granule < factor.size; ++granule) {
      ways.push_back({Way::kFactor, id, {{}, granule, {}}});
    }
    if (factor.size >= 5 && !factor.contiguous) {
      ways.push_back({Way::kFactor, id, {{}, 1, {factor.size - 2, 2}}});
    }
  }
  bool numeric = std::all_of(op.results.begin(), op.results.end(),
                             [](const Value* r) { return r->type.dtype != DType::kBool; });
  for (size_t g = 0; numeric && g < rule.linear.size(); ++g) {
    ways.push_back({Way::kLinear, static_cast<int>(g)});
  }
  return ways;
}

}  // namespace

std::string Way::ToString() const {
  if (kind == kWhole) return "whole";
  if (kind == kLinear) return StrCat("partial operands of group ", index);
  return StrCat("factor ", index, layout.granule > 1 ? StrCat(" granule ", layout.granule) : "",
                layout.segments.empty() ? "" : " segments " + ShapeToString(layout.segments));
}

std::optional<Placed> Place(const Op& op, const Mesh& mesh, const std::vector<Way>& ways) {
  return Placer(op, mesh).Place(ways);
}

std::vector<std::vector<Way>> WaysOn(const Mesh& mesh, const Op& op) {
  const bool one = mesh.num_axes() == 1;
  const std::vector<Way> ways = Ways(op, one);
  std::vector<std::vector<Way>> all;
  for (const Way& a : ways) {
    if (one) {
      all.push_back({a});
      continue;
    }
    all.insert(all.end(), {{a, Way()}, {Way(), a}});
    for (const Way& b : ways) all.push_back({a, b});
  }
  return all;
}

}  // namespace shardc::testing
