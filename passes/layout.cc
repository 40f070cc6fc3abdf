#include "passes/layout.h"

#include <algorithm>
#include <numeric>

namespace shardc {
namespace {

int64_t Product(const ShardingRule& rule, const DimFactors& f, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= rule.factors[f.factors[i]].size;
  return n;
}

// The cut of one factor, which stands at `at` in the dim.
std::optional<DimSharding> LiftOne(const ShardingRule& rule, const DimFactors& factors,
                                   int64_t size, size_t at, DimSharding dim, const Mesh& mesh) {
  if (!factors.segments.empty()) {
    if (!dim.segments.empty()) return std::nullopt;
    dim.segments = factors.segments;
    for (int64_t n : dim.segments) {
      if (n < dim.granule) return std::nullopt;
    }
    return Canonical(size, dim, mesh);
  }
  int64_t left = Product(rule, factors, 0, at);
  int64_t right = Product(rule, factors, at + 1, factors.factors.size());
  // Pieces of a split share a factor but not their sizes: the segments of one need not fit another.
  if (!dim.segments.empty() &&
      std::accumulate(dim.segments.begin(), dim.segments.end(), int64_t{0}) * left * right !=
          size) {
    return std::nullopt;
  }
  dim.granule *= right;
  for (int64_t& n : dim.segments) n *= right;
  if (dim.segments.empty() && size / left < dim.granule) return std::nullopt;
  if (left > 1) {
    std::vector<int64_t> one = dim.segments;
    if (one.empty()) one = {size / left};
    dim.segments.clear();
    for (int64_t i = 0; i < left; ++i) {
      dim.segments.insert(dim.segments.end(), one.begin(), one.end());
    }
  }
  return Canonical(size, dim, mesh);
}

// Along which one factor the dim is cut.
std::optional<FactorCut> ProjectToOne(const ShardingRule& rule, const DimFactors& factors,
                                      int64_t size, const DimSharding& dim, const Mesh& mesh) {
  DimSharding want = Canonical(size, dim, mesh);
  for (size_t at = 0; at < factors.factors.size(); ++at) {
    int64_t left = Product(rule, factors, 0, at);
    int64_t right = Product(rule, factors, at + 1, factors.factors.size());
    int64_t own = rule.factors[factors.factors[at]].size;
    FactorCut cut{factors.factors[at], {dim.axes, 1, {}}};
    // The granule within the factor; 1 also covers the even cuts that canonical form drops it from.
    if (dim.granule % right == 0 && own >= dim.granule / right) {
      cut.layout.granule = dim.granule / right;
    }
    if (left == 1 && !dim.segments.empty()) {
      for (int64_t n : dim.segments) cut.layout.segments.push_back(n / right);
    }
    if (LiftOne(rule, factors, size, at, cut.layout, mesh) == want) {
      cut.layout = Canonical(own, cut.layout, mesh);
      return cut;
    }
  }
  return std::nullopt;
}

// Along several: the first axes leave one element of a factor to each part, the others cut what is
// right of it.
std::optional<std::vector<FactorCut>> ProjectToSeveral(const ShardingRule& rule,
                                                       const DimFactors& factors, int64_t size,
                                                       const DimSharding& dim, const Mesh& mesh) {
  DimSharding want = Canonical(size, dim, mesh);
  for (size_t at = 0; at + 1 < factors.factors.size(); ++at) {
    int factor = factors.factors[at];
    int64_t own = rule.factors[factor].size;
    int64_t right = Product(rule, factors, at + 1, factors.factors.size());
    DimSharding first{{}, 1, {}}, rest{{}, 1, {}};
    for (int axis : dim.axes) {
      (NumParts(first, mesh) < own ? first : rest).axes.push_back(axis);
    }
    if (own == 1 || NumParts(first, mesh) != own || !rest.cut()) continue;
    if (right >= dim.granule) rest.granule = dim.granule;
    DimFactors minor;
    minor.factors.assign(factors.factors.begin() + static_cast<int64_t>(at) + 1,
                         factors.factors.end());
    auto cuts = ProjectToFactors(rule, minor, right, rest, mesh);
    if (!cuts) continue;
    cuts->insert(cuts->begin(), FactorCut{factor, first});
    if (LiftToDim(rule, factors, size, *cuts, mesh) == want) return cuts;
  }
  return std::nullopt;
}

}  // namespace

bool FillsParts(int64_t size, const DimSharding& dim, const Mesh& mesh) {
  const int64_t parts = NumParts(dim, mesh);
  auto fits = [&](int64_t n) { return n / dim.granule >= parts; };
  return dim.segments.empty() ? fits(size) : std::ranges::all_of(dim.segments, fits);
}

std::optional<DimSharding> LiftToDim(const ShardingRule& rule, const DimFactors& factors,
                                     int64_t size, const std::vector<FactorCut>& cuts,
                                     const Mesh& mesh) {
  struct Placed {
    size_t at;
    const DimSharding* layout;
  };
  std::vector<Placed> placed;
  for (size_t at = 0; at < factors.factors.size(); ++at) {
    for (const FactorCut& cut : cuts) {
      if (cut.factor == factors.factors[at]) placed.push_back({at, &cut.layout});
    }
  }
  if (placed.empty()) return DimSharding();
  const Placed &first = placed.front(), &last = placed.back();
  if (placed.size() == 1) return LiftOne(rule, factors, size, first.at, *first.layout, mesh);
  if (!factors.segments.empty() || !last.layout->segments.empty()) return std::nullopt;
  DimSharding dim{{}, last.layout->granule, {}};
  for (size_t i = 0; i < placed.size(); ++i) {
    for (int axis : placed[i].layout->axes) {
      if (dim.cut() && dim.axes.back() > axis) return std::nullopt;
      dim.axes.push_back(axis);
    }
    if (i + 1 == placed.size()) break;
    if (placed[i].layout->granule != 1 || !placed[i].layout->segments.empty()) return std::nullopt;
    if (NumParts(*placed[i].layout, mesh) !=
            Product(rule, factors, placed[i].at, placed[i].at + 1) ||
        Product(rule, factors, placed[i].at + 1, placed[i + 1].at) != 1) {
      return std::nullopt;
    }
  }
  // Blocks that lie across elements of the factors before would be dealt out otherwise.
  if (Product(rule, factors, last.at, last.at + 1) % dim.granule != 0) return std::nullopt;
  dim.granule *= Product(rule, factors, last.at + 1, factors.factors.size());
  int64_t left = Product(rule, factors, 0, first.at);
  if (left > 1) dim.segments.assign(left, size / left);
  return Canonical(size, dim, mesh);
}

std::optional<std::vector<FactorCut>> ProjectToFactors(const ShardingRule& rule,
                                                       const DimFactors& factors, int64_t size,
                                                       const DimSharding& dim, const Mesh& mesh) {
  if (!dim.cut() || factors.factors.empty()) return std::nullopt;
  if (!factors.segments.empty()) {
    if (dim.segments != factors.segments) return std::nullopt;
    return std::vector{FactorCut{factors.factors[0], {dim.axes, dim.granule, {}}}};
  }
  if (factors.factors.size() == 1) {
    return std::vector{FactorCut{factors.factors[0], Canonical(size, dim, mesh)}};
  }
  if (auto one = ProjectToOne(rule, factors, size, dim, mesh)) return std::vector{*one};
  return ProjectToSeveral(rule, factors, size, dim, mesh);
}

std::optional<FactorCut> ProjectAxis(const ShardingRule& rule, const DimFactors& factors,
                                     int64_t size, const DimSharding& dim, int axis,
                                     const Mesh& mesh) {
  auto cuts = ProjectToFactors(rule, factors, size, dim, mesh);
  if (!cuts) return std::nullopt;
  for (FactorCut& cut : *cuts) {
    if (!cut.layout.axes.contains(axis)) continue;
    cut.layout.axes = {axis};
    return std::move(cut);
  }
  return std::nullopt;
}

bool AddCut(const ShardingRule& rule, const FactorCut& cut, const Mesh& mesh,
            std::vector<FactorCut>& cuts) {
  for (FactorCut& old : cuts) {
    if (old.factor != cut.factor) continue;
    if (old.layout.segments != cut.layout.segments) return false;
    // An even cut has lost its granule to canonical form: the other's may be its own.
    int64_t size = rule.factors[cut.factor].size;
    auto granule = std::max(old.layout.granule, cut.layout.granule);
    auto same = [&](const DimSharding& layout) {
      return Canonical(size, {layout.axes, granule, layout.segments}, mesh) ==
             Canonical(size, layout, mesh);
    };
    if (!same(old.layout) || !same(cut.layout)) return false;
    old.layout.granule = granule;
    for (int axis : cut.layout.axes) old.layout.axes.push_back(axis);
    return true;
  }
  cuts.push_back(cut);
  return true;
}

}  // namespace shardc
