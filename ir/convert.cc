#include "ir/convert.h"

#include <algorithm>
#include <cstring>

namespace shardc {
namespace {

template <size_t kSize>
void TransposeTo(const std::byte* from, int64_t rows, int64_t columns, std::byte* to) {
  // By tiles whose rows are a few lines of a cache on both sides.
  constexpr int64_t kTile = 32;
  for (int64_t r = 0; r < rows; r += kTile) {
    for (int64_t c = 0; c < columns; c += kTile) {
      for (int64_t i = r; i < std::min(r + kTile, rows); ++i) {
        for (int64_t j = c; j < std::min(c + kTile, columns); ++j) {
          std::memcpy(to + (j * rows + i) * kSize, from + (i * columns + j) * kSize, kSize);
        }
      }
    }
  }
}

}  // namespace

HostTensor Converted(const HostTensor& t, DType to) {
  HostTensor out(to, t.shape());
  for (int64_t i = 0; i < t.num_elements(); ++i) out.SetDouble(i, t.AsDouble(i));
  return out;
}

HostTensor Transposed(const HostTensor& matrix) {
  SHARDC_CHECK(matrix.shape().size() == 2);
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  HostTensor out(matrix.dtype(), {columns, rows});
  switch (DTypeSize(matrix.dtype())) {
    case 1:
      TransposeTo<1>(matrix.raw(), rows, columns, out.raw());
      break;
    case 2:
      TransposeTo<2>(matrix.raw(), rows, columns, out.raw());
      break;
    case 4:
      TransposeTo<4>(matrix.raw(), rows, columns, out.raw());
      break;
    default:
      TransposeTo<8>(matrix.raw(), rows, columns, out.raw());
  }
  return out;
}

}  // namespace shardc
