// Element types of tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardc {

enum class DType : uint8_t { kF32, kF16, kBF16, kF64, kI32, kI64, kBool };

inline constexpr int kNumDTypes = 7;

// Bytes of one element; a bool takes one byte, 0 or 1.
int64_t DTypeSize(DType dtype);
// "f32", "f16", "bf16", "f64", "i32", "i64", "bool".
std::string_view DTypeName(DType dtype);
std::optional<DType> ParseDType(std::string_view name);

constexpr bool IsFloat(DType d) {
  return d == DType::kF32 || d == DType::kF16 || d == DType::kBF16 || d == DType::kF64;
}
constexpr bool IsHalf(DType d) { return d == DType::kF16 || d == DType::kBF16; }
constexpr bool IsInteger(DType d) { return d == DType::kI32 || d == DType::kI64; }

}  // namespace shardc
