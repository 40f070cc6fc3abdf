#include "passes/why_not_cut.h"

#include "ir/diagnostic.h"
#include "passes/carried_layout.h"
#include "passes/split_axes.h"

namespace shardc {

std::string WhyNotCut(const Value* value, int dim, int axis, const Mesh& mesh) {
  const DimSharding& now = value->type.sharding.dims[dim];
  AxisList axes = now.axes;
  axes.push_back(axis);
  const int64_t parts = NumParts(axes, mesh), size = value->type.shape[dim];
  std::string why = StrCat(": ", Join(mesh.Names(axes), " and "),
                           axes.size() == 1 ? " makes " : " make ", parts, " parts, and ");
  if (const int64_t heads = SharedHeads(value, dim, parts)) {
    why += StrCat("there ", heads == 1 ? "is " : "are ", heads, heads == 1 ? " head" : " heads",
                  " that others share");
  } else if (now.granule != 1) {
    why += StrCat("it is cut between blocks of ", now.granule, " (heads, say), of which it has ",
                  size / now.granule);
  } else {
    why += size < parts ? StrCat("it has ", size, " elements") : "what reads it does not take them";
  }
  std::vector<MeshAxis> sizes = mesh.axes();
  while (--sizes[axis].size > 1) {
    if (!CarriedLayout(value, dim, axes, Mesh(sizes))) continue;
    return StrCat(why, "; ", sizes[axis].name, "=", sizes[axis].size, " would do");
  }
  return why;
}

}  // namespace shardc
