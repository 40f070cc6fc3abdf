// The algebra between the cut of a tensor's dim and the cut of a factor of a sharding rule.
//
// A dim whose factors are [f0 f1 f2] (major to minor) is cut along f1 when every one of its f0
// segments is cut in blocks of f2: 2304 = 3 x 12 x 64 cut along the 12 heads is `2304@tp/3%64`.
#pragma once

#include <optional>

#include "ir/mesh.h"
#include "ir/sharding.h"
#include "ir/sharding_rule.h"

namespace shardc {

// A cut of a factor: the factor seen as a dim of its own size.
struct FactorCut {
  int factor = -1;
  DimSharding layout;  // axes, and segments and granule relative to the factor
};

// Which factor the cut `dim` of a dim of `size` elements is along. Nothing when it does not fall on
// a factor.
std::optional<FactorCut> ProjectToFactor(const ShardingRule& rule, const DimFactors& factors,
                                         int64_t size, const DimSharding& dim, const Mesh& mesh);

// The cut of a dim with these factors when cut.factor is cut so, in canonical form. Nothing when
// the dim does not have the factor, or the layout cannot be written down for it.
std::optional<DimSharding> LiftToDim(const ShardingRule& rule, const DimFactors& factors,
                                     int64_t size, const FactorCut& cut, const Mesh& mesh);

// The dim of a tensor (given by its dims' factors) that has the factor, or -1.
int DimOfFactor(const std::vector<DimFactors>& dims, int factor);

}  // namespace shardc
