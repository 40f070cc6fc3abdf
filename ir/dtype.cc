#include "ir/dtype.h"

namespace shardc {
namespace {
constexpr std::string_view kNames[kNumDTypes] = {"f32", "f16", "bf16", "f64", "i32", "i64", "bool"};
constexpr int64_t kSizes[kNumDTypes] = {4, 2, 2, 8, 4, 8, 1};
}  // namespace

int64_t DTypeSize(DType dtype) { return kSizes[static_cast<int>(dtype)]; }

std::string_view DTypeName(DType dtype) { return kNames[static_cast<int>(dtype)]; }

std::optional<DType> ParseDType(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kNames[i] == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace shardc
