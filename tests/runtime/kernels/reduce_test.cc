#include "runtime/cpu/kernels/reduce.h"

#include <array>
#include <limits>

#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

TEST(Reduce, AgainstF64) {
  for (auto [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 257}, {1000, 65}, {64, 3001}, {5000, 3}}) {
    const auto x = RandomVector(rows * cols, 1), start = RandomVector(cols, 2);
    std::vector<double> columns(cols), sums(rows), added(start.begin(), start.end());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        columns[c] += x[r * cols + c];
        added[c] += x[r * cols + c];
        sums[r] += x[r * cols + c];
      }
    }
    std::vector<float> first;
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      std::vector<float> y = start, s(rows);
      k.reduce.sum_rows(x.data(), y.data(), rows, cols, true, threads);
      ExpectNear(y, added, 1e-6, 2e-5);
      k.reduce.sum_rows(x.data(), y.data(), rows, cols, false, threads);
      ExpectNear(y, columns, 1e-6, 2e-5);
      k.reduce.sum_last(x.data(), s.data(), rows, cols, threads);
      ExpectNear(s, sums, 1e-6, 1e-5);
      if (first.empty()) first = y;
      EXPECT_TRUE(SameBits(y, first));
    });
  }
}

TEST(Reduce, OverTheMiddle) {
  for (auto [outer, rows, cols] :
       {std::array<int64_t, 3>{1, 40, 7}, {3, 200, 130}, {2, 3, 20000}, {700, 2, 33}}) {
    const auto x = RandomVector(outer * rows * cols, 1);
    std::vector<double> want(outer * cols);
    for (int64_t i = 0; i < outer * rows * cols; ++i) {
      want[i / (rows * cols) * cols + i % cols] += x[i];
    }
    std::vector<float> first;
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      std::vector<float> y(outer * cols, 7);
      k.reduce.sum_middle(x.data(), y.data(), outer, rows, cols, threads);
      ExpectNear(y, want, 1e-6, 2e-5);
      if (first.empty()) first = y;
      EXPECT_TRUE(SameBits(y, first));
    });
  }
}

TEST(Reduce, Totals) {
  for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{3000017}}) {
    auto x = RandomVector(n, 1);
    for (float& v : x) v += 0.25F;
    double sum = 0, squares = 0;
    for (float v : x) {
      sum += v;
      squares += double{v} * v;
    }
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      double got = -1;
      k.reduce.sum(x.data(), n, &got, threads);
      EXPECT_NEAR(got, sum, 1e-6 * std::abs(sum) + 1e-6);
      k.reduce.sum_squares(x.data(), n, &got, threads);
      EXPECT_NEAR(got, squares, 1e-6 * squares + 1e-6);
    });
  }
}

TEST(Optimizer, AdamWFollowsPyTorch) {
  const int64_t n = 40003;
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    auto w = RandomVector(n, 1), m = std::vector<float>(n), v = m;
    std::vector<double> dw(w.begin(), w.end()), dm(n), dv(n);
    AdamWArgs a{.w = w.data(), .m = m.data(), .v = v.data(), .n = n};
    a.lr = 1e-2, a.beta1 = 0.9, a.beta2 = 0.95, a.eps = 1e-8;
    a.weight_decay = 0.1, a.grad_scale = 0.5;
    for (int t = 1; t <= 5; ++t) {
      const auto g = RandomVector(n, 10 + t);
      a.g = g.data();
      a.step = t;
      k.optimizer.adamw(a, threads);
      for (int64_t i = 0; i < n; ++i) {
        const double grad = 0.5 * g[i];
        dw[i] *= 1 - 1e-2 * 0.1;
        dm[i] = 0.9 * dm[i] + 0.1 * grad;
        dv[i] = 0.95 * dv[i] + 0.05 * grad * grad;
        dw[i] -= 1e-2 / (1 - std::pow(0.9, t)) * dm[i] /
                 (std::sqrt(dv[i]) / std::sqrt(1 - std::pow(0.95, t)) + 1e-8);
      }
    }
    ExpectNear(w, dw, 1e-5, 1e-5, "w");
    ExpectNear(m, dm, 1e-5, 1e-6, "m");
    ExpectNear(v, dv, 1e-5, 1e-7, "v");
  });
}

TEST(Optimizer, SgdWithMomentum) {
  const int64_t n = 33333;
  for (bool nesterov : {false, true}) {
    for (double momentum : {0.0, 0.9}) {
      ForEveryKernelSet([&](const KernelTable& k, int threads) {
        auto w = RandomVector(n, 1);
        std::vector<float> buffer(n);
        std::vector<double> dw(w.begin(), w.end()), db(n);
        SgdArgs a{.w = w.data(), .n = n, .lr = 0.1, .momentum = momentum, .weight_decay = 0.01};
        if (momentum != 0) a.momentum_buffer = buffer.data();
        a.grad_scale = 2;
        a.nesterov = nesterov && momentum != 0;
        for (int t = 0; t < 4; ++t) {
          const auto g = RandomVector(n, 20 + t);
          a.g = g.data();
          k.optimizer.sgd(a, threads);
          for (int64_t i = 0; i < n; ++i) {
            const double grad = 2.0 * g[i] + 0.01 * dw[i];
            db[i] = momentum * db[i] + grad;
            dw[i] -= 0.1 * (a.nesterov ? grad + momentum * db[i] : db[i]);
          }
        }
        ExpectNear(w, dw, 1e-5, 1e-5);
      });
    }
  }
}

}  // namespace
}  // namespace shardc::cpu
