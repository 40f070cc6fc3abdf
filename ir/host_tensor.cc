#include "ir/host_tensor.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace shardc {

HostTensor HostTensor::Reshaped(Shape shape) const {
  SHARDC_CHECK(NumElements(shape) == num_elements());
  HostTensor out = *this;
  out.shape_ = std::move(shape);
  return out;
}

double HostTensor::AsDouble(int64_t i) const {
  switch (dtype_) {
    case DType::kF32:
      return data<float>()[i];
    case DType::kF64:
      return data<double>()[i];
    case DType::kI32:
      return data<int32_t>()[i];
    case DType::kI64:
      return static_cast<double>(data<int64_t>()[i]);
    case DType::kBool:
      return data<bool>()[i];
    case DType::kF16:
      return HalfToFloat(reinterpret_cast<const uint16_t*>(raw())[i]);
    case DType::kBF16:
      return BFloat16ToFloat(reinterpret_cast<const uint16_t*>(raw())[i]);
  }
  return 0;
}

int64_t HostTensor::AsInt(int64_t i) const {
  if (dtype_ == DType::kI64) return data<int64_t>()[i];
  return static_cast<int64_t>(AsDouble(i));
}

void HostTensor::SetDouble(int64_t i, double v) {
  switch (dtype_) {
    case DType::kF32:
      data<float>()[i] = static_cast<float>(v);
      break;
    case DType::kF64:
      data<double>()[i] = v;
      break;
    case DType::kI32:
      data<int32_t>()[i] = static_cast<int32_t>(v);
      break;
    case DType::kI64:
      data<int64_t>()[i] = static_cast<int64_t>(v);
      break;
    case DType::kBool:
      data<bool>()[i] = v != 0;
      break;
    case DType::kF16:
      reinterpret_cast<uint16_t*>(raw())[i] = FloatToHalf(static_cast<float>(v));
      break;
    case DType::kBF16:
      reinterpret_cast<uint16_t*>(raw())[i] = FloatToBFloat16(static_cast<float>(v));
      break;
  }
}

float BFloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t FloatToBFloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float HalfToFloat(uint16_t bits) {
  uint32_t sign = uint32_t{bits & 0x8000u} << 16, exponent = bits >> 10 & 0x1f,
           mantissa = bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t FloatToHalf(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (std::isnan(value)) return sign | 0x7e00;
  float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  // Subnormals and zero: units of 2^-24, rounded to even by nearbyint.
  if (magnitude < 6.103515625e-05f) {
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 16777216.0f));
  }
  uint32_t m = std::bit_cast<uint32_t>(magnitude);
  m += 0xfff + (m >> 13 & 1);
  return sign | static_cast<uint16_t>((m - (uint32_t{112} << 23)) >> 13);
}

}  // namespace shardc
