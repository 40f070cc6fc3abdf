#include "frontend/onnx/table_kind.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "frontend/onnx/read_pieces.h"

namespace shardc::onnx_import {
namespace {

class MaskTest {
 public:
  bool Takes(double v) {
    (v == 0 ? zero_ : v == 1 ? one_ : large_) = true;
    if (v == 0 || v == 1) return true;
    if (!(std::abs(v) >= 1e4) || (has_value_ && v != value_)) return false;
    has_value_ = true;
    value_ = v;
    return true;
  }
  TableKind Result() const {
    if (large_ ? !one_ : zero_ && one_) return TableKind::kMask;
    return zero_ ? TableKind::kZeros : one_ ? TableKind::kOnes : TableKind::kOther;
  }

 private:
  bool zero_ = false, one_ = false, large_ = false, has_value_ = false;
  double value_ = 0;
};

// Rows of numbers that are not masked, of which one at least has enough of them to tell.
class DistanceTest {
 public:
  // Four roundings of the largest element.
  explicit DistanceTest(DType type)
      : tolerance_(type == DType::kBF16  ? 0x1p-6
                   : type == DType::kF16 ? 0x1p-9
                                         : 1e-5) {}

  bool TakesRow(const HostTensor& t, int64_t begin, int64_t n) {
    std::vector<double> row;
    for (int64_t i = begin; i < begin + n; ++i) {
      const double v = t.AsDouble(i);
      if (v > -1e4 && std::isfinite(v)) row.push_back(v);
    }
    if (row.size() < 4) return true;
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    const double largest = std::max(std::abs(*low), std::abs(*high));
    // A query has a key at no distance, or next to it; what is much the same everywhere is none.
    if (*high - *low < largest / 2) return false;
    grows_ |= *high > *low;
    int bends = 0;
    for (size_t i = 1; i + 1 < row.size(); ++i) {
      bends += std::abs(row[i + 1] - 2 * row[i] + row[i - 1]) > tolerance_ * largest;
    }
    return bends <= 1;
  }
  bool Result() const { return grows_; }

 private:
  double tolerance_;
  bool grows_ = false;
};

// Of each frequency a row has the sine and the cosine, whose squares add to 1; what stands for no
// position is zero.
class SinesTest {
 public:
  bool Takes(const HostTensor& rows) {
    const int64_t width = rows.shape().back();
    const double half = static_cast<double>(width) / 2;
    const double tolerance = DTypeSize(rows.dtype()) < 4 ? 1e-2 : 1e-4;
    for (int64_t i = 0; i < rows.num_elements(); i += width) {
      double squares = 0;
      for (int64_t k = i; k < i + width; ++k) {
        const double x = rows.AsDouble(k);
        if (!(std::abs(x) <= 1 + tolerance)) return false;
        squares += x * x;
      }
      if (squares == 0) {
        if (++zeros_ > 1) return false;
      } else if (std::abs(squares - half) > tolerance * half) {
        return false;
      } else {
        ++positions_;
      }
    }
    return true;
  }
  bool Result() const { return positions_ > 2; }

 private:
  int64_t zeros_ = 0, positions_ = 0;
};

// In any order, as powers of 2^(-4 / m): 2, 4, ... 2 m, and for the heads beyond m 1, 3, ...
bool AreSlopes(const HostTensor& t) {
  const int64_t n = t.num_elements();
  const auto m = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
  std::set<int64_t> powers, expected;
  for (int64_t i = 0; i < n; ++i) {
    const double x = t.AsDouble(i), power = -std::log2(x) * static_cast<double>(m) / 4;
    // Of halves the logarithm is less exact.
    if (!(x > 0 && x < 1) || std::abs(power - std::round(power)) > 0.02) return false;
    powers.insert(std::llround(power));
    expected.insert(i < m ? 2 * (i + 1) : 2 * (i - m) + 1);
  }
  return n >= 2 && powers == expected;
}

}  // namespace

TableKind KindOfTable(const TensorType& type, const TensorSource& source) {
  MaskTest test;
  DistanceTest distances(type.dtype);
  bool may_mask = true, may_distance = type.rank() >= 2 && type.num_elements() > 1;
  const bool known = HoldsOfPieces(type.shape, [&](const Shape& offset, const Shape& size) {
    const HostTensor piece = ReadPiece(source, type.dtype, offset, size);
    for (int64_t i = 0; may_mask && i < piece.num_elements(); ++i) {
      may_mask = test.Takes(piece.AsDouble(i));
    }
    for (int64_t i = 0; may_distance && i < piece.num_elements(); i += type.shape.back()) {
      may_distance = distances.TakesRow(piece, i, type.shape.back());
    }
    return may_mask || may_distance;
  });
  if (may_mask) return test.Result();
  constexpr int64_t kMaxHeads = 1024;
  const bool vector = std::ranges::count_if(type.shape, [](int64_t dim) { return dim != 1; }) == 1;
  if (vector && type.num_elements() <= kMaxHeads &&
      AreSlopes(ReadPiece(source, type.dtype, Shape(type.rank(), 0), type.shape)))
    return TableKind::kSlopes;
  return known && distances.Result() ? TableKind::kDistances : TableKind::kOther;
}

bool HoldsSines(const TensorType& type, const TensorSource& source) {
  const int64_t rank = type.rank(), width = rank < 2 ? 0 : type.shape[rank - 1];
  if (width < 4 || width % 2 != 0 || type.shape[rank - 2] * width != type.num_elements())
    return false;
  SinesTest test;
  return HoldsOfPieces(type.shape,
                       [&](const Shape& offset, const Shape& size) {
                         return test.Takes(ReadPiece(source, type.dtype, offset, size));
                       }) &&
         test.Result();
}

}  // namespace shardc::onnx_import
