// The ways in which an op can be cut, by its rule.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/mesh.h"
#include "passes/layout.h"

namespace shardc::testing {

// What one mesh axis does to an op: nothing, cut a factor, or pass partial sums through a linear
// group.
struct Way {
  enum Kind { kWhole, kFactor, kLinear } kind = kWhole;
  int index = 0;
  DimSharding layout = {};  // kFactor: granule and segments of the factor

  std::string ToString() const;
};

// The shardings of an op under one way per mesh axis.
struct Placed {
  std::vector<Sharding> operands, results;
  std::vector<FactorCut> cuts;
  bool expands = false;
};

// Nothing where that cannot be written down or is not legal.
std::optional<Placed> Place(const Op& op, const Mesh& mesh, const std::vector<Way>& ways);

// For each axis a way, not all of them legal, but for that which leaves all whole: cuts of the
// factors, and of each linear group; on one axis also in granules and segments.
std::vector<std::vector<Way>> WaysOn(const Mesh& mesh, const Op& op);

}  // namespace shardc::testing
