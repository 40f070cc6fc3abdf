#include "frontend/onnx/quantized_tensor.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "ir/host_tensor.h"
#include "ir/row_major.h"

namespace shardc::onnx_import {
namespace {

int64_t Largest(const PositionsByDim& at) {
  int64_t largest = 0;
  for (const Ints& dim : at) {
    int64_t most = 0;
    for (const int64_t position : dim) most = std::max(most, position);
    largest += most;
  }
  return largest;
}

int64_t RowStart(const PositionsByDim& at, const Shape& index) {
  int64_t start = 0;
  for (size_t d = 0; d + 1 < index.size(); ++d) start += at[d][index[d]];
  return start;
}

void CheckPart(const QuantizedTensor::Part& part, const Shape& shape) {
  SHARDC_CHECK(part.at.size() == shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    SHARDC_CHECK(std::ssize(part.at[d]) == shape[d], "dim ", d);
  }
  SHARDC_CHECK(NumElements(shape) == 0 || Largest(part.at) < part.elements.size());
}

bool SamePart(const QuantizedTensor::Part& a, const QuantizedTensor::Part& b, bool swapped) {
  return a.elements.IsSame(b.elements) &&
         a.at == (swapped ? PositionsByDim(b.at.rbegin(), b.at.rend()) : b.at);
}

}  // namespace

PositionsByDim Strided(const Shape& shape, const Ints& group, const Ints& stride) {
  PositionsByDim at(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    for (int64_t i = 0; i < shape[d]; ++i) at[d].push_back(i / group[d] * stride[d]);
  }
  return at;
}

PositionsByDim RowMajor(const Shape& shape) {
  return Strided(shape, Ints(shape.size(), 1), DenseStrides(shape));
}

QuantizedTensor::QuantizedTensor(TensorType type, Part codes, Part scales,
                                 std::optional<Part> zeros, double zero)
    : type_(std::move(type)),
      codes_(std::move(codes)),
      scales_(std::move(scales)),
      zeros_(std::move(zeros)),
      zero_(zero) {
  SHARDC_CHECK(!type_.shape.empty() && IsFloat(type_.dtype));
  CheckPart(codes_, type_.shape);
  CheckPart(scales_, type_.shape);
  if (zeros_) CheckPart(*zeros_, type_.shape);
}

bool QuantizedTensor::IsSame(const QuantizedTensor& other, bool swapped) const {
  if (type_.dtype != other.type_.dtype || zero_ != other.zero_ ||
      zeros_.has_value() != other.zeros_.has_value()) {
    return false;
  }
  return SamePart(codes_, other.codes_, swapped) && SamePart(scales_, other.scales_, swapped) &&
         (!zeros_ || SamePart(*zeros_, *other.zeros_, swapped));
}

template <typename T>
void QuantizedTensor::ReadRow(const Shape& index, int64_t count, T* out) const {
  const int64_t code = RowStart(codes_.at, index), scale = RowStart(scales_.at, index);
  const int64_t zero = zeros_ ? RowStart(zeros_->at, index) : 0;
  const size_t last = index.size() - 1;
  const auto first = static_cast<size_t>(index.back());
  for (size_t i = first; i < first + static_cast<size_t>(count); ++i) {
    const double minus = zeros_ ? zeros_->elements.At(zero + zeros_->at[last][i]) : zero_;
    const double number = (codes_.elements.At(code + codes_.at[last][i]) - minus) *
                          scales_.elements.At(scale + scales_.at[last][i]);
    if constexpr (std::is_same_v<T, uint16_t>) {
      *out++ = type_.dtype == DType::kF16 ? FloatToHalf(static_cast<float>(number))
                                          : FloatToBFloat16(static_cast<float>(number));
    } else {
      *out++ = static_cast<T>(number);
    }
  }
}

void QuantizedTensor::Read(const Shape& offset, const Shape& size, void* out) const {
  SHARDC_CHECK(offset.size() == type_.shape.size() && size.size() == offset.size());
  for (size_t d = 0; d < size.size(); ++d) {
    SHARDC_CHECK(offset[d] >= 0 && size[d] >= 0 && size[d] <= type_.shape[d] - offset[d],
                 "box of dim ", d);
  }
  if (NumElements(size) == 0) return;
  const int64_t row = size.back();
  const Shape rows(size.begin(), size.end() - 1);
  for (int64_t r = 0; r < NumElements(rows); ++r) {
    Shape index = PlaceOf(r, rows);
    for (size_t d = 0; d < index.size(); ++d) index[d] += offset[d];
    index.push_back(offset.back());
    if (type_.dtype == DType::kF32) {
      ReadRow(index, row, static_cast<float*>(out) + r * row);
    } else if (type_.dtype == DType::kF64) {
      ReadRow(index, row, static_cast<double*>(out) + r * row);
    } else {
      ReadRow(index, row, static_cast<uint16_t*>(out) + r * row);
    }
  }
}

}  // namespace shardc::onnx_import
