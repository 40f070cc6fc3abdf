#include "ir/row_major.h"

#include <algorithm>

#include "ir/diagnostic.h"

namespace shardc {

Shape DenseStrides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t n = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = n;
    n *= shape[d];
  }
  return strides;
}

int64_t Product(const Shape& shape, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= shape[i];
  return n;
}

std::optional<Shape> Broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

Shape BroadcastStrides(const Shape& from, const Shape& to) {
  SHARDC_CHECK(from.size() <= to.size());
  Shape own = DenseStrides(from), strides(to.size());
  size_t shift = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d) {
    SHARDC_CHECK(from[d] == to[d + shift] || from[d] == 1, ShapeToString(from), " to ",
                 ShapeToString(to));
    if (from[d] == to[d + shift]) strides[d + shift] = own[d];
  }
  return strides;
}

Shape PlaceOf(int64_t element, const Shape& shape) {
  Shape place(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    place[d] = element % shape[d];
    element /= shape[d];
  }
  return place;
}

}  // namespace shardc
