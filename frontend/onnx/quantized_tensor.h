// A tensor of floats that a file holds as small numbers with scales.
#pragma once

#include <optional>
#include <vector>

#include "frontend/onnx/stored_elements.h"
#include "ir/graph.h"

namespace shardc::onnx_import {

// For each dim and each index of it what that adds to a position among stored elements.
using PositionsByDim = std::vector<Ints>;

// As many positions for dim d as it has indices: (index / group[d]) * stride[d].
PositionsByDim Strided(const Shape& shape, const Ints& group, const Ints& stride);
// Row-major positions in a tensor of this shape.
PositionsByDim RowMajor(const Shape& shape);

// Element x is (code - zero) * scale, computed in f64 and rounded to the dtype. Read in pieces, so
// that a large one is never there as a whole.
class QuantizedTensor : public TensorSource {
 public:
  struct Part {
    StoredElements elements;
    PositionsByDim at;
  };

  // Of one dim or more; positions lie within the parts' elements. Without zeros, each is `zero`.
  QuantizedTensor(TensorType type, Part codes, Part scales, std::optional<Part> zeros, double zero);

  const TensorType& type() const { return type_; }
  // Whether the other is made of the same parts in the same way, or `swapped`: with its dims in the
  // other order.
  bool IsSame(const QuantizedTensor& other, bool swapped) const;
  void Read(const Shape& offset, const Shape& size, void* out) const override;

 private:
  // `count` elements from this index on, along the last dim.
  template <typename T>
  void ReadRow(const Shape& index, int64_t count, T* out) const;

  TensorType type_;
  Part codes_, scales_;
  std::optional<Part> zeros_;
  double zero_;
};

}  // namespace shardc::onnx_import
