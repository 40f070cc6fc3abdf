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

}  // namespace

int DimOfFactor(const std::vector<DimFactors>& dims, int factor) {
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto& f = dims[d].factors;
    if (std::find(f.begin(), f.end(), factor) != f.end()) return static_cast<int>(d);
  }
  return -1;
}

std::optional<DimSharding> LiftToDim(const ShardingRule& rule, const DimFactors& factors,
                                     int64_t size, const FactorCut& cut, const Mesh& mesh) {
  auto it = std::find(factors.factors.begin(), factors.factors.end(), cut.factor);
  if (it == factors.factors.end()) return std::nullopt;
  DimSharding dim = cut.layout;
  if (!factors.segments.empty()) {
    if (!dim.segments.empty()) return std::nullopt;
    dim.segments = factors.segments;
    for (int64_t n : dim.segments) {
      if (n % dim.granule != 0) return std::nullopt;
    }
    return Canonical(size, dim, mesh);
  }
  size_t at = static_cast<size_t>(it - factors.factors.begin());
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

std::optional<FactorCut> ProjectToFactor(const ShardingRule& rule, const DimFactors& factors,
                                         int64_t size, const DimSharding& dim, const Mesh& mesh) {
  if (!dim.cut() || factors.factors.empty()) return std::nullopt;
  DimSharding want = Canonical(size, dim, mesh);
  if (!factors.segments.empty()) {
    if (dim.segments != factors.segments) return std::nullopt;
    return FactorCut{factors.factors[0], {dim.axes, dim.granule, {}}};
  }
  if (factors.factors.size() == 1) return FactorCut{factors.factors[0], want};
  for (size_t at = 0; at < factors.factors.size(); ++at) {
    int64_t left = Product(rule, factors, 0, at);
    int64_t right = Product(rule, factors, at + 1, factors.factors.size());
    int64_t own = rule.factors[factors.factors[at]].size;
    FactorCut cut{factors.factors[at], {dim.axes, 1, {}}};
    // The granule within the factor; 1 also covers the even cuts that canonical form drops it from.
    if (dim.granule % right == 0 && own % (dim.granule / right) == 0) {
      cut.layout.granule = dim.granule / right;
    }
    if (left == 1 && !dim.segments.empty()) {
      for (int64_t n : dim.segments) cut.layout.segments.push_back(n / right);
    }
    auto lifted = LiftToDim(rule, factors, size, cut, mesh);
    if (lifted && *lifted == want) {
      cut.layout = Canonical(own, cut.layout, mesh);
      return cut;
    }
  }
  return std::nullopt;
}

}  // namespace shardc
