#include "runtime/describe.h"

#include <cmath>
#include <cstring>

#include "ir/diagnostic.h"
#include "ir/host_tensor.h"

namespace shardc {
namespace {

template <typename T, typename IsNan>
int64_t Find(const std::byte* data, int64_t n, IsNan is_nan) {
  for (int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    if (is_nan(value)) return i;
  }
  return -1;
}

}  // namespace

int64_t FindNan(const std::byte* data, DType dtype, int64_t n) {
  switch (dtype) {
    case DType::kF32:
      return Find<float>(data, n, [](float v) { return std::isnan(v); });
    case DType::kF64:
      return Find<double>(data, n, [](double v) { return std::isnan(v); });
    case DType::kF16:
      return Find<uint16_t>(data, n, [](uint16_t v) { return (v & 0x7fff) > 0x7c00; });
    case DType::kBF16:
      return Find<uint16_t>(data, n, [](uint16_t v) { return (v & 0x7fff) > 0x7f80; });
    default:
      return -1;
  }
}

void ThrowNan(const Program& program, size_t instruction, int result, int64_t at) {
  const Buffer& b = program.buffers[result];
  throw Diagnostic("E4005", ExitCode::kMismatch, DescribeInstruction(program, instruction),
                   StrCat("made the first NaN of this rank, at element ", at, " of ",
                          TypeToString(b.type, program.mesh), " (local shape ",
                          ShapeToString(b.local_shape), ")"),
                   "look at the op's inputs: a division by zero, an overflow, or bad weights");
}

}  // namespace shardc
