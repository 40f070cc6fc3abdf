// Sums over any axes have a kernel.
#include <gtest/gtest.h>

#include "tests/exec/harness.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

TEST(ReduceAxes, HaveAKernel) {
  for (const Ints& axes : {Ints{0},
                           {1},
                           {3},
                           {0, 1},
                           {2, 3},
                           {0, 2},
                           {1, 3},
                           {0, 2, 3},
                           {0, 1, 3},
                           {-4, -2},
                           {0, 1, 2, 3}}) {
    for (const Shape& shape : {Shape{3, 5, 4, 7}, {2, 3, 1, 6}, {1, 40, 3, 300}}) {
      for (const char* op : {"reduce_sum", "reduce_mean"}) {
        if (axes == Ints{0} && shape[0] == 1) continue;  // nothing to sum
        SCOPED_TRACE(StrCat(op, " ", ShapeToString(shape), " ", ShapeToString(axes)));
        const OneOp sum({.op = op,
                         .what = "",
                         .operands = {As(RandomFloats(shape, 1), DType::kF32)},
                         .attrs = {{"axes", axes}, {"keepdims", false}}});
        EXPECT_GE(sum.HeldBytes(), 0) << "no kernel";
        const HostTensor got = sum.Run(/*reference=*/false)[0], want = sum.Run(true)[0];
        EXPECT_LE(WorstDifference(got, want, 1e-3), 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace shardc::testing
