// Products whose operands are broadcast along leading dims, as what all experts read.
#include <gtest/gtest.h>

#include "tests/exec/harness.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

TEST(BroadcastProduct, HasAKernel) {
  struct Case {
    const char* op;
    Shape a, b;
  };
  // One operand for all experts; for each example and each expert; and experts of two kinds.
  const Case cases[] = {
      {"matmul", {1, 7, 5}, {3, 5, 4}},         {"matmul", {7, 5}, {3, 5, 4}},
      {"matmul_nt", {2, 1, 7, 5}, {3, 4, 5}},   {"matmul", {3, 7, 5}, {1, 5, 4}},
      {"matmul", {2, 1, 7, 5}, {2, 3, 5, 4}},   {"matmul", {2, 3, 7, 5}, {2, 1, 5, 4}},
      {"matmul", {2, 1, 2, 7, 5}, {3, 1, 5, 4}}};
  for (const Case& c : cases) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(StrCat(c.op, " ", ShapeToString(c.a), " ", ShapeToString(c.b)));
      const HostTensor a = As(RandomFloats(c.a, 1), type), b = As(RandomFloats(c.b, 2), type);
      const OneOp product({.op = c.op, .what = "", .operands = {a, b}, .attrs = {}});
      EXPECT_GE(product.HeldBytes(), 0) << "no kernel";
      const HostTensor got = product.Run(/*reference=*/false)[0], want = product.Run(true)[0];
      EXPECT_LE(WorstDifference(got, want, 1e-3), type == DType::kF32 ? 1e-5 : 1.0 / 128);
    }
  }
}

}  // namespace
}  // namespace shardc::testing
