#include <algorithm>
#include <array>
#include <limits>

#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

constexpr int64_t kIgnore = -100;

// Among them those on either side of `cut`.
std::vector<int64_t> Labels(int64_t rows, int64_t vocab, int64_t cut, int64_t ignore) {
  std::vector<int64_t> labels(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) labels[r] = r % 5 == 3 ? ignore : r * 7919 % vocab;
  labels[0] = cut;
  if (rows > 1) labels[1] = cut - 1;
  if (rows > 2) labels.back() = vocab - 1;
  return labels;
}

void Check(int64_t rows, int64_t vocab, int64_t padding, int64_t ignore = kIgnore) {
  SCOPED_TRACE(testing::Message() << rows << "x" << vocab << "+" << padding);
  const int64_t cut = vocab / 3;  // of two shards
  const int64_t stride = vocab + padding;
  auto logits = RandomVector(rows * stride, 1, 20);
  // Padding holds what must never be seen.
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = vocab; c < stride; ++c) logits[r * stride + c] = 1e30F;
  }
  const auto labels = Labels(rows, vocab, cut, ignore);
  const auto d_loss = RandomVector(rows, 2);
  std::vector<double> loss(rows), lse(rows), d_logits(rows * stride);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < vocab; ++c) sum += std::exp(double{logits[r * stride + c]});
    lse[r] = std::log(sum);
    if (labels[r] == ignore) continue;
    loss[r] = lse[r] - logits[r * stride + labels[r]];
    for (int64_t c = 0; c < vocab; ++c) {
      const double p = std::exp(logits[r * stride + c] - lse[r]);
      d_logits[r * stride + c] = d_loss[r] * (p - (c == labels[r] ? 1 : 0));
    }
  }
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    const LogitShard all{logits.data(), rows, stride, vocab, labels.data(), 0, ignore};
    std::vector<float> got_loss(rows), got_lse(rows), d(logits.size());
    k.cross_entropy.forward(all, got_loss.data(), got_lse.data(), threads);
    ExpectNear(got_loss, loss, 2e-6, 2e-6, "loss");
    ExpectNear(got_lse, lse, 1e-6, 1e-6, "lse");
    k.cross_entropy.backward(all, d_loss.data(), got_lse.data(), d.data(), threads);
    ExpectNear(d, d_logits, 1e-5, 1e-7, "d_logits");
    auto in_place = logits;
    LogitShard over = all;
    over.logits = in_place.data();
    k.cross_entropy.backward(over, d_loss.data(), got_lse.data(), in_place.data(), threads);
    EXPECT_TRUE(SameBits(in_place, d));

    // Both at once: the same bits, also over the logits and in bf16.
    std::vector<float> both_loss(rows), both(logits.size());
    std::vector<uint16_t> halves(logits.size()), both_halves(logits.size());
    k.cross_entropy.with_grad(all, d_loss.data(), both_loss.data(), both.data(), nullptr, threads);
    EXPECT_TRUE(SameBits(both_loss, got_loss));
    EXPECT_TRUE(SameBits(both, d));
    in_place = logits;
    k.cross_entropy.with_grad(over, d_loss.data(), both_loss.data(), in_place.data(), nullptr,
                              threads);
    EXPECT_TRUE(SameBits(in_place, d));
    k.cross_entropy.backward_bf16(all, d_loss.data(), got_lse.data(), halves.data(), threads);
    k.cross_entropy.with_grad(all, d_loss.data(), both_loss.data(), nullptr, both_halves.data(),
                              threads);
    EXPECT_EQ(both_halves, halves);

    // Two shards, put together as the runtime does.
    std::vector<float> max[2], sum[2], target[2];
    for (int s = 0; s < 2; ++s) {
      LogitShard shard = all;
      shard.logits += s == 0 ? 0 : cut;
      shard.valid = s == 0 ? cut : vocab - cut;
      shard.vocab_offset = s == 0 ? 0 : cut;
      max[s].resize(rows), sum[s].resize(rows), target[s].resize(rows);
      k.cross_entropy.row_max(shard, max[s].data(), threads);
      k.cross_entropy.sum_exp(shard, max[s].data(), sum[s].data(), target[s].data(), threads);
      // Dense, with something behind it that is to stay.
      shard.stride = shard.valid;
      std::vector<float> dense(rows * shard.valid), own(rows * shard.valid + vocab, 5);
      std::vector<double> want(own.size(), 5);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t from = r * stride + shard.vocab_offset;
        std::copy_n(&logits[from], shard.valid, &dense[r * shard.valid]);
        std::copy_n(&d_logits[from], shard.valid, &want[r * shard.valid]);
      }
      shard.logits = dense.data();
      k.cross_entropy.backward(shard, d_loss.data(), got_lse.data(), own.data(), threads);
      ExpectNear(own, want, 1e-5, 1e-7, "d_logits of a shard");
    }
    for (int64_t r = 0; r < rows; ++r) {
      const double m = std::max(max[0][r], max[1][r]);
      const double s = sum[0][r] * std::exp(max[0][r] - m) + sum[1][r] * std::exp(max[1][r] - m);
      ASSERT_NEAR(m + std::log(s), lse[r], 1e-5);
      if (labels[r] != ignore) {
        ASSERT_NEAR(m + std::log(s) - target[0][r] - target[1][r], loss[r], 1e-4);
      } else {
        ASSERT_EQ(target[0][r] + target[1][r], 0);
      }
    }
  });
}

TEST(CrossEntropy, AgainstF64) {
  Check(1, 3, 0);
  Check(7, 257, 3);
  Check(5, 50257, 15);
  Check(40, 1000, 24);
  Check(9, 100, 0, 50);  // ignores a token of the vocabulary
}

// exp of a logit overflows and underflows unless the greatest of its row was taken from it,
// wherever that is. Blocks of an online sum have 2048 columns.
TEST(CrossEntropy, LogitsFarApart) {
  for (int64_t cols : {5, 100, 4133}) {
    std::vector<int64_t> places;
    for (int64_t c = 0; c < cols; c += c < 70 ? 1 : 241) places.push_back(c);
    const auto rows = static_cast<int64_t>(places.size());
    std::vector<float> logits(rows * cols, -200);
    std::vector<int64_t> labels(rows);
    std::vector<double> loss(rows), lse(rows, 200);
    for (int64_t r = 0; r < rows; ++r) {
      logits[r * cols + places[r]] = 200;
      labels[r] = r % 2 == 0 ? places[r] : (places[r] + 1) % cols;
      loss[r] = r % 2 == 0 ? 0 : 400;
    }
    std::fill_n(logits.end() - cols, cols, -200);  // the last row: all alike
    lse.back() = std::log(static_cast<double>(cols)) - 200;
    loss.back() = std::log(static_cast<double>(cols));
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      const LogitShard all{logits.data(), rows, cols, cols, labels.data(), 0, kIgnore};
      std::vector<float> got(rows), got_lse(rows);
      k.cross_entropy.forward(all, got.data(), got_lse.data(), threads);
      ExpectNear(got, loss, 1e-6, 1e-6, "loss");
      ExpectNear(got_lse, lse, 1e-6, 1e-6, "lse");
    });
  }
}

TEST(CrossEntropy, ShardOfPaddingOnly) {
  ForEveryKernelSet([](const KernelTable& k, int threads) {
    const std::vector<float> logits(8, 1e30F);
    const std::vector<int64_t> labels = {1, 2};
    const LogitShard shard{logits.data(), 2, 4, 0, labels.data(), 100, kIgnore};
    std::vector<float> max(2), sum(2), target(2), d(8, 5), lse(2, 1);
    k.cross_entropy.row_max(shard, max.data(), threads);
    EXPECT_EQ(max[0], -std::numeric_limits<float>::infinity());
    k.cross_entropy.sum_exp(shard, max.data(), sum.data(), target.data(), threads);
    EXPECT_EQ(sum, std::vector<float>(2, 0));
    EXPECT_EQ(target, std::vector<float>(2, 0));
    k.cross_entropy.backward(shard, lse.data(), lse.data(), d.data(), threads);
    EXPECT_EQ(d, std::vector<float>(8, 0));
  });
}

// Also where the maximum is a result of its own, of any number of columns.
TEST(CrossEntropy, MaximumOfNanIsNan) {
  for (int64_t cols : {1, 5, 64, 100}) {
    for (int64_t at = 0; at < cols; ++at) {
      auto x = RandomVector(cols, 1);
      const float want = *std::max_element(x.begin(), x.end());
      ForEveryKernelSet([&](const KernelTable& k, int threads) {
        float max = 0;
        k.cross_entropy.row_max({x.data(), 1, cols, cols}, &max, threads);
        EXPECT_EQ(max, want);
        std::vector<float> bad = x;
        bad[at] = std::numeric_limits<float>::quiet_NaN();
        k.cross_entropy.row_max({bad.data(), 1, cols, cols}, &max, threads);
        EXPECT_TRUE(std::isnan(max)) << at << " of " << cols;
        std::vector<uint16_t> halves(cols, 0x3f80);
        halves[at] = 0x7fc0;
        uint16_t half = 0;
        const LogitShard shard{
            .rows = 1, .stride = cols, .valid = cols, .logits_bf16 = halves.data()};
        k.cross_entropy.row_max_bf16(shard, &half, threads);
        EXPECT_EQ(half, 0x7fc0) << at << " of " << cols;
      });
    }
  }
}

TEST(CrossEntropy, NanReachesTheLoss) {
  ForEveryKernelSet([](const KernelTable& k, int threads) {
    auto logits = RandomVector(40, 1);
    logits[25] = std::numeric_limits<float>::quiet_NaN();
    const int64_t label = 3;
    float loss = 0, lse = 0;
    k.cross_entropy.forward({logits.data(), 1, 40, 40, &label, 0, kIgnore}, &loss, &lse, threads);
    EXPECT_TRUE(std::isnan(loss));
  });
}

TEST(Softmax, AgainstF64) {
  for (auto [rows, cols, inner] : {std::array<int64_t, 3>{1, 1, 1},
                                   {3, 257, 1},
                                   {100, 33, 1},
                                   {2, 50257, 1},
                                   {1, 1, 3},
                                   {3, 57, 2},
                                   {2, 200, 19},
                                   {70, 5, 16},
                                   {2, 31, 261}}) {
    const int64_t size = rows * cols * inner;
    const auto x = RandomVector(size, 1, 30), dy = RandomVector(size, 2);
    std::vector<double> y(x.size()), dx(x.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < inner; ++i) {
        const auto at = [&](int64_t c) { return (r * cols + c) * inner + i; };
        double sum = 0, dot = 0;
        for (int64_t c = 0; c < cols; ++c) sum += std::exp(double{x[at(c)]});
        for (int64_t c = 0; c < cols; ++c) {
          y[at(c)] = std::exp(double{x[at(c)]}) / sum;
          dot += y[at(c)] * dy[at(c)];
        }
        for (int64_t c = 0; c < cols; ++c) dx[at(c)] = y[at(c)] * (dy[at(c)] - dot);
      }
    }
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      auto got = x;
      k.softmax.forward(got.data(), got.data(), rows, cols, inner, threads);
      // x - max is rounded at a magnitude of up to 60.
      ExpectNear(got, y, 6e-6, 1e-30, "y");
      auto grad = dy;
      k.softmax.backward(got.data(), grad.data(), grad.data(), rows, cols, inner, threads);
      ExpectNear(grad, dx, 1e-5, 1e-6, "dx");
    });
  }
}

// Each with its greatest elsewhere, the last with none.
TEST(Softmax, NumbersFarApart) {
  for (auto [rows, cols, inner] : {std::array<int64_t, 3>{80, 70, 1}, {9, 12, 1}, {5, 9, 19}}) {
    const int64_t size = rows * cols * inner;
    std::vector<float> x(size, -200);
    std::vector<double> want(size, 0);
    for (int64_t n = 0; n < rows * inner; ++n) {
      const int64_t first = n / inner * cols * inner + n % inner;
      const bool last = n + 1 == rows * inner;
      for (int64_t c = 0; last && c < cols; ++c) {
        want[first + c * inner] = 1 / static_cast<double>(cols);
      }
      if (last) continue;
      x[first + n % cols * inner] = 200;
      want[first + n % cols * inner] = 1;
    }
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      std::vector<float> y(size);
      k.softmax.forward(x.data(), y.data(), rows, cols, inner, threads);
      ExpectNear(y, want, 1e-6, 0);
    });
  }
}

TEST(Softmax, NothingButMinusInfinityIsNan) {
  for (int64_t inner : {1, 5, 20}) {
    std::vector<float> x(3 * inner, -std::numeric_limits<float>::infinity());
    if (inner > 1) x[1] = 0;
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      std::vector<float> y(x.size());
      k.softmax.forward(x.data(), y.data(), 1, 3, inner, threads);
      EXPECT_TRUE(std::isnan(y[0]));
      EXPECT_TRUE(std::isnan(y.back()));
      EXPECT_TRUE(inner == 1 || y[1] == 1);
    });
  }
}

}  // namespace
}  // namespace shardc::cpu
