// Moves between a global tensor and a rank's shard of it.
#pragma once

#include <cstddef>
#include <functional>

#include "ir/mesh.h"
#include "ir/sharding.h"

namespace shardc {

// A box that the rank holds: at `global` in the tensor and at `local` in the shard, `size` in every
// dim.
struct ShardBox {
  Shape global, local, size;
};

// All boxes of the rank, in row-major order of the runs. A scalar has one box of no dims.
std::vector<ShardBox> ShardBoxes(const TensorType& type, const Mesh& mesh, int64_t rank);

// Copies a box between two row-major tensors of the given shapes.
void CopyBox(const std::byte* from, const Shape& from_shape, const Shape& from_offset,
             std::byte* to, const Shape& to_shape, const Shape& to_offset, const Shape& size,
             int64_t element_bytes);

// `global` is the whole tensor, `local` the shard of physical size LocalBytes(type, mesh): its
// padding is filled with zero.
void GlobalToLocal(const std::byte* global, const TensorType& type, const Mesh& mesh, int64_t rank,
                   std::byte* local);
// Writes what the rank holds to its place in `global`; the rest of `global` is left alone.
void LocalToGlobal(const std::byte* local, const TensorType& type, const Mesh& mesh, int64_t rank,
                   std::byte* global);

}  // namespace shardc
