#include "ir/convert.h"

#include <gtest/gtest.h>

namespace shardc::testing {
namespace {

TEST(Convert, TransposesEveryType) {
  for (const DType type : {DType::kBool, DType::kF16, DType::kBF16, DType::kF32, DType::kI32,
                           DType::kF64, DType::kI64}) {
    for (const Shape& shape : {Shape{3, 5}, {1, 70}, {65, 33}, {0, 4}}) {
      HostTensor t(type, shape);
      for (int64_t i = 0; i < t.num_elements(); ++i) {
        t.SetDouble(i, static_cast<double>(type == DType::kBool ? i / 3 % 2 : i % 101));
      }
      const HostTensor turned = Transposed(t);
      EXPECT_EQ(turned.dtype(), type);
      ASSERT_EQ(turned.shape(), (Shape{shape[1], shape[0]}));
      for (int64_t i = 0; i < shape[0]; ++i) {
        for (int64_t j = 0; j < shape[1]; ++j) {
          ASSERT_EQ(turned.AsDouble(j * shape[0] + i), t.AsDouble(i * shape[1] + j));
        }
      }
      EXPECT_EQ(Transposed(turned), t);
    }
  }
}

}  // namespace
}  // namespace shardc::testing
