// Elementwise ops whose operands stretch along any dims have a kernel.
#include <gtest/gtest.h>

#include "tests/exec/harness.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

const std::pair<Shape, Shape> kShapes[] = {
    {{3, 5, 1, 8}, {3, 1, 7, 8}},       {{40, 1}, {1, 50}},
    {{2, 1, 6, 1, 9}, {1, 4, 1, 3, 1}}, {{5, 1, 7}, {5, 33, 7}},
    {{2, 3, 4, 5, 6}, {3, 1, 5, 1}},    {{700, 2, 3}, {700, 1, 3}}};

// Halves that f32 holds too, with equal ones among them.
HostTensor Some(const Shape& shape, int seed, DType type) {
  HostTensor t = RandomFloats(shape, seed);
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, std::round(t.AsDouble(i) * 4) / 4);
  }
  return As(t, type);
}

void Check(const OpSample& sample, double tolerance) {
  SCOPED_TRACE(StrCat(sample.op, " ", ShapeToString(sample.operands[0].shape()), " ",
                      ShapeToString(sample.operands[1].shape()), " ",
                      DTypeName(sample.operands.back().dtype())));
  const OneOp op(sample);
  ASSERT_GE(op.HeldBytes(), 0) << "no kernel";
  const HostTensor got = op.Run(/*reference=*/false)[0], want = op.Run(true)[0];
  EXPECT_EQ(got.dtype(), want.dtype());
  EXPECT_LE(WorstDifference(got, want, 1e-3), tolerance);
}

TEST(BroadcastElementwise, HasAKernel) {
  for (const auto& [a, b] : kShapes) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const HostTensor x = Some(a, 1, type), y = Some(b, 2, type);
      for (const char* op : {"add", "sub", "mul", "max"}) {
        Check({.op = op, .what = "", .operands = {x, y}, .attrs = {}}, 1.0 / 128);
        Check({.op = op, .what = "", .operands = {y, x}, .attrs = {}}, 1.0 / 128);
      }
      for (const char* op : {"less", "equal", "not_equal", "greater_equal"}) {
        Check({.op = op, .what = "", .operands = {x, y}, .attrs = {}}, 0);
      }
      HostTensor condition(DType::kBool, a);
      for (int64_t i = 0; i < condition.num_elements(); i += 3) condition.SetDouble(i, 1);
      const HostTensor one = Some({}, 3, type);
      for (const auto& [p, q] : {std::pair{x, y}, {y, x}, {y, one}, {one, y}}) {
        Check({.op = "where", .what = "", .operands = {condition, p, q}, .attrs = {}}, 0);
      }
    }
  }
}

// Tensors without elements have no memory that could be read.
TEST(BroadcastElementwise, ChoosesOfNoElements) {
  const HostTensor none(DType::kF32, {2, 0}), one = Some({}, 1, DType::kF32);
  const HostTensor condition(DType::kBool, {2, 0});
  for (const auto& [p, q] : {std::pair{none, one}, {one, none}, {none, none}}) {
    Check({.op = "where", .what = "", .operands = {condition, p, q}, .attrs = {}}, 0);
  }
}

}  // namespace
}  // namespace shardc::testing
