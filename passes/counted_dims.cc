#include "passes/counted_dims.h"

#include <algorithm>

#include "ir/contains.h"
#include "passes/carried_layout.h"
#include "passes/split_axes.h"

namespace shardc {

CountedDims EachDim(const TensorType& type) {
  CountedDims dims(type.shape.size());
  for (size_t d = 0; d < dims.size(); ++d) dims[d].dims = {static_cast<int64_t>(d)};
  return dims;
}

CountedDims DimsByRole(const Op& param) {
  if (!param.attrs.Has("columns")) return EachDim(param.out());
  const Ints stacked = param.attrs.IntList("stacked", {});
  Ints rows = param.attrs.IntList("rows", {}), columns = param.attrs.IntList("columns");
  CountedDims dims;
  if (!stacked.empty()) dims.push_back({{stacked[0]}, CountedDim::Of::kStack});
  for (const CountedDim& d : EachDim(param.out())) {
    const bool other = !Contains(rows, d.dims[0]) && !Contains(columns, d.dims[0]);
    if (other && param.out().shape[d.dims[0]] != 1) dims.push_back(d);
  }
  const auto add = [&](Ints of) {
    const bool each = !stacked.empty() && Contains(of, stacked[0]);
    dims.push_back({std::move(of), each ? CountedDim::Of::kEach : CountedDim::Of::kAll});
  };
  if (!rows.empty()) add(std::move(rows));
  add(std::move(columns));
  return dims;
}

DimSharding LayoutOf(const Op& param, const CountedDim& counted) {
  DimSharding layout;
  if (counted.of == CountedDim::Of::kAll) return layout;
  const Ints& stacked = param.attrs.IntList("stacked");
  const int64_t each = param.out().shape[stacked[0]] / stacked[1];
  if (counted.of == CountedDim::Of::kStack) {
    layout.granule = each;
  } else {
    layout.segments.assign(stacked[1], each);
  }
  return layout;
}

bool IsShared(const Value* value, int64_t dim, int64_t parts) {
  // What shares it is one dim among others, too, and stays whole where it is too short.
  return NarrowParts(value, static_cast<int>(dim), parts, parts) < parts;
}

bool IsShort(const Value* value, const Ints& dims, int64_t parts) {
  int64_t joined = 1;
  for (int64_t d : dims) joined *= value->type.shape[d];
  return joined < parts && !(dims.size() == 1 && IsShared(value, dims[0], parts));
}

bool IsTooFine(const Value* value, const Ints& dims, int64_t parts) {
  return !IsShort(value, dims, parts) && std::ranges::none_of(dims, [&](int64_t d) {
    return value->type.shape[d] >= parts || IsShared(value, d, parts);
  });
}

int64_t DimToCutOf(const Value* value, const Ints& dims, int64_t parts) {
  if (dims.size() == 1) return dims.front();
  for (int64_t d : dims) {
    if (IsShared(value, d, parts)) return d;
  }
  auto enough = [&](int64_t d) { return value->type.shape[d] >= parts; };
  if (auto d = DimToCut(value, dims, parts); d && enough(*d)) return *d;
  auto carried = [&](int64_t d) {
    return enough(d) && CutIsCarried(value, static_cast<int>(d), parts);
  };
  auto best = std::ranges::find_if(dims, carried);
  if (best == dims.end()) best = std::ranges::find_if(dims, enough);
  return best == dims.end() ? dims.front() : *best;
}

}  // namespace shardc
