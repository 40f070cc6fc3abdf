// Elements of types that no DType is.
#include "frontend/onnx/stored_elements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <cmath>
#include <limits>
#include <vector>

namespace shardc::onnx_import {
namespace {

using ::testing::ElementsAre;

std::vector<double> All(const StoredElements& elements) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < elements.size(); ++i) numbers.push_back(elements.At(i));
  return numbers;
}

StoredElements Of(std::vector<uint8_t> bytes, int type) {
  auto owner = std::make_shared<std::vector<uint8_t>>(std::move(bytes));
  return StoredElements({reinterpret_cast<const std::byte*>(owner->data()), owner->size(), owner},
                        type);
}

TEST(StoredElements, TheFirstIsInTheLowestBits) {
  EXPECT_THAT(All(Of({0xf1, 0x87}, kInt4)), ElementsAre(1, -1, 7, -8));
  EXPECT_THAT(All(Of({0xf1, 0x87}, kUint4)), ElementsAre(1, 15, 7, 8));
  EXPECT_THAT(All(Of({0b11100100}, kInt2)), ElementsAre(0, 1, -2, -1));
  EXPECT_THAT(All(Of({0b11100100}, kUint2)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(All(Of({0xf1}, kUint4).As(kUint2)), ElementsAre(1, 0, 3, 3));
  EXPECT_THAT(All(Of({0x12}, kUint4).Coded(4, std::vector<double>(16, 0.5))),
              ElementsAre(0.5, 0.5));
}

TEST(StoredElements, WiderOnes) {
  EXPECT_THAT(All(Of({0xff, 0xff, 0, 0x80}, onnx::TensorProto::INT16)), ElementsAre(-1, -32768));
  EXPECT_THAT(All(Of({0xff, 0xff}, onnx::TensorProto::UINT16)), ElementsAre(65535));
  EXPECT_THAT(All(Of({0, 0x3c, 1, 0}, onnx::TensorProto::FLOAT16)), ElementsAre(1, 0x1p-24));
  EXPECT_THAT(All(Of({0x80, 0x3f}, onnx::TensorProto::BFLOAT16)), ElementsAre(1));
  EXPECT_THAT(All(Of({0, 0, 0, 0x80}, onnx::TensorProto::INT32)), ElementsAre(-0x1p31));
}

TEST(StoredElements, SizesAreWholeBytes) {
  EXPECT_EQ(StoredSize(kInt4, 5), 3);
  EXPECT_EQ(StoredSize(kUint2, 4), 1);
  EXPECT_EQ(StoredSize(kUint2, 5), 2);
  EXPECT_EQ(StoredSize(onnx::TensorProto::DOUBLE, 3), 24);
  EXPECT_FALSE(StoredBits(onnx::TensorProto::STRING));
}

// PyTorch's numbers (2.15), of the same bytes.
TEST(StoredElements, SmallFloats) {
  const std::vector<uint8_t> bytes = {0, 1, 0x38, 0x7e, 0x80, 0x81, 0xc5, 0x7c, 0x7f, 0xff};
  constexpr double kInf = HUGE_VAL, kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<int, std::vector<double>>> expected = {
      {kFloat8E4M3FN, {0, 0x1p-9, 1, 448, -0., -0x1p-9, -3.25, 384, kNan, kNan}},
      {kFloat8E5M2, {0, 0x1p-16, 0.5, kNan, -0., -0x1p-16, -5, kInf, kNan, kNan}},
      {kFloat8E4M3FNUZ, {0, 0x1p-10, 0.5, 224, kNan, -0x1p-10, -1.625, 192, 240, -240}},
      {kFloat8E5M2FNUZ, {0, 0x1p-17, 0.25, 49152, kNan, -0x1p-17, -2.5, 32768, 57344, -57344}}};
  for (const auto& [type, numbers] : expected) {
    EXPECT_THAT(All(Of(bytes, type)),
                ::testing::Pointwise(::testing::NanSensitiveDoubleEq(), numbers))
        << type;
  }
  EXPECT_THAT(All(Of({0x10, 0x32, 0x54, 0x76, 0xf9}, kFloat4E2M1)),
              ElementsAre(0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -6));
}

}  // namespace
}  // namespace shardc::onnx_import
