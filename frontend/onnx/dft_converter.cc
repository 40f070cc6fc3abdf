// DFT: a product with a constant matrix, since lengths are known when compiling.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 26;

struct Transform {
  int64_t length;            // of the transform, whatever x and y hold of it
  int64_t from, from_parts;  // dims of x, real parts alone or with imaginary ones
  int64_t to, to_parts;      // dims of y
  bool inverse, onesided;
};

// y [to * to_parts] = x [from * from_parts] @ matrix.
HostTensor MatrixOf(const Transform& t, DType dtype) {
  HostTensor matrix(dtype, {t.from * t.from_parts, t.to * t.to_parts});
  const int64_t columns = t.to * t.to_parts;
  // What x holds beyond the length, or beyond half of the spectrum, is cut off.
  const int64_t used = t.inverse && t.onesided ? t.length / 2 + 1 : t.length;
  for (int64_t j = 0; j < std::min(t.from, used); ++j) {
    // Half of a spectrum stands for its conjugates too.
    const bool twice = t.inverse && t.onesided && j > 0 && 2 * j < t.length;
    const double scale = (twice ? 2.0 : 1.0) / (t.inverse ? static_cast<double>(t.length) : 1.0);
    for (int64_t k = 0; k < t.to; ++k) {
      const double turns = static_cast<double>(j * k % t.length) / static_cast<double>(t.length);
      const double angle = (t.inverse ? 2 : -2) * std::numbers::pi * turns;
      const double re = scale * std::cos(angle), im = scale * std::sin(angle);
      for (int64_t p = 0; p < t.from_parts; ++p) {
        const int64_t at = (j * t.from_parts + p) * columns + k * t.to_parts;
        matrix.SetDouble(at, p == 0 ? re : -im);
        if (t.to_parts == 2) matrix.SetDouble(at + 1, p == 0 ? im : re);
      }
    }
  }
  return matrix;
}

void Dft(NodeContext& c) {
  Value* x = c.input(0);
  const int rank = x->type.rank();
  const bool axis_is_input = c.opset() >= 20;
  const int64_t given = c.has_input(2) ? c.ConstantInt(2) : -2;
  const int axis = Axis(c, axis_is_input ? given : c.Int("axis", 1), rank);
  if (axis == rank - 1) c.Fail("E1303", "the last dim of DFT holds real and imaginary parts");
  Transform t{};
  t.inverse = c.Flag("inverse", false);
  t.onesided = c.Flag("onesided", false);
  t.from = x->type.shape[axis];
  t.from_parts = x->type.shape[rank - 1];
  if (t.from_parts != 1 && t.from_parts != 2) {
    c.Fail("E1303", StrCat("the last dim of DFT holds real and imaginary parts, not ", t.from_parts,
                           " elements"));
  }
  const bool of_half = t.inverse && t.onesided;
  t.length = c.has_input(1) ? c.ConstantInt(1) : of_half ? 2 * (t.from - 1) : t.from;
  if (t.length < 1) c.Fail("E1303", StrCat("DFT of length ", t.length));
  if (t.onesided && t.from_parts != (t.inverse ? 2 : 1)) {
    c.Fail("E1303", "half of a spectrum is that of real numbers");
  }
  t.to = t.onesided && !t.inverse ? t.length / 2 + 1 : t.length;
  t.to_parts = of_half ? 1 : 2;
  if (t.length > kMaxElements || t.from * t.from_parts > kMaxElements / (t.to * t.to_parts))
    c.Fail("E1301", StrCat("DFT of length ", t.length, " is too long for a matrix"));

  // The axis in front of the parts, with them as one dim.
  Ints there, back(rank);
  for (int d = 0; d < rank - 1; ++d) {
    if (d != axis) there.push_back(d);
  }
  there.insert(there.end(), {axis, rank - 1});
  for (int d = 0; d < rank; ++d) back[there[d]] = d;
  x = c.Transpose(x, there);
  shardc::Shape shape(x->type.shape.begin(), x->type.shape.end() - 2), rows = shape;
  if (rows.empty()) rows = {1};
  rows.push_back(t.from * t.from_parts);
  Value* y = c.Make("matmul", {c.Reshape(x, rows), c.Constant(MatrixOf(t, x->type.dtype))});
  shape.insert(shape.end(), {t.to, t.to_parts});
  c.SetOutput(0, c.Transpose(c.Reshape(y, shape), back));
}

}  // namespace

void AddDftConverter(ConverterTable& table) { table.emplace("DFT", Dft); }

}  // namespace shardc::onnx_import
