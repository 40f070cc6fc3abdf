#include "ir/convert.h"

#include <algorithm>

namespace shardc {

HostTensor Converted(const HostTensor& t, DType to) {
  HostTensor out(to, t.shape());
  for (int64_t i = 0; i < t.num_elements(); ++i) out.SetDouble(i, t.AsDouble(i));
  return out;
}

HostTensor Transposed(const HostTensor& matrix) {
  SHARDC_CHECK(matrix.shape().size() == 2);
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  const int64_t size = DTypeSize(matrix.dtype());
  HostTensor out(matrix.dtype(), {columns, rows});
  // By tiles whose rows are a few lines of a cache on both sides.
  constexpr int64_t kTile = 32;
  for (int64_t r = 0; r < rows; r += kTile) {
    for (int64_t c = 0; c < columns; c += kTile) {
      for (int64_t i = r; i < std::min(r + kTile, rows); ++i) {
        for (int64_t j = c; j < std::min(c + kTile, columns); ++j) {
          std::copy_n(matrix.raw() + (i * columns + j) * size, size,
                      out.raw() + (j * rows + i) * size);
        }
      }
    }
  }
  return out;
}

}  // namespace shardc
