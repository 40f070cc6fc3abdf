// What it costs to bring a tensor from one sharding to another.
#pragma once

#include "ir/mesh.h"
#include "ir/sharding.h"

namespace shardc {

// What one axis does to a tensor.
struct Placement {
  enum Kind : uint8_t { kWhole, kCut, kPartialSum, kPartialMax };
  Kind kind = kWhole;
  int dim = -1;        // kCut
  DimSharding layout;  // kCut: with this axis alone, canonical
  bool operator==(const Placement&) const = default;
  bool partial() const { return kind == kPartialSum || kind == kPartialMax; }
};

Placement PlacementOf(const TensorType& type, int axis, const Mesh& mesh);

// Bytes that a rank sends, on a ring, to change the placement over one axis of `parts` ranks of a
// tensor of which each group holds `bytes`. Infinite where nothing does it (whole to partial).
double ReshardBytes(const Placement& from, const Placement& to, int64_t parts, double bytes);

// The sum over all axes, each for itself.
double ReshardBytes(const TensorType& from, const Sharding& to, const Mesh& mesh);

}  // namespace shardc
