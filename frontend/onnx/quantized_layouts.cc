#include "frontend/onnx/quantized_layouts.h"

#include <algorithm>
#include <utility>

#include "frontend/onnx/uses.h"
#include "ir/row_major.h"

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;
using Part = QuantizedTensor::Part;

int TypeOf(const Stored& stored) { return stored.tensor->data_type(); }

StoredElements Elements(TensorReader& reader, const Stored& stored) {
  return reader.Elements(*stored.tensor, stored.raw);
}

// Numbers of up to 32 bits that are scaled.
bool IsCode(int onnx_type) {
  const auto bits = StoredBits(onnx_type);
  return bits && *bits <= 32 && onnx_type != TensorProto::BOOL && onnx_type != TensorProto::FLOAT &&
         onnx_type != TensorProto::FLOAT16 && onnx_type != TensorProto::BFLOAT16 &&
         onnx_type != TensorProto::UINT32;
}

std::optional<DType> FloatHeld(int onnx_type) {
  const auto held = HeldAs(onnx_type);
  return held && IsFloat(*held) ? held : std::nullopt;
}

int64_t Blocks(int64_t n, int64_t block) { return n / block + (n % block != 0); }

// Where the scale of each index lies among row-major scales of these dims, one for each block along
// the axis and each index of the other dims, or one for all indices of a dim.
std::optional<PositionsByDim> BlockPositions(const Shape& shape, const Shape& scales, int64_t axis,
                                             int64_t block, bool may_be_one) {
  if (scales.size() != shape.size()) return std::nullopt;
  Ints group(shape.size(), 1), stride = DenseStrides(scales);
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool is_axis = std::cmp_equal(d, axis);
    if (is_axis) group[d] = block;
    if (scales[d] == Blocks(shape[d], group[d])) continue;
    if (is_axis || !may_be_one || scales[d] != 1) return std::nullopt;
    stride[d] = 0;
  }
  return Strided(shape, group, stride);
}

std::optional<PositionsByDim> LinearPositions(const Shape& shape, const Shape& scales, int64_t axis,
                                              int64_t block) {
  const auto rank = std::ssize(shape);
  const Ints none(shape.size(), 0), single(shape.size(), 1);
  if (block == 0 && NumElements(scales) == 1) return Strided(shape, single, none);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank || block < 0) return std::nullopt;
  if (block > 0) return BlockPositions(shape, scales, axis, block, false);
  if (scales != Shape{shape[static_cast<size_t>(axis)]}) return std::nullopt;
  Ints stride = none;
  stride[static_cast<size_t>(axis)] = 1;
  return Strided(shape, single, stride);
}

int UnsignedType(int64_t bits) {
  return bits == 2 ? kUint2 : bits == 4 ? kUint4 : bits == 8 ? int{TensorProto::UINT8} : 0;
}

}  // namespace

Layout LinearLayout(TensorReader& reader, const QuantizedParts& parts, int64_t axis, int64_t block,
                    int onnx_type) {
  const auto& [codes, scales, zeros] = parts;
  const auto held = FloatHeld(TypeOf(*scales));
  const auto result = onnx_type == 0 ? held : FloatHeld(onnx_type);
  if (!held || !result || !IsCode(TypeOf(*codes)) || codes->dims.empty()) return nullptr;
  StoredElements elements = Elements(reader, *codes);
  if (NumElements(codes->dims) == 0) return nullptr;
  const auto at = LinearPositions(codes->dims, scales->dims, axis, block);
  if (!at) return nullptr;
  std::optional<Part> zero_points;
  if (zeros != nullptr) {
    if (TypeOf(*zeros) != TypeOf(*codes) || NumElements(zeros->dims) != NumElements(scales->dims))
      return nullptr;
    zero_points = Part{Elements(reader, *zeros), *at};
  }
  return std::make_shared<QuantizedTensor>(
      TensorType(*result, codes->dims), Part{std::move(elements), RowMajor(codes->dims)},
      Part{Elements(reader, *scales), *at}, std::move(zero_points), 0);
}

Layout NBitsLayout(TensorReader& reader, const QuantizedParts& parts, const Stored* groups,
                   const NodeProto& node) {
  const auto& [codes, scales, zeros] = parts;
  const int64_t k = IntOr(node, "K", 0), n = IntOr(node, "N", 0), bits = IntOr(node, "bits", 4);
  const int64_t block = IntOr(node, "block_size", 0);
  const int type = UnsignedType(bits);
  const auto held = FloatHeld(TypeOf(*scales));
  const bool plain = type != 0 && held && TypeOf(*codes) == TensorProto::UINT8 && block > 0 &&
                     block <= int64_t{1} << 31 && block * bits % 8 == 0 && k > 0 && n > 0;
  if (!plain || IntOr(node, "weight_prepacked", 0) != 0) return nullptr;
  const int64_t blocks = Blocks(k, block), blob = block * bits / 8;
  if (NumElements(codes->dims) % blob != 0 || NumElements(codes->dims) / blob / blocks != n ||
      NumElements(codes->dims) / blob % blocks != 0 || NumElements(scales->dims) / blocks != n ||
      NumElements(scales->dims) % blocks != 0) {
    return nullptr;
  }
  const Shape shape = {k, n};
  StoredElements elements = Elements(reader, *codes).As(type);
  PositionsByDim scale_at = Strided(shape, {block, 1}, {1, blocks});
  if (groups != nullptr) {
    if (TypeOf(*groups) != TensorProto::INT32 || NumElements(groups->dims) < k) return nullptr;
    const StoredElements group = Elements(reader, *groups);
    for (int64_t i = 0; i < k; ++i) {
      const auto of = static_cast<int64_t>(group.At(i));
      if (of < 0 || of >= blocks) return nullptr;
      scale_at[0][static_cast<size_t>(i)] = of;
    }
  }
  std::optional<Part> zero_points;
  if (zeros != nullptr && TypeOf(*zeros) == TensorProto::UINT8) {
    const int64_t row = StoredSize(type, blocks);  // bytes
    if (NumElements(zeros->dims) / row != n || NumElements(zeros->dims) % row != 0) return nullptr;
    zero_points = Part{Elements(reader, *zeros).As(type), scale_at};
    for (int64_t i = 0; i < n; ++i) zero_points->at[1][static_cast<size_t>(i)] = i * row * 8 / bits;
  } else if (zeros != nullptr) {
    if (!FloatHeld(TypeOf(*zeros)) || NumElements(zeros->dims) != NumElements(scales->dims))
      return nullptr;
    zero_points = Part{Elements(reader, *zeros), scale_at};
  }
  return std::make_shared<QuantizedTensor>(
      TensorType(*held, shape),
      Part{std::move(elements), Strided(shape, {1, 1}, {1, blocks * block})},
      Part{Elements(reader, *scales), std::move(scale_at)}, std::move(zero_points),
      static_cast<double>(int64_t{1} << (bits - 1)));
}

namespace {

// bitsandbytes' numbers of 4 bits; NF4: Dettmers et al., "QLoRA", 2023, appendix E.
std::vector<double> NumbersOfBnb4(bool normal_floats) {
  if (normal_floats) {
    return {-1.0,
            -0.6961928009986877,
            -0.5250730514526367,
            -0.39491748809814453,
            -0.28444138169288635,
            -0.18477343022823334,
            -0.09105003625154495,
            0.0,
            0.07958029955625534,
            0.16093020141124725,
            0.24611230194568634,
            0.33791524171829224,
            0.44070982933044434,
            0.5626170039176941,
            0.7229568362236023,
            1.0};
  }
  std::vector<double> numbers = {0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333,
                                 0.5, 0.16666667,     0.25};
  for (size_t i = 0; i < 8; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

}  // namespace

Layout Bnb4Layout(TensorReader& reader, const QuantizedParts& parts, const NodeProto& node) {
  const auto& [codes, scales, zeros] = parts;
  const int64_t k = IntOr(node, "K", 0), n = IntOr(node, "N", 0);
  const int64_t block = IntOr(node, "block_size", 0), kind = IntOr(node, "quant_type", -1);
  const auto held = FloatHeld(TypeOf(*scales));
  // Blocks that begin in one row and end in the next have no place by dims.
  if (!held || TypeOf(*codes) != TensorProto::UINT8 || k <= 0 || n <= 0 || block <= 0 ||
      k % block != 0 || (kind != 0 && kind != 1)) {
    return nullptr;
  }
  const int64_t bytes = NumElements(codes->dims);
  if (bytes * 2 / k != n || bytes * 2 % k != 0 || NumElements(scales->dims) / (k / block) != n ||
      NumElements(scales->dims) % (k / block) != 0) {
    return nullptr;
  }
  Shape shape = {k, n};
  StoredElements elements = Elements(reader, *codes).Coded(4, NumbersOfBnb4(kind == 1));
  PositionsByDim code_at = Strided(shape, {1, 1}, {1, k});
  PositionsByDim scale_at = Strided(shape, {block, 1}, {1, k / block});
  if (IntOr(node, "transB", 1) == 0) {
    for (auto* at : {&code_at, &scale_at}) std::swap((*at)[0], (*at)[1]);
    std::swap(shape[0], shape[1]);
  }
  return std::make_shared<QuantizedTensor>(
      TensorType(*held, shape), Part{std::move(elements), std::move(code_at)},
      Part{Elements(reader, *scales), std::move(scale_at)}, std::nullopt, 0);
}

Layout TableLayout(TensorReader& reader, const QuantizedParts& parts, const NodeProto& node) {
  const auto& [codes, scales, zeros] = parts;
  const auto held = FloatHeld(TypeOf(*scales));
  Shape shape = codes->dims;
  if (!held || !IsCode(TypeOf(*codes)) || shape.empty()) return nullptr;
  int64_t axis = IntOr(node, "quantize_axis", 1);
  if (axis < 0) axis += std::ssize(shape);
  if (axis < 0 || axis >= std::ssize(shape)) return nullptr;
  const bool packed = TypeOf(*codes) == TensorProto::UINT8;
  const int64_t bits = packed ? IntOr(node, "bits", 4) : 8;
  const int type = packed ? UnsignedType(bits) : TypeOf(*codes);
  if (type == 0) return nullptr;
  const int64_t in_byte = 8 / bits;
  if (packed && shape.back() > (int64_t{1} << 60) / in_byte) return nullptr;
  shape.back() *= in_byte;
  int64_t block = IntOr(node, "block_size", 128);
  if (block == 0) block = std::max<int64_t>(shape[static_cast<size_t>(axis)], 1);
  if (block < 0) return nullptr;
  StoredElements elements = Elements(reader, *codes).As(type);
  if (NumElements(shape) == 0) return nullptr;
  const auto at = BlockPositions(shape, scales->dims, axis, block, zeros == nullptr);
  if (!at) return nullptr;
  std::optional<Part> zero_points;
  if (zeros != nullptr) {
    Shape dims = zeros->dims;
    if (TypeOf(*zeros) != TypeOf(*codes) || dims.size() != shape.size()) return nullptr;
    if (packed && dims.back() != Blocks(scales->dims.back(), in_byte)) return nullptr;
    if (packed) dims.back() = scales->dims.back();
    if (dims != scales->dims) return nullptr;
    dims.back() = zeros->dims.back() * in_byte;  // each row begins with a byte
    Ints group(shape.size(), 1);
    group[static_cast<size_t>(axis)] = block;
    zero_points =
        Part{Elements(reader, *zeros).As(type), Strided(shape, group, DenseStrides(dims))};
  }
  return std::make_shared<QuantizedTensor>(
      TensorType(*held, shape), Part{std::move(elements), RowMajor(shape)},
      Part{Elements(reader, *scales), *at}, std::move(zero_points),
      packed ? static_cast<double>(int64_t{1} << (bits - 1)) : 0);
}

}  // namespace shardc::onnx_import
