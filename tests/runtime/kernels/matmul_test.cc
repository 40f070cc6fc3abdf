#include "runtime/cpu/kernels/matmul.h"

#include <stdexcept>

#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

void Check(MatmulConfig c) {
  SCOPED_TRACE(testing::Message() << c.m << "x" << c.n << "x" << c.k << " batch " << c.batch
                                  << " ta " << c.transpose_a << " tb " << c.transpose_b << " bias "
                                  << c.bias << " accumulate " << c.accumulate << " pack "
                                  << c.pack_b);
  const int64_t lda = c.lda != 0 ? c.lda : c.transpose_a ? c.m : c.k;
  const int64_t ldb = c.transpose_b ? c.k : c.n, ldc = c.ldc != 0 ? c.ldc : c.n;
  const int64_t sa = lda * (c.transpose_a ? c.k : c.m), sb = c.k * c.n, sc = ldc * c.m;
  const auto a = RandomVector(c.batch * sa + 64, 1), b = RandomVector(c.batch * sb + 64, 2);
  const auto bias = RandomVector(c.n, 3), start = RandomVector(c.batch * sc + 64, 4);
  std::vector<double> want(start.begin(), start.end());
  ForEachProduct({a, c.transpose_a, lda, sa}, {b, c.transpose_b, ldb, sb}, c.batch, c.m, c.n, c.k,
                 [&](int64_t z, int64_t i, int64_t j, double sum) {
                   if (c.bias) sum += bias[j];
                   double& out = want[z * sc + i * ldc + j];
                   out = c.accumulate ? out + sum : sum;
                 });
  for (int threads : {1, 2, 3}) {
    c.threads = threads;
    MatmulF32 matmul = MatmulF32::Create(c);
    matmul.PackB(b.data());
    auto out = start, again = start;
    matmul.Execute(a.data(), b.data(), bias.data(), out.data());
    matmul.Execute(a.data(), b.data(), bias.data(), again.data());
    ExpectNear(out, want, 1e-5, 1e-6 * (10 + std::sqrt(static_cast<double>(c.k))));
    EXPECT_TRUE(SameBits(out, again));
  }
}

TEST(Matmul, TransposesAndOddSizes) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (bool accumulate : {false, true}) {
        for (bool pack : {false, true}) {
          for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                 {3, 257, 5},
                                 {257, 3, 64},
                                 {64, 96, 257},
                                 {1, 768, 768},
                                 {1, 4133, 70},
                                 {1, 9, 1037},
                                 {1, 300, 0},
                                 {2, 521, 139},
                                 {3, 70, 1037},
                                 {33, 1, 17}}) {
            MatmulConfig c{.m = m, .n = n, .k = k, .transpose_a = ta, .transpose_b = tb};
            c.accumulate = accumulate;
            c.pack_b = pack;
            Check(c);
          }
        }
      }
    }
  }
}

TEST(Matmul, LargeVocabulary) {
  MatmulConfig c{.m = 3, .n = 50257, .k = 16, .transpose_b = true};
  Check(c);
  c.pack_b = true;
  Check(c);
}

TEST(Matmul, Bias) {
  for (bool pack : {false, true}) {
    Check({.m = 65, .n = 131, .k = 40, .bias = true, .pack_b = pack});
    Check({.m = 7, .n = 19, .k = 3, .bias = true, .pack_b = pack});
  }
}

TEST(Matmul, LeadingDimensions) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (bool pack : {false, true}) {
        MatmulConfig c{.m = 31, .n = 45, .k = 27, .transpose_a = ta, .transpose_b = tb};
        c.lda = 50;
        c.ldc = 70;
        c.pack_b = pack;
        Check(c);
        c.bias = true;
        Check(c);
      }
    }
  }
}

TEST(Matmul, Batches) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (int64_t m : {1, 3, 13}) {
        MatmulConfig c{.m = m, .n = 21, .k = 16, .batch = 5, .transpose_a = ta, .transpose_b = tb};
        Check(c);
        c.bias = true;
        c.lda = 19;
        c.ldc = 25;
        Check(c);
        c.bias = false;
        c.accumulate = true;
        Check(c);
      }
    }
  }
}

TEST(Matmul, VeryFewRowsHoldNoCopyOfTheWeight) {
  for (auto [m, tb] : {std::pair<int64_t, bool>{1, false}, {1, true}, {2, false}, {3, false}}) {
    MatmulConfig c{.m = m, .n = 300, .k = 130, .transpose_b = tb, .bias = true, .pack_b = true};
    EXPECT_EQ(MatmulF32::Create(c).held_bytes(), 0);
    EXPECT_EQ(MatmulF32::Create(c).implementation(), "few rows");
    c.lda = 140, c.ldc = 320;
    Check(c);
    c.bias = false, c.accumulate = true;
    Check(c);
  }
}

// Sizes that product.h is taken for where the machine has AMX.
TEST(Matmul, Large) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      MatmulConfig c{.m = 163, .n = 135, .k = 77, .transpose_a = ta, .transpose_b = tb};
      Check(c);
      c.bias = true;
      Check(c);
      c.bias = false, c.accumulate = true;
      Check(c);
      c.lda = c.ldc = 170;
      Check(c);
      c.batch = 4;
      Check(c);
    }
  }
}

TEST(Matmul, EmptySizes) {
  Check({.m = 0, .n = 4, .k = 3});
  Check({.m = 4, .n = 4, .k = 0, .bias = true});
  Check({.m = 4, .n = 4, .k = 0, .batch = 2});
  Check({.m = 4, .n = 4, .k = 0, .accumulate = true});
}

TEST(Matmul, RepackedWeightIsUsed) {
  MatmulF32 matmul = MatmulF32::Create({.m = 2, .n = 3, .k = 2, .pack_b = true});
  const std::vector<float> a = {1, 2, 3, 4};
  std::vector<float> b = {1, 0, 2, 0, 1, 3}, out(6);
  matmul.PackB(b.data());
  matmul.Execute(a.data(), b.data(), nullptr, out.data());
  EXPECT_EQ(out, (std::vector<float>{1, 2, 8, 3, 4, 18}));
  b[0] = 5;
  matmul.PackB(b.data());
  matmul.Execute(a.data(), b.data(), nullptr, out.data());
  EXPECT_EQ(out, (std::vector<float>{5, 2, 8, 15, 4, 18}));
}

TEST(Matmul, RefusesNonsense) {
  EXPECT_THROW(MatmulF32::Create({.m = -1, .n = 2, .k = 2}), std::invalid_argument);
  EXPECT_THROW(MatmulF32::Create({.m = 1, .n = -2, .k = 2}), std::invalid_argument);
  EXPECT_THROW(MatmulF32::Create({.m = 1, .n = 2, .k = -2}), std::invalid_argument);
  EXPECT_THROW(MatmulF32::Create({.m = 1, .n = 2, .k = 2, .batch = -1}), std::invalid_argument);
  EXPECT_THROW(MatmulF32::Create({.m = 1, .n = 2, .k = 2, .batch = 2, .pack_b = true}),
               std::invalid_argument);
  EXPECT_THROW(MatmulF32::Create({.m = 1, .n = 2, .k = 2, .bias = true, .accumulate = true}),
               std::invalid_argument);
}

}  // namespace
}  // namespace shardc::cpu
