#include "ir/place_in_whole.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/row_major.h"

namespace shardc {

Shape OriginOf(const Attributes& attrs, int rank) {
  return attrs.IntList("origin", Shape(static_cast<size_t>(rank)));
}

Shape PlaceInWhole(const KernelCall& call, const TensorView& view, int64_t element) {
  Shape place = PlaceOf(element, view.shape);
  const Shape origin = OriginOf(*call.attrs, view.rank());
  for (int d = 0; d < view.rank(); ++d) {
    int64_t& at = place[d];
    const std::vector<Run> runs = call.Runs(view, d);
    auto run = std::ranges::find_if(
        runs, [&](const Run& r) { return r.local <= at && at < r.local + r.size; });
    SHARDC_CHECK(run != runs.end(), "element ", element, " is padding");
    at += run->global - run->local + origin[d];
  }
  return place;
}

}  // namespace shardc
