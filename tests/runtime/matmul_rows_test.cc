// Products of chosen rows: the others are zero whatever is in them, and more rows are chosen than
// are multiplied at a time.
#include <gtest/gtest.h>

#include <limits>

#include "tests/exec/harness.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

struct Case {
  const char* op;
  Shape a, b, rows;
};
// Operands of each expert, or one for all.
const Case kCases[] = {
    {"matmul_rows", {3, 37, 9}, {3, 9, 21}, {3, 37}},
    {"matmul_rows", {1, 2100, 9}, {2, 9, 5}, {2, 2100}},
    {"matmul_rows", {2, 3, 7, 9}, {3, 9, 5}, {2, 3, 7}},
    {"matmul_rows_nt", {3, 37, 9}, {3, 21, 9}, {3, 37}},
    {"matmul_rows_nt", {2100, 9}, {2, 5, 9}, {2, 2100}},
    {"matmul_rows_tn", {3, 37, 9}, {3, 37, 21}, {3, 37}},
    {"matmul_rows_tn", {1, 2100, 9}, {2, 2100, 5}, {2, 2100}},
};

std::string NameOf(const Case& c) {
  return StrCat(c.op, " ", ShapeToString(c.a), " ", ShapeToString(c.b));
}

OpSample SampleOf(const Case& c, DType type) {
  return {.op = c.op,
          .what = "",
          .operands = {As(RandomFloats(c.a, 1), type), As(RandomFloats(c.b, 2), type),
                       RandomBools(c.rows, 3)},
          .attrs = {}};
}

TEST(MatmulRows, AgreeWithTheReference) {
  for (const Case& c : kCases) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const char* out : {"f32", "bf16"}) {
        if (type == DType::kF32 && out == std::string("bf16")) continue;
        SCOPED_TRACE(StrCat(NameOf(c), " ", DTypeName(type), " to ", out));
        OpSample sample = SampleOf(c, type);
        sample.attrs.Set("out", std::string(out));
        const OneOp product(sample);
        ASSERT_GE(product.HeldBytes(), 0) << "no kernel";
        const HostTensor got = product.Run(/*reference=*/false)[0], want = product.Run(true)[0];
        const double tolerance = out == std::string("bf16") ? 1.0 / 128 : 1e-5;
        EXPECT_LE(WorstDifference(got, want, 1e-3), tolerance);
      }
    }
  }
}

// All of them, none of a matrix, and one.
TEST(MatmulRows, AnyNumberMayBeChosen) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(NameOf(c));
    OpSample sample = SampleOf(c, DType::kF32);
    HostTensor& rows = sample.operands[2];
    for (int64_t i = 0; i < rows.num_elements(); ++i) {
      const int64_t matrix = i / c.rows.back();
      rows.SetDouble(i, matrix == 0 || (matrix == 2 && i % c.rows.back() == 5));
    }
    const OneOp product(sample);
    EXPECT_LE(WorstDifference(product.Run(false)[0], product.Run(true)[0], 1e-3), 1e-5);
  }
}

// What is not finite in a row, or in a product with one, stays out where it is not chosen.
TEST(MatmulRows, OthersMayHoldAnything) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(NameOf(c));
    OpSample sample = SampleOf(c, DType::kF32);
    const HostTensor want = OneOp(sample).Run(true)[0];
    const HostTensor rows = sample.operands[2];
    // A row of an operand that is one for all may be chosen elsewhere.
    for (HostTensor& t : sample.operands) {
      if (!IsFloat(t.dtype()) || t.shape()[t.shape().size() - 2] != c.rows.back()) continue;
      if (t.num_elements() / t.shape().back() != rows.num_elements()) continue;
      for (int64_t i = 0; i < t.num_elements(); ++i) {
        if (rows.AsDouble(i / t.shape().back()) == 0) {
          t.SetDouble(i, i % 2 ? std::numeric_limits<double>::infinity()
                               : std::numeric_limits<double>::quiet_NaN());
        }
      }
    }
    for (bool reference : {false, true}) {
      EXPECT_LE(WorstDifference(OneOp(sample).Run(reference)[0], want, 1e-3), 1e-5);
    }
  }
}

}  // namespace
}  // namespace shardc::testing
