#include "ir/dropout.h"

#include <cmath>

namespace shardc {

Shape WholeOf(const Attributes& attrs, const Shape& part) {
  return attrs.Has("whole") ? attrs.IntList("whole") : part;
}

DropoutMask MaskOf(const Attributes& attrs) {
  const double ratio = attrs.Float("ratio");
  DropoutMask mask;
  mask.seed = static_cast<uint64_t>(attrs.Int("seed", 0));
  mask.stream = static_cast<uint32_t>(attrs.Int("stream", 0));
  mask.threshold = static_cast<uint64_t>(std::llround(std::ldexp(ratio, 32)));
  mask.scale = ratio < 1 ? 1 / (1 - ratio) : 0;
  return mask;
}

DropoutPlaces PlacesOf(const KernelCall& call) {
  const TensorView& x = call.in[0];
  const auto rank = static_cast<size_t>(x.rank());
  const Shape global = x.type ? x.type->shape : x.shape;
  const Shape whole = WholeOf(*call.attrs, global);
  const Shape origin = call.attrs->Has("origin") ? call.attrs->IntList("origin") : Shape(rank);
  DropoutPlaces places;
  places.rows = {0};
  int64_t stride = rank > 0 ? whole.back() : 1;
  if (rank == 0) places.columns = {{0, 0, 1}};
  // From the innermost dim outwards: each puts its own index in front of those inside it.
  for (size_t d = rank; d-- > 0;) {
    std::vector<Run> runs = call.Runs(x, static_cast<int>(d));
    for (Run& run : runs) run.global += origin[d];
    if (d + 1 == rank) {
      places.columns = std::move(runs);
      continue;
    }
    const std::vector<int64_t> inner = std::move(places.rows);
    places.rows.assign(inner.size() * static_cast<size_t>(x.shape[d]), -1);
    for (const Run& run : runs) {
      for (int64_t j = 0; j < run.size; ++j) {
        const size_t at = static_cast<size_t>(run.local + j) * inner.size();
        for (size_t i = 0; i < inner.size(); ++i) {
          if (inner[i] >= 0) places.rows[at + i] = (run.global + j) * stride + inner[i];
        }
      }
    }
    stride *= whole[d];
  }
  return places;
}

}  // namespace shardc
