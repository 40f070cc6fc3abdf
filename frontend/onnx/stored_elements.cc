#include "frontend/onnx/stored_elements.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ir/diagnostic.h"
#include "ir/host_tensor.h"

namespace shardc::onnx_import {
namespace {

using onnx::TensorProto;

// ONNX's description of its float types has the same words.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  enum { kNone, kIeee, kLargestIsNan, kNegativeZeroIsNan } special;
};

std::optional<SmallFloat> SmallFloatOf(int onnx_type) {
  switch (onnx_type) {
    case kFloat8E4M3FN:
      return SmallFloat{4, 3, 7, SmallFloat::kLargestIsNan};
    case kFloat8E4M3FNUZ:
      return SmallFloat{4, 3, 8, SmallFloat::kNegativeZeroIsNan};
    case kFloat8E5M2:
      return SmallFloat{5, 2, 15, SmallFloat::kIeee};
    case kFloat8E5M2FNUZ:
      return SmallFloat{5, 2, 16, SmallFloat::kNegativeZeroIsNan};
    case kFloat4E2M1:
      return SmallFloat{2, 1, 1, SmallFloat::kNone};
    default:
      return std::nullopt;
  }
}

double NumberOf(const SmallFloat& f, int code) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const int bits = f.exponent_bits + f.mantissa_bits;
  const int largest = (1 << f.exponent_bits) - 1, fractions = 1 << f.mantissa_bits;
  const bool negative = (code >> bits) != 0;
  const int exponent = (code >> f.mantissa_bits) & largest, mantissa = code & (fractions - 1);
  if (f.special == SmallFloat::kNegativeZeroIsNan && code == 1 << bits) return kNan;
  if (exponent == largest) {
    if (f.special == SmallFloat::kLargestIsNan && mantissa == fractions - 1) return kNan;
    if (f.special == SmallFloat::kIeee) {
      if (mantissa != 0) return kNan;
      return negative ? -HUGE_VAL : HUGE_VAL;
    }
  }
  const double fraction = static_cast<double>(mantissa) / fractions;
  const double number = exponent == 0 ? std::ldexp(fraction, 1 - f.bias)
                                      : std::ldexp(1 + fraction, exponent - f.bias);
  return negative ? -number : number;
}

std::vector<double> TableOf(int onnx_type, int bits) {
  const auto small = SmallFloatOf(onnx_type);
  const bool is_signed = onnx_type == TensorProto::INT8 || onnx_type == kInt4 || onnx_type == kInt2;
  const int count = 1 << bits;
  std::vector<double> numbers;
  for (int code = 0; code < count; ++code) {
    numbers.push_back(small                            ? NumberOf(*small, code)
                      : is_signed && code >= count / 2 ? code - count
                                                       : code);
  }
  return numbers;
}

template <typename T>
T Load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

std::optional<int> StoredBits(int onnx_type) {
  switch (onnx_type) {
    case kUint2:
    case kInt2:
      return 2;
    case kUint4:
    case kInt4:
    case kFloat4E2M1:
      return 4;
    case TensorProto::INT8:
    case TensorProto::UINT8:
    case TensorProto::BOOL:
    case kFloat8E4M3FN:
    case kFloat8E4M3FNUZ:
    case kFloat8E5M2:
    case kFloat8E5M2FNUZ:
      return 8;
    case TensorProto::INT16:
    case TensorProto::UINT16:
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
      return 16;
    case TensorProto::INT32:
    case TensorProto::UINT32:
    case TensorProto::FLOAT:
      return 32;
    case TensorProto::INT64:
    case TensorProto::UINT64:
    case TensorProto::DOUBLE:
      return 64;
    default:
      return std::nullopt;
  }
}

int64_t StoredSize(int onnx_type, int64_t elements) {
  const int64_t bits = StoredBits(onnx_type).value();
  return bits >= 8 ? elements * (bits / 8) : elements / (8 / bits) + (elements % (8 / bits) != 0);
}

StoredElements::StoredElements(Bytes bytes, int onnx_type)
    : bytes_(std::move(bytes)), type_(onnx_type), bits_(StoredBits(onnx_type).value()) {
  if (bits_ <= 8) SetTable(bits_, TableOf(onnx_type, bits_));
}

StoredElements StoredElements::Coded(int bits, std::vector<double> numbers) const {
  StoredElements coded = *this;
  coded.SetTable(bits, std::move(numbers));
  coded.first_ = 8 / bits - 1;
  return coded;
}

bool StoredElements::IsSame(const StoredElements& other) const {
  return type_ == other.type_ && bits_ == other.bits_ && first_ == other.first_ &&
         (first_ == 0 || table_ == other.table_) && bytes_.size == other.bytes_.size &&
         (bytes_.data == other.bytes_.data ||
          std::equal(bytes_.data, bytes_.data + bytes_.size, other.bytes_.data));
}

void StoredElements::SetTable(int bits, std::vector<double> numbers) {
  SHARDC_CHECK(8 % bits == 0 && numbers.size() == size_t{1} << bits, bits);
  bits_ = bits;
  log_in_byte_ = std::countr_zero(static_cast<unsigned>(8 / bits));
  table_ = std::move(numbers);
}

double StoredElements::Wide(int64_t i) const {
  const std::byte* data = bytes_.data;
  switch (type_) {
    case TensorProto::INT16:
      return Load<int16_t>(data, i);
    case TensorProto::UINT16:
      return Load<uint16_t>(data, i);
    case TensorProto::FLOAT16:
      return HalfToFloat(Load<uint16_t>(data, i));
    case TensorProto::BFLOAT16:
      return BFloat16ToFloat(Load<uint16_t>(data, i));
    case TensorProto::INT32:
      return Load<int32_t>(data, i);
    case TensorProto::UINT32:
      return Load<uint32_t>(data, i);
    case TensorProto::FLOAT:
      return Load<float>(data, i);
    case TensorProto::DOUBLE:
      return Load<double>(data, i);
    default:
      SHARDC_CHECK(false, "type ", type_);
  }
}

}  // namespace shardc::onnx_import
