#include "passes/reshard_cost.h"

#include <limits>

namespace shardc {

Placement PlacementOf(const TensorType& type, int axis, const Mesh& mesh) {
  const Sharding& s = type.sharding;
  for (size_t d = 0; d < s.dims.size(); ++d) {
    if (!s.dims[d].axes.contains(axis)) continue;
    DimSharding alone{{axis}, s.dims[d].granule, s.dims[d].segments};
    return {Placement::kCut, static_cast<int>(d), Canonical(type.shape[d], std::move(alone), mesh)};
  }
  if (s.partial_sum.contains(axis)) return {Placement::kPartialSum, -1, {}};
  if (s.partial_max.contains(axis)) return {Placement::kPartialMax, -1, {}};
  return {};
}

double ReshardBytes(const Placement& from, const Placement& to, int64_t parts, double bytes) {
  if (from == to) return 0;
  double travelling = bytes * static_cast<double>(parts - 1) / static_cast<double>(parts);
  if (to.partial()) return std::numeric_limits<double>::infinity();
  switch (from.kind) {
    case Placement::kWhole:
      return 0;  // a local slice
    case Placement::kPartialSum:
    case Placement::kPartialMax:
      return to.kind == Placement::kWhole ? 2 * travelling : travelling;
    case Placement::kCut:
      break;
  }
  // Another layout of the same dim goes through the whole value (but for those that LowerReshards
  // moves).
  if (to.kind == Placement::kCut && to.dim != from.dim) {
    return travelling / static_cast<double>(parts);
  }
  return travelling;
}

double ReshardBytes(const TensorType& from, const Sharding& to, const Mesh& mesh) {
  TensorType target(from.dtype, from.shape, to);
  double bytes = static_cast<double>(from.bytes()), total = 0;
  for (int a = 0; a < mesh.num_axes(); ++a) {
    if (mesh.axis_size(a) == 1) continue;
    total += ReshardBytes(PlacementOf(from, a, mesh), PlacementOf(target, a, mesh),
                          mesh.axis_size(a), bytes);
  }
  return total;
}

}  // namespace shardc
