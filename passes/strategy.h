// How an op runs over one axis of the mesh.
#pragma once

#include <optional>
#include <vector>

#include "ir/op_def.h"
#include "passes/layout.h"
#include "passes/reshard_cost.h"
#include "passes/versions.h"

namespace shardc {

struct Strategy {
  // Every rank does all of it; each does a part along a factor of the op's rule; each passes its
  // partial operands on.
  enum Kind { kWhole, kFactor, kLinear } kind = kWhole;
  FactorCut cut;  // kFactor
  int group = 0;  // kLinear: index into ShardingRule::linear
};

// An operand or result over the axis.
struct Slot {
  Placement placement;
  DimSharding dim;  // of placement.dim, with the axes that were settled before
};

// What a strategy makes of an op.
struct Effect {
  std::vector<Slot> operands, results;
  std::vector<FactorCut> cuts;  // of the op's factors, over this axis and those before
};

// `cuts` is what the axes before do to the op's factors. Nothing where the strategy does not go
// with it.
std::optional<Effect> EffectOf(const Strategy& strategy, const Op& op, const ShardingRule& rule,
                               int axis, const std::vector<FactorCut>& cuts, const Mesh& mesh);

// Of a sharding_constraint: what propagation left on its result.
Strategy AskedFor(const Op& constraint, const ShardingRule& rule, int axis, const Mesh& mesh);

// The cheapest strategy, in bytes moved for the operands and from the natural result to the wished
// one (InsertReshards says what is preferred besides). `wished`: propagation decided what the types
// of the results say; else cut results cost nothing.
Strategy ChooseStrategy(const Op& op, const ShardingRule& rule, int axis,
                        const std::vector<FactorCut>& cuts, bool wished, const Versions& versions,
                        const Mesh& mesh);

}  // namespace shardc
