// A dense row-major tensor in host memory: constants, test data, goldens.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/dtype.h"
#include "ir/sharding.h"

namespace shardc {

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};

class HostTensor {
 public:
  HostTensor() = default;
  // Zero-filled.
  HostTensor(DType dtype, Shape shape)
      : dtype_(dtype), shape_(std::move(shape)), data_(NumElements(shape_) * DTypeSize(dtype)) {}
  template <typename T>
  static HostTensor Of(Shape shape, const std::vector<T>& values) {
    HostTensor t(DTypeOf<T>::value, std::move(shape));
    SHARDC_CHECK(static_cast<int64_t>(values.size()) == t.num_elements());
    for (size_t i = 0; i < values.size(); ++i) t.data<T>()[i] = values[i];
    return t;
  }
  template <typename T>
  static HostTensor Scalar(T value) {
    return Of<T>({}, {value});
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t num_elements() const { return NumElements(shape_); }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }
  std::byte* raw() { return data_.data(); }
  const std::byte* raw() const { return data_.data(); }
  template <typename T>
  T* data() {
    SHARDC_CHECK(DTypeOf<T>::value == dtype_);
    return reinterpret_cast<T*>(data_.data());
  }
  template <typename T>
  const T* data() const {
    SHARDC_CHECK(DTypeOf<T>::value == dtype_);
    return reinterpret_cast<const T*>(data_.data());
  }
  // Same elements under another shape.
  HostTensor Reshaped(Shape shape) const;
  // Element i as a double / an integer, whatever the dtype.
  double AsDouble(int64_t i) const;
  int64_t AsInt(int64_t i) const;
  void SetDouble(int64_t i, double v);
  bool operator==(const HostTensor&) const = default;

 private:
  DType dtype_ = DType::kF32;
  Shape shape_ = {0};
  std::vector<std::byte> data_;
};

// bf16 and f16 <-> f32, round to nearest even.
float HalfToFloat(uint16_t bits);
uint16_t FloatToHalf(float value);
float BFloat16ToFloat(uint16_t bits);
uint16_t FloatToBFloat16(float value);

}  // namespace shardc
