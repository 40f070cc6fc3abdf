// For OpDef::reference: element types, dispatch over dtypes, strided iteration, valid boxes.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/host_tensor.h"
#include "ir/kernel_call.h"
#include "ir/row_major.h"

namespace shardc::reference {

// Storage types of f16 and bf16; values go through double.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  explicit Half(double v) : bits(FloatToHalf(static_cast<float>(v))) {}
  explicit operator double() const { return HalfToFloat(bits); }
};
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(double v) : bits(FloatToBFloat16(static_cast<float>(v))) {}
  explicit operator double() const { return BFloat16ToFloat(bits); }
};

template <typename T>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
// What T is computed in: double for every float type (rounded to T at the end), int64_t else.
template <typename T>
using Wide = std::conditional_t<kIsFloat<T>, double, int64_t>;

// fn(T()) with T the element type: float, double, Half, BFloat16, ...
template <typename Fn>
void DispatchFloat(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(float());
    case DType::kF64:
      return fn(double());
    case DType::kF16:
      return fn(Half());
    case DType::kBF16:
      return fn(BFloat16());
    default:
      SHARDC_CHECK(false, "not a float type: ", DTypeName(dtype));
  }
}
// ... or int32_t, int64_t.
template <typename Fn>
void DispatchNumeric(DType dtype, Fn fn) {
  if (dtype == DType::kI32) return fn(int32_t());
  if (dtype == DType::kI64) return fn(int64_t());
  DispatchFloat(dtype, fn);
}
// ... or bool.
template <typename Fn>
void DispatchAny(DType dtype, Fn fn) {
  if (dtype == DType::kBool) return fn(bool());
  DispatchNumeric(dtype, fn);
}

// Element i of a view of T. A bool may be any byte: padding is not always 0 or 1.
template <typename T>
Wide<T> Load(const TensorView& view, int64_t i) {
  if constexpr (std::is_same_v<T, bool>) return view.as<const uint8_t>()[i] != 0;
  return static_cast<Wide<T>>(view.as<const T>()[i]);
}
template <typename T>
void Store(const TensorView& view, int64_t i, Wide<T> value) {
  view.as<T>()[i] = static_cast<T>(value);
}

// Calls fn(const std::array<int64_t, N>& offsets) for each index of `size` in row-major order;
// offsets[k] = base[k] + sum of index[d] * strides[k][d].
template <size_t N, typename Fn>
void ForEach(const Shape& size, const std::array<Shape, N>& strides, Fn fn,
             std::array<int64_t, N> base = {}) {
  if (NumElements(size) == 0) return;
  const int rank = static_cast<int>(size.size());
  if (rank == 0) return fn(base);
  std::array<int64_t, N> step;
  for (size_t k = 0; k < N; ++k) step[k] = strides[k][rank - 1];
  Shape index(rank);
  for (;;) {
    std::array<int64_t, N> at = base;
    for (int64_t i = 0; i < size[rank - 1]; ++i) {
      fn(at);
      for (size_t k = 0; k < N; ++k) at[k] += step[k];
    }
    int d = rank - 2;
    for (; d >= 0; --d) {
      for (size_t k = 0; k < N; ++k) base[k] += strides[k][d];
      if (++index[d] < size[d]) break;
      for (size_t k = 0; k < N; ++k) base[k] -= strides[k][d] * size[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

// A stretch of a view without padding: where it starts.
struct Box {
  Shape local, size;
};
// The boxes that make up the valid part of a view, in local order. With `dims`, only padding along
// these dims is left out.
std::vector<Box> ValidBoxes(const KernelCall& call, const TensorView& view);
std::vector<Box> ValidBoxes(const KernelCall& call, const TensorView& view,
                            std::span<const int> dims);
// Sum of index[d] * strides[d].
int64_t Offset(const Shape& index, const Shape& strides);

// Calls fn(element of the view) for each that is no padding, box by box.
template <typename Fn>
void ForEachValid(const KernelCall& call, const TensorView& view, Fn fn) {
  const Shape strides = DenseStrides(view.shape);
  for (const Box& box : ValidBoxes(call, view)) {
    ForEach<1>(box.size, {strides}, [&](const auto& at) { fn(at[0]); },
               {Offset(box.local, strides)});
  }
}

// An integer of an i32 or i64 view.
int64_t ReadInt(const TensorView& view, int64_t offset);
// Sets every byte of the view to zero.
void ZeroFill(const TensorView& view);

// Diagnostic E4003: `operand` of `op` holds `value` at that place, outside [low, high). `ignored`:
// the value outside it that is allowed.
Diagnostic OutOfRange(std::string_view op, std::string_view operand, const Shape& place,
                      int64_t value, int64_t low, int64_t high,
                      std::optional<int64_t> ignored = std::nullopt);
// Throws it for the first value of an integer view, padding apart, that is neither within [low,
// high) nor ignored.
void CheckRange(const KernelCall& call, const TensorView& view, std::string_view op,
                std::string_view operand, int64_t low, int64_t high,
                std::optional<int64_t> ignored = std::nullopt);

}  // namespace shardc::reference
