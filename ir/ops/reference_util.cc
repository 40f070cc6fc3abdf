#include "ir/ops/reference_util.h"

#include <cstring>
#include <numeric>

#include "ir/place_in_whole.h"

namespace shardc::reference {

std::vector<Box> ValidBoxes(const KernelCall& call, const TensorView& view,
                            std::span<const int> dims) {
  std::vector<bool> by_runs(view.rank());
  for (int d : dims) by_runs[d] = true;
  std::vector<Box> boxes = {Box()};
  for (int d = 0; d < view.rank(); ++d) {
    std::vector<Run> runs = {{0, 0, view.shape[d]}};
    if (by_runs[d]) runs = call.Runs(view, d);
    std::vector<Box> next;
    for (const Box& box : boxes) {
      for (const Run& run : runs) {
        next.push_back(box);
        next.back().local.push_back(run.local);
        next.back().size.push_back(run.size);
      }
    }
    boxes = std::move(next);
  }
  return boxes;
}

std::vector<Box> ValidBoxes(const KernelCall& call, const TensorView& view) {
  std::vector<int> dims(view.rank());
  std::iota(dims.begin(), dims.end(), 0);
  return ValidBoxes(call, view, dims);
}

int64_t Offset(const Shape& index, const Shape& strides) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) offset += index[d] * strides[d];
  return offset;
}

int64_t ReadInt(const TensorView& view, int64_t offset) {
  if (view.dtype == DType::kI32) return view.as<const int32_t>()[offset];
  SHARDC_CHECK(view.dtype == DType::kI64);
  return view.as<const int64_t>()[offset];
}

void ZeroFill(const TensorView& view) {
  int64_t bytes = view.num_elements() * DTypeSize(view.dtype);
  if (bytes > 0) std::memset(view.data, 0, static_cast<size_t>(bytes));
}

Diagnostic OutOfRange(std::string_view op, std::string_view operand, const Shape& place,
                      int64_t value, int64_t low, int64_t high, std::optional<int64_t> ignored) {
  return Diagnostic(
      "E4003", ExitCode::kUsage, StrCat("op '", op, "'"),
      StrCat(operand, ShapeToString(place), " = ", value, " is outside [", low, ", ", high, ")"),
      StrCat("give ", operand, " within that range",
             ignored ? StrCat(", or ", *ignored, " to leave one out") : ""));
}

void CheckRange(const KernelCall& call, const TensorView& view, std::string_view op,
                std::string_view operand, int64_t low, int64_t high,
                std::optional<int64_t> ignored) {
  ForEachValid(call, view, [&](int64_t at) {
    const int64_t value = ReadInt(view, at);
    if ((low <= value && value < high) || value == ignored) return;
    throw OutOfRange(op, operand, PlaceInWhole(call, view, at), value, low, high, ignored);
  });
}

}  // namespace shardc::reference
