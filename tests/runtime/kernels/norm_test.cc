#include <cstring>

#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

struct Case {
  int64_t rows, cols;
  bool centered, w, b, residual;
};

// To bf16, to nearest even.
uint16_t Rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void Check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << "x" << c.cols << " centered " << c.centered << " w "
                                  << c.w << " b " << c.b << " residual " << c.residual);
  const int64_t size = c.rows * c.cols;
  const auto x = RandomVector(size, 1, 3), residual = RandomVector(size, 2, 3);
  const auto w = RandomVector(c.cols, 3), b = RandomVector(c.cols, 4);
  const auto dy = RandomVector(size, 5), extra = RandomVector(size, 6);
  const double eps = 1e-5;
  std::vector<double> in(size), y(size), mean(c.rows), rstd(c.rows), dx(size), dw(c.cols),
      db(c.cols);
  for (int64_t r = 0; r < c.rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < c.cols; ++i) {
      in[r * c.cols + i] = double{x[r * c.cols + i]} + (c.residual ? residual[r * c.cols + i] : 0);
      sum += in[r * c.cols + i];
    }
    mean[r] = c.centered ? sum / c.cols : 0;
    for (int64_t i = 0; i < c.cols; ++i) squares += std::pow(in[r * c.cols + i] - mean[r], 2);
    rstd[r] = 1 / std::sqrt(squares / c.cols + eps);
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < c.cols; ++i) {
      const int64_t at = r * c.cols + i;
      const double xhat = (in[at] - mean[r]) * rstd[r], weight = c.w ? w[i] : 1;
      y[at] = xhat * weight + (c.b && c.centered ? b[i] : 0);
      mean_g += dy[at] * weight / c.cols;
      mean_gx += dy[at] * weight * xhat / c.cols;
      dw[i] += dy[at] * xhat;
      db[i] += dy[at];
    }
    if (!c.centered) mean_g = 0;
    for (int64_t i = 0; i < c.cols; ++i) {
      const int64_t at = r * c.cols + i;
      const double xhat = (in[at] - mean[r]) * rstd[r];
      dx[at] = rstd[r] * (dy[at] * (c.w ? w[i] : 1) - mean_g - xhat * mean_gx) +
               (c.residual ? extra[at] : 0);
    }
  }
  std::vector<float> first_dw;
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    std::vector<float> sum(size), got_y(size), got_mean(c.rows), got_rstd(c.rows);
    NormForwardArgs f{.x = x.data(), .y = got_y.data(), .rows = c.rows, .cols = c.cols};
    f.eps = static_cast<float>(eps);
    if (c.residual) f.residual = residual.data(), f.sum = sum.data();
    if (c.w) f.w = w.data();
    if (c.b) f.b = b.data();
    f.mean = got_mean.data();
    f.rstd = got_rstd.data();
    (c.centered ? k.norm.layer_norm_forward : k.norm.rms_norm_forward)(f, threads);
    ExpectNear(got_y, y, 1e-5, 2e-6, "y");
    if (c.centered) ExpectNear(got_mean, mean, 1e-5, 1e-6, "mean");
    ExpectNear(got_rstd, rstd, 1e-5, 0, "rstd");
    if (c.residual) ExpectNear(sum, in, 1e-6, 1e-6, "sum");

    std::vector<float> got_dx(size), got_dw(c.cols, 9), got_db(c.cols, 9);
    NormBackwardArgs g{.dy = dy.data(), .x = c.residual ? sum.data() : x.data()};
    if (c.w) g.w = w.data();
    g.mean = got_mean.data();
    g.rstd = got_rstd.data();
    if (c.residual) g.residual_grad = extra.data();
    g.dx = got_dx.data(), g.dw = got_dw.data(), g.db = got_db.data();
    g.rows = c.rows, g.cols = c.cols;
    const auto backward = c.centered ? k.norm.layer_norm_backward : k.norm.rms_norm_backward;
    backward(g, threads);
    const double slack = 1e-6 * std::sqrt(static_cast<double>(c.rows) + 16);
    ExpectNear(got_dx, dx, 2e-5, 1e-5, "dx");
    ExpectNear(got_dw, dw, 1e-5, slack, "dw");
    if (c.centered) ExpectNear(got_db, db, 1e-5, slack, "db");
    std::vector<float> copy(size), sums(c.cols, 9);
    std::vector<double> want_sums(c.cols);
    std::vector<uint16_t> rounded(size);
    for (int64_t at = 0; at < size; ++at) want_sums[at % c.cols] += got_dx[at];
    std::vector<float> again(size);
    g.dx_copy = copy.data(), g.dx_bf16 = rounded.data(), g.dx_sums = sums.data();
    if (c.b) g.b = b.data();
    g.y = again.data();
    backward(g, threads);
    EXPECT_TRUE(SameBits(copy, got_dx));
    EXPECT_TRUE(SameBits(again, got_y));
    g.y = nullptr;
    for (int64_t at = 0; at < size; ++at) ASSERT_EQ(rounded[at], Rounded(got_dx[at]));
    ExpectNear(sums, want_sums, 1e-5, slack, "sums of dx");
    g.dx_copy = g.dx_sums = nullptr, g.dx_bf16 = nullptr;
    // dw does not depend on the threads, and not on whether dx is wanted or written over dy.
    if (threads == 1) first_dw = got_dw;
    EXPECT_TRUE(SameBits(got_dw, first_dw));
    auto over = dy;
    g.dy = g.dx = over.data();
    g.dw = g.db = nullptr;
    backward(g, threads);
    EXPECT_TRUE(SameBits(over, got_dx));
  });
}

TEST(Norm, AgainstF64) {
  for (bool centered : {true, false}) {
    for (bool residual : {true, false}) {
      Check({1, 1, centered, true, true, residual});
      Check({3, 257, centered, true, true, residual});
      Check({67, 64, centered, true, false, residual});
      Check({130, 771, centered, true, true, residual});
      Check({1025, 96, centered, false, false, residual});
    }
  }
}

TEST(Norm, NoRows) {
  ForEveryKernelSet([](const KernelTable& k, int threads) {
    std::vector<float> dw(5, 3), db(5, 3);
    k.norm.layer_norm_backward({.dw = dw.data(), .db = db.data(), .rows = 0, .cols = 5}, threads);
    EXPECT_EQ(dw, std::vector<float>(5, 0));
    EXPECT_EQ(db, std::vector<float>(5, 0));
  });
}

}  // namespace
}  // namespace shardc::cpu
