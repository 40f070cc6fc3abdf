// The row-major order of a tensor's elements.
#pragma once

#include <optional>

#include "ir/sharding.h"

namespace shardc {

// For each dim the elements from one index to the next.
Shape DenseStrides(const Shape& shape);
// The elements of dims [begin, end).
int64_t Product(const Shape& shape, size_t begin, size_t end);
// The shape that both broadcast (numpy) to, or nothing.
std::optional<Shape> Broadcast(const Shape& a, const Shape& b);
// To read a tensor of shape `from` as if broadcast (numpy) to `to`: 0 where it stretches.
Shape BroadcastStrides(const Shape& from, const Shape& to);
// The indices of an element.
Shape PlaceOf(int64_t element, const Shape& shape);

}  // namespace shardc
