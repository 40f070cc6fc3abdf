// What is computed while a model is read, and what is left for its runs.
#include "frontend/onnx/fold.h"

#include <gtest/gtest.h>

#include "ir/builder.h"

namespace shardc::onnx_import {
namespace {

class FoldTest : public ::testing::Test {
 protected:
  // Ones, twice.
  std::vector<Value*> Two(DType dtype, int64_t elements) {
    HostTensor ones(dtype, {elements});
    for (int64_t i = 0; i < elements; ++i) ones.SetDouble(i, 1);
    return {builder_.Constant(ones), builder_.Constant(ones)};
  }
  std::optional<std::vector<HostTensor>> Sum(DType dtype, int64_t elements) {
    return Fold("add", Two(dtype, elements), {}, bytes_left_);
  }

  Graph graph_;
  Builder builder_{graph_};
  int64_t bytes_left_ = int64_t{1} << 32;
};

TEST_F(FoldTest, TakesWhatItMakesOffTheBytesLeft) {
  bytes_left_ = 100'000;
  const auto sum = Sum(DType::kI64, 10'000);
  ASSERT_TRUE(sum);
  EXPECT_EQ((*sum)[0].AsInt(9'999), 2);
  EXPECT_EQ(bytes_left_, 20'000);
  EXPECT_FALSE(Sum(DType::kI64, 10'000));
  EXPECT_EQ(bytes_left_, 20'000);
  EXPECT_TRUE(Sum(DType::kI32, 5'000));
}

TEST_F(FoldTest, CountsAllResults) {
  const std::vector<Value*> whole = {Two(DType::kI64, 10'000)[0]};
  const Attributes halves = {{"axis", int64_t{0}}, {"sizes", Ints{5'000, 5'000}}};
  bytes_left_ = 79'999;
  EXPECT_FALSE(Fold("split", whole, halves, bytes_left_));
  bytes_left_ = 80'000;
  EXPECT_TRUE(Fold("split", whole, halves, bytes_left_));
  EXPECT_EQ(bytes_left_, 0);
}

// The numbers are ONNX Runtime's.
TEST_F(FoldTest, SumsAndProductsOf32BitsWrap) {
  const std::vector<Value*> operands = {
      builder_.Constant(HostTensor::Of<int32_t>({2}, {2147483647, 65537})),
      builder_.Constant(HostTensor::Of<int32_t>({2}, {1, 65537}))};
  EXPECT_EQ((*Fold("add", operands, {}, bytes_left_))[0],
            HostTensor::Of<int32_t>({2}, {-2147483648, 131074}));
  EXPECT_EQ((*Fold("mul", operands, {}, bytes_left_))[0],
            HostTensor::Of<int32_t>({2}, {2147483647, 131073}));
  EXPECT_EQ((*Fold("sub", {builder_.Constant(HostTensor::Of<int32_t>({1}, {-2})), operands[0]}, {},
                   bytes_left_))[0],
            HostTensor::Of<int32_t>({2}, {2147483647, -65539}));
}

// A shape must be known, whatever was made before.
TEST_F(FoldTest, SmallTensorsAlways) {
  bytes_left_ = 0;
  EXPECT_TRUE(Sum(DType::kI64, 4096));
  EXPECT_FALSE(Sum(DType::kI64, 4097));
}

}  // namespace
}  // namespace shardc::onnx_import
