#include "ir/dropout.h"

#include <cmath>

namespace shardc {

Shape WholeOf(const Attributes& attrs, const Shape& part) { return attrs.IntList("whole", part); }

DropoutMask MaskOf(const Attributes& attrs) {
  const double ratio = attrs.Float("ratio", 0);
  DropoutMask mask;
  mask.seed = static_cast<uint64_t>(attrs.Int("seed", 0));
  mask.stream = static_cast<uint32_t>(attrs.Int("stream", 0));
  mask.threshold = static_cast<uint64_t>(std::llround(std::ldexp(ratio, 32)));
  mask.scale = ratio < 1 ? 1 / (1 - ratio) : 0;
  return mask;
}

std::vector<std::vector<int64_t>> PlacesOfDims(const Attributes& attrs, const Shape& local,
                                               const Shape& global,
                                               const std::vector<std::vector<Run>>& runs) {
  const Shape whole = WholeOf(attrs, global);
  const Shape origin = attrs.IntList("origin", Shape(local.size()));
  std::vector<std::vector<int64_t>> places(local.size());
  int64_t stride = 1;
  for (size_t d = local.size(); d-- > 0; stride *= whole[d]) {
    places[d].assign(static_cast<size_t>(local[d]), -1);
    for (const Run& run : runs[d]) {
      for (int64_t j = 0; j < run.size; ++j) {
        places[d][run.local + j] = (origin[d] + run.global + j) * stride;
      }
    }
  }
  return places;
}

DropoutPlaces PlacesOf(const KernelCall& call) {
  const TensorView& x = call.in[0];
  const auto rank = static_cast<size_t>(x.rank());
  DropoutPlaces places;
  places.rows = {0};
  if (rank == 0) {
    places.columns = {{0, 0, 1}};
    return places;
  }
  std::vector<std::vector<Run>> runs;
  for (size_t d = 0; d < rank; ++d) runs.push_back(call.Runs(x, static_cast<int>(d)));
  const auto dims = PlacesOfDims(*call.attrs, x.shape, x.type ? x.type->shape : x.shape, runs);
  for (size_t d = 0; d + 1 < rank; ++d) {
    std::vector<int64_t> rows;
    rows.reserve(places.rows.size() * dims[d].size());
    for (int64_t row : places.rows) {
      for (int64_t at : dims[d]) rows.push_back(row < 0 || at < 0 ? -1 : row + at);
    }
    places.rows = std::move(rows);
  }
  places.columns = std::move(runs.back());
  if (call.attrs->Has("origin")) {
    for (Run& run : places.columns) run.global += call.attrs->IntList("origin").back();
  }
  return places;
}

}  // namespace shardc
