// Tensors of a file, piece by piece: a large one is never there as a whole.
#pragma once

#include <algorithm>

#include "ir/graph.h"
#include "ir/host_tensor.h"

namespace shardc::onnx_import {

// Whether it holds of all pieces of a tensor, each some rows of its first dim: `holds` of their
// offset and size. Left after the first of which it does not.
template <typename Holds>
bool HoldsOfPieces(const Shape& shape, const Holds& holds) {
  const int64_t elements = NumElements(shape);
  Shape size = shape, offset(size.size(), 0);
  if (elements <= 1) return holds(offset, size);
  const int64_t rows = shape[0];
  size[0] = std::clamp<int64_t>((1 << 16) * rows / elements, 1, rows);
  for (; offset[0] < rows; offset[0] += size[0]) {
    size[0] = std::min(size[0], rows - offset[0]);
    if (!holds(offset, size)) return false;
  }
  return true;
}

inline HostTensor ReadPiece(const TensorSource& source, DType type, const Shape& offset,
                            const Shape& size) {
  HostTensor piece(type, size);
  source.Read(offset, size, piece.raw());
  return piece;
}

}  // namespace shardc::onnx_import
