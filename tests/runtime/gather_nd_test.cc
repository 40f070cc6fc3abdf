// What tuples of indices pick, and its gradient, by the fast kernels against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/diagnostic.h"
#include "tests/exec/harness.h"
#include "tests/ir/thrown.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

struct Case {
  Shape x, indices;
  int64_t batch;
};
const Case kCases[] = {{{6, 5}, {4, 1}, 0},
                       {{6, 5}, {3, 2, 2}, 0},
                       {{2, 3, 7}, {2, 3, 40, 1}, 2},
                       {{2, 6, 5, 3}, {2, 9, 2}, 1},
                       {{300, 50}, {300, 70, 1}, 1}};

HostTensor Indices(const Case& c) {
  HostTensor t(DType::kI64, c.indices);
  const int64_t k = c.indices.back();
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    const int64_t n = c.x[c.batch + i % k];
    t.SetDouble(i, static_cast<double>(i * 7 % (2 * n) - n));
  }
  return t;
}

TEST(GatherNd, HasAKernel) {
  for (const Case& c : kCases) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kI64}) {
      SCOPED_TRACE(StrCat(ShapeToString(c.x), " ", ShapeToString(c.indices)));
      const OneOp op({.op = "gather_nd",
                      .what = "",
                      .operands = {As(RandomFloats(c.x, 1), type), Indices(c)},
                      .attrs = {{"batch_dims", c.batch}}});
      ASSERT_GE(op.HeldBytes(), 0) << "no kernel";
      EXPECT_EQ(op.Run(/*reference=*/false)[0], op.Run(true)[0]);
    }
  }
}

TEST(GatherNd, ItsGradientHasAKernel) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(StrCat(ShapeToString(c.x), " ", ShapeToString(c.indices)));
    Shape picked(c.indices.begin(), c.indices.end() - 1);
    const int64_t k = c.indices.back();
    picked.insert(picked.end(), c.x.begin() + c.batch + k, c.x.end());
    const Ints sizes(c.x.begin() + c.batch, c.x.begin() + c.batch + k);
    const OneOp op({.op = "gather_nd_grad",
                    .what = "",
                    .operands = {As(RandomFloats(picked, 1), DType::kF32), Indices(c)},
                    .attrs = {{"batch_dims", c.batch}, {"sizes", sizes}}});
    ASSERT_GE(op.HeldBytes(), 0) << "no kernel";
    const HostTensor got = op.Run(/*reference=*/false)[0], want = op.Run(true)[0];
    EXPECT_LE(WorstDifference(got, want, 1e-3), 1e-5);
  }
}

TEST(GatherNd, TellsTheFirstIndexThatIsOutOfRange) {
  const Case& c = kCases[4];
  HostTensor indices = Indices(c);
  indices.SetDouble(70 * 200 + 3, 50);
  indices.SetDouble(70 * 250, -51);
  const OneOp op({.op = "gather_nd",
                  .what = "",
                  .operands = {As(RandomFloats(c.x, 1), DType::kF32), indices},
                  .attrs = {{"batch_dims", c.batch}}});
  const Diagnostic d = Thrown([&] { op.Run(false); });
  EXPECT_EQ(d.id(), "E4003");
  EXPECT_STREQ(d.what(), Thrown([&] { op.Run(true); }).what());
  EXPECT_THAT(d.what(), ::testing::HasSubstr("[200, 3, 0]"));
}

}  // namespace
}  // namespace shardc::testing
