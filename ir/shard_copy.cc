#include "ir/shard_copy.h"

#include <cstring>

namespace shardc {

std::vector<ShardBox> ShardBoxes(const TensorType& type, const Mesh& mesh, int64_t rank) {
  std::vector<ShardBox> boxes = {{}};
  for (int d = 0; d < type.rank(); ++d) {
    std::vector<Run> runs = LocalRuns(type.shape[d], type.sharding.dims[d], mesh, rank);
    std::vector<ShardBox> next;
    for (const ShardBox& box : boxes) {
      for (const Run& run : runs) {
        ShardBox b = box;
        b.global.push_back(run.global);
        b.local.push_back(run.local);
        b.size.push_back(run.size);
        next.push_back(std::move(b));
      }
    }
    boxes = std::move(next);
  }
  return boxes;
}

void CopyBox(const std::byte* from, const Shape& from_shape, const Shape& from_offset,
             std::byte* to, const Shape& to_shape, const Shape& to_offset, const Shape& size,
             int64_t element_bytes) {
  // Trailing dims that are whole on both sides are one contiguous run.
  size_t rank = size.size(), inner = rank;
  int64_t run = element_bytes;
  while (inner > 0) {
    --inner;
    run *= size[inner];
    if (size[inner] != from_shape[inner] || size[inner] != to_shape[inner]) break;
  }
  if (run == 0) return;
  auto strides = [&](const Shape& shape) {
    std::vector<int64_t> s(rank);
    int64_t n = element_bytes;
    for (size_t i = rank; i-- > 0;) {
      s[i] = n;
      n *= shape[i];
    }
    return s;
  };
  std::vector<int64_t> fs = strides(from_shape), ts = strides(to_shape);
  for (size_t i = 0; i < rank; ++i) {
    from += from_offset[i] * fs[i];
    to += to_offset[i] * ts[i];
    if (size[i] == 0) return;
  }
  std::vector<int64_t> index(inner, 0);
  for (;;) {
    std::memcpy(to, from, static_cast<size_t>(run));
    size_t d = inner;
    for (;;) {
      if (d == 0) return;
      --d;
      from += fs[d];
      to += ts[d];
      if (++index[d] < size[d]) break;
      from -= fs[d] * size[d];
      to -= ts[d] * size[d];
      index[d] = 0;
    }
  }
}

void GlobalToLocal(const std::byte* global, const TensorType& type, const Mesh& mesh, int64_t rank,
                   std::byte* local) {
  Shape local_shape = LocalShape(type, mesh);
  int64_t element = DTypeSize(type.dtype);
  int64_t bytes = NumElements(local_shape) * element;
  if (bytes > 0 && HasPadding(type, mesh)) std::memset(local, 0, static_cast<size_t>(bytes));
  for (const ShardBox& b : ShardBoxes(type, mesh, rank)) {
    CopyBox(global, type.shape, b.global, local, local_shape, b.local, b.size, element);
  }
}

void LocalToGlobal(const std::byte* local, const TensorType& type, const Mesh& mesh, int64_t rank,
                   std::byte* global) {
  Shape local_shape = LocalShape(type, mesh);
  for (const ShardBox& b : ShardBoxes(type, mesh, rank)) {
    CopyBox(local, local_shape, b.local, global, type.shape, b.global, b.size,
            DTypeSize(type.dtype));
  }
}

}  // namespace shardc
