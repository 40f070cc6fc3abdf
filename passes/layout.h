// The algebra between the cut of a tensor's dim and the cuts of the factors of a sharding rule.
//
// A dim whose factors are [f0 f1 f2] (major to minor) is cut along f1 when every one of its f0
// segments is cut in blocks of f2: 2304 = 3 x 12 x 64 cut along the 12 heads is `2304@tp/3%64`. It
// is cut along f1 and f2 when the first axes leave one element of f1 to each part: 8 heads in 2
// groups of 4, cut over the groups and within them, are `8@(a,b)` with a of size 2.
#pragma once

#include <optional>
#include <vector>

#include "ir/mesh.h"
#include "ir/sharding.h"
#include "ir/sharding_rule.h"

namespace shardc {

// Whether each part gets a whole granule of each segment. Values are cut no finer.
bool FillsParts(int64_t size, const DimSharding& dim, const Mesh& mesh);

// A cut of a factor: the factor seen as a dim of its own size.
struct FactorCut {
  int factor = -1;
  DimSharding layout;  // axes, and segments and granule relative to the factor
  bool operator==(const FactorCut&) const = default;
};

// The factors that the cut `dim` of a dim of `size` elements is along, major to minor. Nothing when
// it does not fall on factors.
std::optional<std::vector<FactorCut>> ProjectToFactors(const ShardingRule& rule,
                                                       const DimFactors& factors, int64_t size,
                                                       const DimSharding& dim, const Mesh& mesh);

// What one axis does in such a cut: the factor, and the layout with this axis alone.
std::optional<FactorCut> ProjectAxis(const ShardingRule& rule, const DimFactors& factors,
                                     int64_t size, const DimSharding& dim, int axis,
                                     const Mesh& mesh);

// The cut of a dim with these factors when factors are cut so (those it does not have do not
// count), in canonical form. Nothing when that cannot be written down for it.
std::optional<DimSharding> LiftToDim(const ShardingRule& rule, const DimFactors& factors,
                                     int64_t size, const std::vector<FactorCut>& cuts,
                                     const Mesh& mesh);

// Adds what one more axis does to the cuts of an op's factors. False, and nothing added, when the
// factor is cut by other axes in a layout that this one does not fit.
bool AddCut(const ShardingRule& rule, const FactorCut& cut, const Mesh& mesh,
            std::vector<FactorCut>& cuts);

}  // namespace shardc
