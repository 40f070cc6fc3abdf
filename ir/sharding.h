// How a tensor is cut over the mesh, and what of it a rank holds.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/mesh.h"

namespace shardc {

using Shape = std::vector<int64_t>;

int64_t NumElements(const Shape& shape);
std::string ShapeToString(const Shape& shape);  // "[2, 32, 64]"

// A short ordered list of mesh axes (indices into Mesh::axes()).
class AxisList {
 public:
  static constexpr int kMax = 7;
  AxisList() = default;
  AxisList(std::initializer_list<int> axes) {
    for (int a : axes) push_back(a);
  }
  void push_back(int axis);
  void erase(int axis);  // no-op when absent
  bool contains(int axis) const;
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int operator[](int i) const { return axes_[i]; }
  int back() const { return axes_[size_ - 1]; }
  const uint8_t* begin() const { return axes_.data(); }
  const uint8_t* end() const { return axes_.data() + size_; }
  std::vector<int> ToVector() const { return {begin(), end()}; }
  bool operator==(const AxisList&) const = default;

 private:
  std::array<uint8_t, kMax> axes_{};
  uint8_t size_ = 0;
};

// One dim. Cut means: the dim is a concatenation of `segments` (one when empty); every segment is a
// row of blocks of `granule` elements, the last one maybe shorter; the blocks of each segment are
// dealt out in order over the first axis, as evenly as possible (its first ranks get one more),
// what each then has over the second, and so on: so the cut over the first axes alone is the same
// with or without the others. A rank holds its piece of the first segment, then of the second, ...;
// where pieces differ in size all hold the largest, padded at the end of each segment's piece.
struct DimSharding {
  AxisList axes;  // major to minor; empty: whole on every rank
  int64_t granule = 1;
  std::vector<int64_t> segments;

  bool cut() const { return !axes.empty(); }
  bool operator==(const DimSharding&) const = default;
};

struct Sharding {
  std::vector<DimSharding> dims;  // one per dim of the tensor
  AxisList partial_sum;           // the value is the sum over these axes of what the ranks hold
  AxisList partial_max;           // ... the maximum

  Sharding() = default;
  explicit Sharding(size_t rank) : dims(rank) {}
  bool partial() const { return !partial_sum.empty() || !partial_max.empty(); }
  bool replicated() const;    // nothing cut, nothing partial
  bool Uses(int axis) const;  // cut or partial over it
  bool operator==(const Sharding&) const = default;
};

// A tensor: global shape, and how it is distributed.
struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  Sharding sharding;

  TensorType() = default;
  TensorType(DType d, Shape s) : dtype(d), shape(std::move(s)), sharding(shape.size()) {}
  TensorType(DType d, Shape s, Sharding sh)
      : dtype(d), shape(std::move(s)), sharding(std::move(sh)) {}

  int rank() const { return static_cast<int>(shape.size()); }
  int64_t num_elements() const { return NumElements(shape); }
  int64_t bytes() const { return num_elements() * DTypeSize(dtype); }
  // Equal dtype and global shape, whatever the sharding.
  bool SameTensor(const TensorType& o) const { return dtype == o.dtype && shape == o.shape; }
  bool operator==(const TensorType&) const = default;
};

// A stretch of a dim that a rank holds: `size` elements from `global` on, stored from `local` on.
struct Run {
  int64_t global = 0, local = 0, size = 0;
  bool operator==(const Run&) const = default;
};

int64_t NumParts(const DimSharding& dim, const Mesh& mesh);
int64_t NumParts(const AxisList& axes, const Mesh& mesh);
// Physical (padded) size of the dim on every rank.
int64_t LocalDim(int64_t size, const DimSharding& dim, const Mesh& mesh);
Shape LocalShape(const TensorType& type, const Mesh& mesh);
int64_t LocalBytes(const TensorType& type, const Mesh& mesh);
// What a rank holds of the dim, in local order; empty runs are left out.
std::vector<Run> LocalRuns(int64_t size, const DimSharding& dim, const Mesh& mesh, int64_t rank);
// Whether some rank holds padding along the dim.
bool HasPadding(int64_t size, const DimSharding& dim, const Mesh& mesh);
bool HasPadding(const TensorType& type, const Mesh& mesh);

// The simplest description of the same layout: no granule where the even cut falls on it anyway, no
// list of one segment, no axes of size 1. Shardings are compared in this form.
DimSharding Canonical(int64_t size, DimSharding dim, const Mesh& mesh);
// The cut over the first `count` axes alone, canonical.
DimSharding FirstAxes(int64_t size, const DimSharding& dim, int count, const Mesh& mesh);
Sharding Canonical(const TensorType& type, const Mesh& mesh);

// Throws Diagnostic E2002 if the sharding does not fit the shape or the mesh: an axis used twice,
// segments that do not add up, or a granule that is larger than one.
void CheckSharding(const TensorType& type, const Mesh& mesh, const std::string& where);

// "f32[8@dp, 2304@tp/3] partial(tp)"
std::string TypeToString(const TensorType& type, const Mesh& mesh);
std::string ShardingToString(const TensorType& type, const Mesh& mesh);  // "[8@dp, 2304@tp/3]..."

}  // namespace shardc
