#include "ir/sharding.h"

#include <algorithm>
#include <limits>

#include "ir/diagnostic.h"
#include "ir/shape_limit.h"

namespace shardc {

int64_t NumElements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) {
    SHARDC_CHECK(!__builtin_mul_overflow(n, d, &n), "shape ", ShapeToString(shape), " overflows");
  }
  return n;
}

bool TooLarge(DType dtype, const Shape& shape) {
  int64_t bytes = DTypeSize(dtype);
  return std::any_of(shape.begin(), shape.end(), [&](int64_t d) {
    return __builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes) ||
           bytes > kMaxTensorBytes;
  });
}

std::string ShapeToString(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

void AxisList::push_back(int axis) {
  SHARDC_CHECK(size_ < kMax, "more than 7 axes on one dim");
  axes_[size_++] = static_cast<uint8_t>(axis);
}

void AxisList::erase(int axis) {
  auto* end = std::remove(axes_.data(), axes_.data() + size_, static_cast<uint8_t>(axis));
  size_ = static_cast<uint8_t>(end - axes_.data());
  std::fill(end, axes_.data() + kMax, uint8_t{0});
}

bool AxisList::contains(int axis) const { return std::find(begin(), end(), axis) != end(); }

bool Sharding::Uses(int axis) const {
  return partial_sum.contains(axis) || partial_max.contains(axis) ||
         std::any_of(dims.begin(), dims.end(),
                     [&](const DimSharding& d) { return d.axes.contains(axis); });
}

bool Sharding::replicated() const {
  return !partial() && std::none_of(dims.begin(), dims.end(), [](auto& d) { return d.cut(); });
}

int64_t NumParts(const AxisList& axes, const Mesh& mesh) {
  int64_t parts = 1;
  for (int a : axes) parts *= mesh.axis_size(a);
  return parts;
}

int64_t NumParts(const DimSharding& dim, const Mesh& mesh) { return NumParts(dim.axes, mesh); }

namespace {
int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Calls fn(segment size, physical size of a part's piece) for each segment.
template <typename Fn>
void ForEachSegment(int64_t size, const DimSharding& dim, int64_t parts, Fn fn) {
  auto one = [&](int64_t n) { fn(n, CeilDiv(CeilDiv(n, dim.granule), parts) * dim.granule); };
  if (dim.segments.empty()) return one(size);
  for (int64_t n : dim.segments) one(n);
}
}  // namespace

int64_t LocalDim(int64_t size, const DimSharding& dim, const Mesh& mesh) {
  if (!dim.cut()) return size;
  int64_t local = 0;
  ForEachSegment(size, dim, NumParts(dim, mesh), [&](int64_t, int64_t piece) { local += piece; });
  return local;
}

Shape LocalShape(const TensorType& type, const Mesh& mesh) {
  Shape local = type.shape;
  for (size_t i = 0; i < local.size(); ++i) {
    local[i] = LocalDim(local[i], type.sharding.dims[i], mesh);
  }
  return local;
}

int64_t LocalBytes(const TensorType& type, const Mesh& mesh) {
  int64_t bytes = DTypeSize(type.dtype);
  for (size_t i = 0; i < type.shape.size(); ++i) {
    const int64_t local = LocalDim(type.shape[i], type.sharding.dims[i], mesh);
    SHARDC_CHECK(!__builtin_mul_overflow(bytes, local, &bytes), ShapeToString(type.shape));
  }
  return bytes;
}

std::vector<Run> LocalRuns(int64_t size, const DimSharding& dim, const Mesh& mesh, int64_t rank) {
  if (!dim.cut()) return {{0, 0, size}};
  std::vector<Run> runs;
  int64_t segment_start = 0, local = 0;
  ForEachSegment(size, dim, NumParts(dim, mesh), [&](int64_t n, int64_t piece) {
    int64_t first = 0, count = CeilDiv(n, dim.granule);  // in blocks
    for (int axis : dim.axes) {
      int64_t parts = mesh.axis_size(axis), part = mesh.Coordinate(rank, axis);
      int64_t low = count / parts, more = count % parts;
      first += part * low + std::min(part, more);
      count = low + (part < more);
    }
    if (count > 0) {
      const int64_t begin = first * dim.granule;
      runs.push_back({segment_start + begin, local, std::min(count * dim.granule, n - begin)});
    }
    segment_start += n;
    local += piece;
  });
  return runs;
}

bool HasPadding(int64_t size, const DimSharding& dim, const Mesh& mesh) {
  return dim.cut() && LocalDim(size, dim, mesh) * NumParts(dim, mesh) != size;
}

bool HasPadding(const TensorType& type, const Mesh& mesh) {
  for (int i = 0; i < type.rank(); ++i) {
    if (HasPadding(type.shape[i], type.sharding.dims[i], mesh)) return true;
  }
  return false;
}

DimSharding Canonical(int64_t size, DimSharding dim, const Mesh& mesh) {
  AxisList axes;
  for (int a : dim.axes) {
    if (mesh.axis_size(a) > 1) axes.push_back(a);
  }
  dim.axes = axes;
  if (!dim.cut()) return DimSharding();
  if (dim.segments.size() == 1) dim.segments.clear();
  int64_t parts = NumParts(dim, mesh);
  bool even = true;
  ForEachSegment(size, dim, parts, [&](int64_t n, int64_t) {
    even &= n % dim.granule == 0 && n / dim.granule % parts == 0;
  });
  if (even) dim.granule = 1;
  return dim;
}

DimSharding FirstAxes(int64_t size, const DimSharding& dim, int count, const Mesh& mesh) {
  DimSharding first{{}, dim.granule, dim.segments};
  for (int i = 0; i < count; ++i) first.axes.push_back(dim.axes[i]);
  return Canonical(size, std::move(first), mesh);
}

Sharding Canonical(const TensorType& type, const Mesh& mesh) {
  Sharding out = type.sharding;
  for (int i = 0; i < type.rank(); ++i) out.dims[i] = Canonical(type.shape[i], out.dims[i], mesh);
  for (AxisList* list : {&out.partial_sum, &out.partial_max}) {
    std::vector<int> axes;
    for (int a : *list) {
      if (mesh.axis_size(a) > 1) axes.push_back(a);
    }
    std::sort(axes.begin(), axes.end());
    *list = AxisList();
    for (int a : axes) list->push_back(a);
  }
  return out;
}

void CheckSharding(const TensorType& type, const Mesh& mesh, const std::string& where) {
  auto fail = [&](std::string what, std::string fix = {}) {
    throw Diagnostic("E2002", ExitCode::kBadSpec, where, std::move(what), std::move(fix));
  };
  std::vector<bool> used(mesh.num_axes());
  auto use = [&](int axis) {
    SHARDC_CHECK(axis < mesh.num_axes());
    if (used[axis]) {
      fail(StrCat("axis '", mesh.axes()[axis].name, "' cuts the tensor twice"),
           "each axis may cut one dim of a tensor, or be partial");
    }
    used[axis] = true;
  };
  SHARDC_CHECK(type.sharding.dims.size() == type.shape.size(), where);
  for (int i = 0; i < type.rank(); ++i) {
    const DimSharding& d = type.sharding.dims[i];
    for (int a : d.axes) use(a);
    if (!d.cut()) continue;
    int64_t sum = 0, least = d.segments.empty() ? type.shape[i] : d.segments[0];
    for (int64_t n : d.segments) {
      if (__builtin_add_overflow(sum, n, &sum)) sum = std::numeric_limits<int64_t>::max();
      least = std::min(least, n);
    }
    if (!d.segments.empty() && sum != type.shape[i]) {
      fail(StrCat("the segments of dim ", i, " add up to ", sum, ", not ", type.shape[i]),
           "give sizes that add up to the dim, or leave segments out");
    }
    if (!d.segments.empty() && least < 1) {
      fail(StrCat("a segment of dim ", i, " is empty"), "leave it out");
    }
    if (d.granule < 1 || (d.granule > 1 && d.granule > least)) {
      fail(StrCat("granule ", d.granule, " does not fit into dim ", i));
    }
  }
  for (int a : type.sharding.partial_sum) use(a);
  for (int a : type.sharding.partial_max) use(a);
}

std::string ShardingToString(const TensorType& type, const Mesh& mesh) {
  std::string out = "[";
  for (int i = 0; i < type.rank(); ++i) {
    if (i) out += ", ";
    out += std::to_string(type.shape[i]);
    const DimSharding& d = type.sharding.dims[i];
    if (!d.cut()) continue;
    std::string axes = Join(mesh.Names(d.axes), ",");
    out += "@" + (d.axes.size() > 1 ? "(" + axes + ")" : axes);
    if (!d.segments.empty()) {
      bool equal = std::all_of(d.segments.begin(), d.segments.end(),
                               [&](int64_t n) { return n == d.segments[0]; });
      out += "/";
      if (equal) {
        out += std::to_string(d.segments.size());
      } else {
        out += "[";
        for (size_t s = 0; s < d.segments.size(); ++s) {
          out += (s ? "," : "") + std::to_string(d.segments[s]);
        }
        out += "]";
      }
    }
    if (d.granule != 1) out += "%" + std::to_string(d.granule);
  }
  out += "]";
  if (!type.sharding.partial_sum.empty()) {
    out += " partial(" + Join(mesh.Names(type.sharding.partial_sum), ",") + ")";
  }
  if (!type.sharding.partial_max.empty()) {
    out += " partial_max(" + Join(mesh.Names(type.sharding.partial_max), ",") + ")";
  }
  return out;
}

std::string TypeToString(const TensorType& type, const Mesh& mesh) {
  return std::string(DTypeName(type.dtype)) + ShardingToString(type, mesh);
}

}  // namespace shardc
