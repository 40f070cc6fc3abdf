// The bf16 kernels: against naive f64 loops, or against the f32 kernels (which have such tests) on
// the same numbers.
#include <array>
#include <thread>

#include "runtime/cpu/kernels/matmul_bf16.h"
#include "tests/runtime/kernels/halves.h"

namespace shardc::cpu {
namespace {

// What results are added to; no rounding in bf16.
constexpr float kBefore = 0.75f;

void CheckMatmul(MatmulBf16Config c) {
  SCOPED_TRACE(testing::Message() << c.m << "x" << c.n << "x" << c.k << " batch " << c.batch
                                  << " ta " << c.transpose_a << " tb " << c.transpose_b << " bias "
                                  << c.bias << c.bias_f32 << " f32 " << c.result_f32 << " adds "
                                  << c.accumulate << " rows " << c.lda << " " << c.ldc);
  const int64_t a_row = c.lda > 0       ? c.lda
                        : c.transpose_a ? c.m
                                        : c.k,
                a_size = (c.transpose_a ? c.k : c.m) * a_row, c_row = c.ldc > 0 ? c.ldc : c.n;
  Halves a = RandomHalves(c.batch * a_size, 1), b = RandomHalves(c.batch * c.k * c.n, 2);
  Halves bias = RandomHalves(c.n, 3);
  std::vector<float> wa = Wide(a), wb = Wide(b), wide_bias = Wide(bias);
  std::vector<double> want(static_cast<size_t>(c.batch * c.m * c_row), kBefore);
  ForEachProduct(
      {wa, c.transpose_a, a_row, a_size}, {wb, c.transpose_b, c.transpose_b ? c.k : c.n, c.k * c.n},
      c.batch, c.m, c.n, c.k, [&](int64_t matrix, int64_t i, int64_t j, double sum) {
        const double to = c.bias ? wide_bias[static_cast<size_t>(j)] : c.accumulate ? kBefore : 0;
        want[static_cast<size_t>((matrix * c.m + i) * c_row + j)] = to + sum;
      });
  const void* bias_data = c.bias_f32 ? static_cast<const void*>(wide_bias.data()) : bias.data();
  for (int threads : {1, 2}) {
    c.threads = threads;
    std::unique_ptr<MatmulBf16> matmul = MatmulBf16::Create(c);
    if (!matmul) GTEST_SKIP() << "oneDNN has no bf16 product on this machine";
    double noise = 1e-5 * std::sqrt(static_cast<double>(c.k));
    if (c.result_f32) {
      std::vector<float> got(want.size(), kBefore), again = got;
      matmul->Execute(a.data(), b.data(), bias_data, got.data());
      matmul->Execute(a.data(), b.data(), bias_data, again.data());
      ExpectNear(got, want, 1e-5, noise);
      EXPECT_TRUE(SameBits(got, again));
    } else {
      Halves got(want.size(), Round(kBefore));
      matmul->Execute(a.data(), b.data(), bias_data, got.data());
      ExpectNear(Wide(got), want, kRounding, noise);
    }
  }
}

TEST(MatmulBf16, EveryForm) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (bool f32 : {false, true}) {
        for (auto [m, n, k] : {std::array<int64_t, 3>{1, 7, 5}, {33, 65, 31}, {300, 48, 17}}) {
          CheckMatmul(
              {.m = m, .n = n, .k = k, .transpose_a = ta, .transpose_b = tb, .result_f32 = f32});
        }
        CheckMatmul({.m = 9,
                     .n = 6,
                     .k = 11,
                     .batch = 3,
                     .transpose_a = ta,
                     .transpose_b = tb,
                     .result_f32 = f32});
      }
    }
  }
}

TEST(MatmulBf16, Bias) {
  for (bool wide : {false, true}) {
    for (bool f32 : {false, true}) {
      CheckMatmul({.m = 300, .n = 40, .k = 24, .bias = true, .bias_f32 = wide, .result_f32 = f32});
    }
  }
}

TEST(MatmulBf16, Accumulates) {
  for (bool ta : {false, true}) {
    for (bool f32 : {false, true}) {
      for (int64_t m : {9, 300}) {
        CheckMatmul(
            {.m = m, .n = 40, .k = 24, .transpose_a = ta, .result_f32 = f32, .accumulate = true});
      }
      CheckMatmul({.m = 9,
                   .n = 6,
                   .k = 11,
                   .batch = 3,
                   .transpose_a = ta,
                   .result_f32 = f32,
                   .accumulate = true});
    }
  }
}

// Sizes that product.h is taken for where the machine has AMX.
TEST(MatmulBf16, Large) {
  for (bool tb : {false, true}) {
    for (bool f32 : {false, true}) {
      MatmulBf16Config c{.m = 161, .n = 130, .k = 2051, .transpose_b = tb, .result_f32 = f32};
      CheckMatmul(c);
      c.accumulate = true;
      CheckMatmul(c);
      c.transpose_a = true;
      c.k = 70;
      CheckMatmul(c);
      c.accumulate = false;
      c.bias = true;
      CheckMatmul(c);
      c.bias_f32 = true;
      CheckMatmul(c);
      c.bias = false;
      c.batch = 3;
      CheckMatmul(c);
    }
  }
}

// Rows of A and C that are longer than what counts; what else they hold stays. In the largest,
// oneDNN 2.6 on CPUs without AMX would keep all sums in f32.
TEST(MatmulBf16, LongRows) {
  for (auto [m, n, k] :
       {std::array<int64_t, 3>{7, 9, 5}, {300, 129, 65}, {160, 130, 70}, {512, 9001, 3}}) {
    for (bool tb : {false, true}) {
      for (bool f32 : {false, true}) {
        MatmulBf16Config c{.m = m, .n = n, .k = k, .transpose_b = tb, .result_f32 = f32};
        c.ldc = n + 7;
        CheckMatmul(c);
        c.accumulate = true;
        c.lda = k + 3;
        CheckMatmul(c);
        c.accumulate = false;
        c.bias = true;
        CheckMatmul(c);
        c.bias_f32 = true;
        CheckMatmul(c);
        c.bias = false;
        c.transpose_a = true;
        c.lda = m + 5;
        c.ldc = 0;
        CheckMatmul(c);
      }
    }
  }
  if (auto matmul = MatmulBf16::Create({.m = 2048, .n = 50257, .k = 64, .ldc = 50304})) {
    EXPECT_LT(matmul->held_bytes(), 50 << 20);
  }
}

// Products of one thread share the room for packed operands.
TEST(MatmulBf16, PackRoomIsShared) {
  if (!MatmulBf16::Create({.m = 512, .n = 64, .k = 64})) {
    GTEST_SKIP() << "oneDNN has no bf16 product on this machine";
  }
  std::thread([] {
    auto small = MatmulBf16::Create({.m = 512, .n = 64, .k = 64});
    auto large = MatmulBf16::Create({.m = 512, .n = 640, .k = 640});
    auto same = MatmulBf16::Create({.m = 512, .n = 640, .k = 640});
    EXPECT_GT(large->held_bytes(), 0);
    EXPECT_EQ(same->held_bytes(), 0);
  }).join();
}

TEST(ElementwiseBf16, EqualsF32Rounded) {
  constexpr int64_t kRows = 37, kCols = 53, kN = kRows * kCols;
  Halves x = RandomHalves(kN, 1, 4), dy = RandomHalves(kN, 2), row = RandomHalves(kCols, 3);
  std::vector<float> wx = Wide(x), wdy = Wide(dy), wrow = Wide(row);
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    std::vector<float> want(kN);
    Halves got(kN);
    for (UnaryOp op : {UnaryOp::kNeg, UnaryOp::kGeluTanh, UnaryOp::kGeluErf, UnaryOp::kSilu,
                       UnaryOp::kRelu, UnaryOp::kTanh, UnaryOp::kSigmoid}) {
      k.elementwise.unary(op, wx.data(), want.data(), kN, threads);
      k.elementwise.unary_bf16(op, x.data(), got.data(), kN, threads);
      ExpectNear(Wide(got), Doubles(want), kRounding, 1e-30, "unary");
    }
    for (UnaryGradOp op :
         {UnaryGradOp::kGeluTanh, UnaryGradOp::kGeluErf, UnaryGradOp::kSilu, UnaryGradOp::kRelu}) {
      k.elementwise.unary_grad(op, wx.data(), wdy.data(), want.data(), kN, threads);
      k.elementwise.unary_grad_bf16(op, x.data(), dy.data(), got.data(), kN, threads);
      ExpectNear(Wide(got), Doubles(want), kRounding, 1e-30, "gradient");
    }
    for (Broadcast b :
         {Broadcast::kSame, Broadcast::kRow, Broadcast::kColumn, Broadcast::kScalar}) {
      bool same = b == Broadcast::kSame;
      for (BinaryOp op : {BinaryOp::kAdd, BinaryOp::kMul, BinaryOp::kSub}) {
        k.elementwise.binary(op,
                             {wx.data(), same ? wdy.data() : wrow.data(), kRows, kCols, b, true},
                             want.data(), threads);
        k.elementwise.binary_bf16(op,
                                  {x.data(), same ? dy.data() : row.data(), kRows, kCols, b, true},
                                  got.data(), threads);
        ExpectNear(Wide(got), Doubles(want), kRounding, 1e-30, "binary");
      }
    }
  });
}

TEST(ReduceBf16, SumOfRows) {
  constexpr int64_t kRows = 311, kCols = 45;
  Halves x = RandomHalves(kRows * kCols, 1);
  std::vector<float> wide = Wide(x);
  std::vector<double> want(kCols);
  for (int64_t i = 0; i < kRows * kCols; ++i)
    want[static_cast<size_t>(i % kCols)] += wide[static_cast<size_t>(i)];
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    std::vector<float> got(kCols);
    k.reduce.sum_rows_bf16(x.data(), got.data(), kRows, kCols, false, threads);
    ExpectNear(got, want, 1e-5, 1e-4);
  });
}

TEST(NormBf16, ResultIsF32Rounded) {
  constexpr int64_t kRows = 19, kCols = 77;
  std::vector<float> x = RandomVector(kRows * kCols, 1, 3), w = RandomVector(kCols, 2),
                     b = RandomVector(kCols, 3);
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    std::vector<float> want(x.size());
    Halves got(x.size());
    NormForwardArgs args;
    args.x = x.data();
    args.w = w.data();
    args.rows = kRows;
    args.cols = kCols;
    NormForwardArgs half = args;
    args.y = want.data();
    half.y_bf16 = got.data();
    k.norm.rms_norm_forward(args, threads);
    k.norm.rms_norm_forward(half, threads);
    ExpectNear(Wide(got), Doubles(want), kRounding, 1e-30);
    args.b = half.b = b.data();
    k.norm.layer_norm_forward(args, threads);
    k.norm.layer_norm_forward(half, threads);
    ExpectNear(Wide(got), Doubles(want), kRounding, 1e-30);
  });
}

TEST(CrossEntropyBf16, GradientIsF32Rounded) {
  constexpr int64_t kRows = 7, kStride = 40;
  std::vector<float> logits = RandomVector(kRows * kStride, 1, 3), d_loss = RandomVector(kRows, 2);
  std::vector<int64_t> labels = {100, 101, 136, 99, -100, 110, 500};
  LogitShard shard{.logits = logits.data(),
                   .rows = kRows,
                   .stride = kStride,
                   .valid = 37,
                   .labels = labels.data(),
                   .vocab_offset = 100};
  std::vector<float> lse(kRows, 5.0F), want(logits.size());
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    Halves got(logits.size(), 0x7fc0);
    k.cross_entropy.backward(shard, d_loss.data(), lse.data(), want.data(), threads);
    k.cross_entropy.backward_bf16(shard, d_loss.data(), lse.data(), got.data(), threads);
    ExpectNear(Wide(got), Doubles(want), kRounding, 1e-30);
    // In place of the logits the f32 form gives the same.
    std::vector<float> place = logits;
    LogitShard in_place = shard;
    in_place.logits = place.data();
    k.cross_entropy.backward(in_place, d_loss.data(), lse.data(), place.data(), threads);
    EXPECT_TRUE(SameBits(place, want));
  });
}

// Narrow operands give the bits of the same values in f32, whatever the result's type.
TEST(NarrowOperands, AreWidenedAsTheyAreRead) {
  constexpr int64_t kRows = 5, kCols = 37;
  const Halves narrow = RandomHalves(kRows * kCols, 1, 3);
  const std::vector<float> wide = Wide(narrow), x = RandomVector(kRows * kCols, 2),
                           w = RandomVector(kCols, 3), d_loss = RandomVector(kRows, 4);
  const std::vector<int64_t> labels = {3, 36, -100, 0, 12};
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    std::vector<float> sum[2], loss[2], grad[2], rstd(kRows, 1.5F), mean(kRows, 0.1F);
    std::vector<float> max[2], exps[2], target[2];
    Halves y[2], d_logits[2], max_bf16[2], in_place = narrow;
    for (int i : {0, 1}) {
      sum[i].resize(wide.size()), grad[i].resize(wide.size()), loss[i].resize(kRows);
      y[i].resize(wide.size()), d_logits[i].resize(wide.size());
      NormForwardArgs forward{.x = x.data(), .w = w.data(), .sum = sum[i].data()};
      forward.y_bf16 = y[i].data();
      NormBackwardArgs backward{.x = x.data(), .w = w.data(), .mean = mean.data()};
      backward.rstd = rstd.data();
      backward.dx = grad[i].data();
      LogitShard shard{.rows = kRows, .stride = kCols, .valid = kCols, .labels = labels.data()};
      if (i == 0) {
        forward.residual = backward.dy = shard.logits = wide.data();
      } else {
        forward.residual_bf16 = backward.dy_bf16 = shard.logits_bf16 = narrow.data();
      }
      forward.rows = backward.rows = kRows;
      forward.cols = backward.cols = kCols;
      k.norm.layer_norm_forward(forward, threads);
      k.norm.layer_norm_backward(backward, threads);
      k.cross_entropy.with_grad(shard, d_loss.data(), loss[i].data(), nullptr, d_logits[i].data(),
                                threads);
      max[i].resize(kRows), exps[i].resize(kRows), target[i].resize(kRows);
      max_bf16[i].resize(kRows);
      k.cross_entropy.row_max(shard, max[i].data(), threads);
      k.cross_entropy.row_max_bf16(shard, max_bf16[i].data(), threads);
      k.cross_entropy.sum_exp(shard, max[i].data(), exps[i].data(), target[i].data(), threads);
      if (i == 0) continue;
      shard.logits_bf16 = in_place.data();
      k.cross_entropy.with_grad(shard, d_loss.data(), loss[i].data(), nullptr, in_place.data(),
                                threads);
    }
    EXPECT_TRUE(SameBits(sum[0], sum[1]));
    EXPECT_EQ(y[0], y[1]);
    EXPECT_EQ(d_logits[0], in_place);
    EXPECT_EQ(d_logits[0], d_logits[1]);
    EXPECT_TRUE(SameBits(max[0], max[1]));
    EXPECT_TRUE(SameBits(max[0], Wide(max_bf16[0])));
    EXPECT_EQ(max_bf16[0], max_bf16[1]);
    EXPECT_TRUE(SameBits(target[0], target[1]));
    ExpectNear(exps[1], Doubles(exps[0]), 1e-6, 1e-6);
    ExpectNear(loss[1], Doubles(loss[0]), 1e-6, 1e-6);
    ExpectNear(grad[1], Doubles(grad[0]), 1e-6, 1e-6);
  });
}

}  // namespace
}  // namespace shardc::cpu
