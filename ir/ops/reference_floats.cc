#include "ir/ops/reference_floats.h"

#include <cstring>

#include "ir/diagnostic.h"
#include "ir/host_tensor.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

template <typename To, typename From>
std::vector<To> Convert(const TensorView& view) {
  const From* data = view.as<const From>();
  return std::vector<To>(data, data + view.num_elements());
}

template <typename T>
void Round(const std::vector<double>& values, T* out) {
  for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<T>(values[i]);
}

// For each physical index of `out` along dim d: the physical index of the same global element in
// `in`, or -1 for padding.
std::vector<int64_t> DimMap(const KernelCall& call, const TensorView& in, const TensorView& out,
                            int d) {
  std::vector<int64_t> map(out.shape[d], -1);
  std::vector<Run> in_runs = call.Runs(in, d);
  for (const Run& o : call.Runs(out, d)) {
    for (int64_t i = 0; i < o.size; ++i) {
      for (const Run& r : in_runs) {
        int64_t at = o.global + i - r.global;
        if (at >= 0 && at < r.size) map[o.local + i] = r.local + at;
      }
      SHARDC_CHECK(map[o.local + i] >= 0, "dim ", d, " of the operand lacks ", o.global + i);
    }
  }
  return map;
}

}  // namespace

std::vector<double> ToDoubles(const TensorView& view) {
  switch (view.dtype) {
    case DType::kF32:
      return Convert<double, float>(view);
    case DType::kF64:
      return Convert<double, double>(view);
    case DType::kI32:
      return Convert<double, int32_t>(view);
    case DType::kI64:
      return Convert<double, int64_t>(view);
    case DType::kBool:
      return Convert<double, uint8_t>(view);
    case DType::kF16:
    case DType::kBF16: {
      std::vector<double> out(view.num_elements());
      const uint16_t* bits = view.as<const uint16_t>();
      auto* widen = view.dtype == DType::kF16 ? HalfToFloat : BFloat16ToFloat;
      for (size_t i = 0; i < out.size(); ++i) out[i] = widen(bits[i]);
      return out;
    }
  }
  SHARDC_CHECK(false, "dtype");
  return {};
}

std::vector<int64_t> ToInts(const TensorView& view) {
  if (view.dtype == DType::kI32) return Convert<int64_t, int32_t>(view);
  SHARDC_CHECK(view.dtype == DType::kI64, DTypeName(view.dtype));
  return Convert<int64_t, int64_t>(view);
}

void FromDoubles(const std::vector<double>& values, const TensorView& view) {
  SHARDC_CHECK(static_cast<int64_t>(values.size()) == view.num_elements());
  switch (view.dtype) {
    case DType::kF32:
      return Round(values, view.as<float>());
    case DType::kF64:
      return Round(values, view.as<double>());
    case DType::kF16:
    case DType::kBF16: {
      uint16_t* bits = view.as<uint16_t>();
      auto* narrow = view.dtype == DType::kF16 ? FloatToHalf : FloatToBFloat16;
      for (size_t i = 0; i < values.size(); ++i) bits[i] = narrow(static_cast<float>(values[i]));
      return;
    }
    default:
      SHARDC_CHECK(false, DTypeName(view.dtype));
  }
}

TensorView ViewOf(std::vector<double>& values, const TensorView& like) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::kF64, like.shape, like.type};
}

void RunPart(std::string_view op, const KernelCall& call, const Attributes& attrs,
             const std::vector<TensorView>& in, const std::vector<TensorView>& out) {
  KernelCall part = call;
  part.attrs = &attrs;
  part.in = in;
  part.out = out;
  GetOpDef(op).reference(part);
}

void CopyValid(const KernelCall& call, const TensorView& in, const TensorView& out) {
  if (out.num_elements() == 0) return;
  int64_t bytes = DTypeSize(out.dtype);
  std::memset(out.data, 0, out.num_elements() * bytes);
  // Pairs of flat indices (operand, result), one dim at a time.
  std::vector<std::pair<int64_t, int64_t>> at = {{0, 0}};
  for (int d = 0; d < out.rank(); ++d) {
    std::vector<int64_t> map = DimMap(call, in, out, d);
    std::vector<std::pair<int64_t, int64_t>> next;
    for (auto [from, to] : at) {
      for (int64_t i = 0; i < out.shape[d]; ++i) {
        if (map[i] >= 0) next.emplace_back(from * in.shape[d] + map[i], to * out.shape[d] + i);
      }
    }
    at = std::move(next);
  }
  for (auto [from, to] : at) std::memcpy(out.data + to * bytes, in.data + from * bytes, bytes);
}

}  // namespace shardc
