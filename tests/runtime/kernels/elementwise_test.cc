#include "runtime/cpu/kernels/elementwise.h"

#include <bit>
#include <limits>

#include "tests/runtime/kernels/kernel_test_util.h"
#include "tests/runtime/native_f16.h"

namespace shardc::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double GeluTanh(double x) {
  return x * Sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}
double GeluErf(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2)); }

double Exact(UnaryOp op, double x) {
  switch (op) {
    case UnaryOp::kNeg:
      return -x;
    case UnaryOp::kAbs:
      return std::abs(x);
    case UnaryOp::kSquare:
      return x * x;
    case UnaryOp::kSqrt:
      return std::sqrt(x);
    case UnaryOp::kRsqrt:
      return 1 / std::sqrt(x);
    case UnaryOp::kReciprocal:
      return 1 / x;
    case UnaryOp::kExp:
      return std::exp(x);
    case UnaryOp::kLog:
      return std::log(x);
    case UnaryOp::kLog1p:
      return std::log1p(x);
    case UnaryOp::kSin:
      return std::sin(x);
    case UnaryOp::kCos:
      return std::cos(x);
    case UnaryOp::kAsin:
      return std::asin(x);
    case UnaryOp::kAcos:
      return std::acos(x);
    case UnaryOp::kAtan:
      return std::atan(x);
    case UnaryOp::kSinh:
      return std::sinh(x);
    case UnaryOp::kCosh:
      return std::cosh(x);
    case UnaryOp::kAsinh:
      return std::asinh(x);
    case UnaryOp::kAcosh:
      return std::acosh(x);
    case UnaryOp::kAtanh:
      return std::atanh(x);
    case UnaryOp::kTanh:
      return std::tanh(x);
    case UnaryOp::kErf:
      return std::erf(x);
    case UnaryOp::kSigmoid:
      return Sigmoid(x);
    case UnaryOp::kRelu:
      return x > 0 ? x : 0;
    case UnaryOp::kSilu:
      return x * Sigmoid(x);
    case UnaryOp::kGeluTanh:
      return GeluTanh(x);
    case UnaryOp::kGeluErf:
      return GeluErf(x);
  }
  return 0;
}

// Some number for which the function is defined, from x in (-8, 8).
float InDomain(UnaryOp op, float x) {
  switch (op) {
    case UnaryOp::kSqrt:
    case UnaryOp::kRsqrt:
    case UnaryOp::kLog:
    case UnaryOp::kLog1p:
      return std::abs(x) + 1e-3F;
    case UnaryOp::kAcosh:
      return std::abs(x) + 1;
    case UnaryOp::kAsin:
    case UnaryOp::kAcos:
    case UnaryOp::kAtanh:
      return x / 8;
    default:
      return x;
  }
}

// |got - want| in units of the last place of the f32 nearest to want.
double UlpError(float got, double want) {
  const float nearest = static_cast<float>(want);
  if (std::isinf(nearest)) return got == nearest ? 0 : kInf;
  const float magnitude = std::max(std::abs(nearest), std::numeric_limits<float>::min());
  const double ulp = double{std::nextafter(magnitude, kInf)} - magnitude;
  return std::abs(got - want) / ulp;
}

// Every 977th f32 with |x| <= limit, both signs.
std::vector<float> Sweep(float limit) {
  std::vector<float> x;
  for (uint32_t u = 0; u <= std::bit_cast<uint32_t>(limit); u += 977) {
    x.push_back(std::bit_cast<float>(u));
    x.push_back(-x.back());
  }
  return x;
}

TEST(Elementwise, ElementaryFunctionsInUlp) {
  struct {
    UnaryOp op;
    float limit;
    double ulp;
    double ulp_v1;  // without FMA
  } cases[] = {{UnaryOp::kExp, 110, 1.1, 1.5},
               {UnaryOp::kTanh, 50, 1.5, 2},
               {UnaryOp::kErf, 50, 1.5, 2},
               {UnaryOp::kSqrt, kInf, 0.51, 0.51}};
  for (const auto& c : cases) {
    std::vector<float> x = Sweep(c.limit);
    if (c.op == UnaryOp::kSqrt) {
      for (float& v : x) v = std::abs(v);
    }
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      std::vector<float> y(x.size());
      k.elementwise.unary(c.op, x.data(), y.data(), static_cast<int64_t>(x.size()), threads);
      double worst = 0;
      float at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = UlpError(y[i], Exact(c.op, x[i]));
        if (error > worst) worst = error, at = x[i];
      }
      const bool v1 = &k == &KernelsFor(Isa::kV1);
      EXPECT_LE(worst, v1 ? c.ulp_v1 : c.ulp) << "op " << static_cast<int>(c.op) << " at " << at;
    });
  }
}

TEST(Elementwise, UnaryAndSpecialValues) {
  for (int op = 0; op <= static_cast<int>(UnaryOp::kGeluErf); ++op) {
    const auto which = static_cast<UnaryOp>(op);
    for (int64_t n : {0, 1, 17, 257, 70001}) {
      auto x = RandomVector(n, 3, 8);
      std::vector<double> want;
      for (float& v : x) {
        v = InDomain(which, v);
        want.push_back(Exact(which, v));
      }
      ForEveryKernelSet([&](const KernelTable& k, int threads) {
        auto y = x;
        k.elementwise.unary(which, y.data(), y.data(), n, threads);
        ExpectNear(y, want, 1e-6, 4e-7);
      });
    }
  }
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    const auto at = [&](UnaryOp op, float x) {
      float y = 0;
      k.elementwise.unary(op, &x, &y, 1, threads);
      return y;
    };
    EXPECT_EQ(at(UnaryOp::kExp, -kInf), 0);
    EXPECT_EQ(at(UnaryOp::kExp, kInf), kInf);
    EXPECT_EQ(at(UnaryOp::kExp, 0), 1);
    EXPECT_EQ(at(UnaryOp::kLog1p, 1e-12F), 1e-12F);
    EXPECT_EQ(at(UnaryOp::kTanh, kInf), 1);
    EXPECT_EQ(at(UnaryOp::kTanh, -kInf), -1);
    EXPECT_EQ(at(UnaryOp::kErf, -kInf), -1);
    EXPECT_EQ(at(UnaryOp::kSigmoid, -kInf), 0);
    EXPECT_EQ(at(UnaryOp::kGeluTanh, -100), 0);
    EXPECT_EQ(at(UnaryOp::kGeluErf, 100), 100);
    for (int op = 0; op <= static_cast<int>(UnaryOp::kGeluErf); ++op) {
      EXPECT_TRUE(std::isnan(at(static_cast<UnaryOp>(op), kNan))) << op;
    }
  });
}

TEST(Elementwise, Gradients) {
  const auto slope = [](UnaryGradOp op, double s) {
    const double h = 1e-5;
    switch (op) {
      case UnaryGradOp::kTanhFromOutput:
        return 1 - s * s;
      case UnaryGradOp::kSigmoidFromOutput:
        return s * (1 - s);
      case UnaryGradOp::kRelu:
        return s > 0 ? 1.0 : 0.0;
      case UnaryGradOp::kSilu:
        return Sigmoid(s) * (1 + s * (1 - Sigmoid(s)));
      case UnaryGradOp::kGeluTanh:
        return (GeluTanh(s + h) - GeluTanh(s - h)) / (2 * h);
      case UnaryGradOp::kGeluErf:
        return (GeluErf(s + h) - GeluErf(s - h)) / (2 * h);
    }
    return 0.0;
  };
  for (int op = 0; op <= static_cast<int>(UnaryGradOp::kGeluErf); ++op) {
    const int64_t n = 50001;
    const auto saved = RandomVector(n, 4, 9), dy = RandomVector(n, 5);
    std::vector<double> want;
    for (int64_t i = 0; i < n; ++i) {
      want.push_back(dy[i] * slope(static_cast<UnaryGradOp>(op), saved[i]));
    }
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      auto dx = dy;
      k.elementwise.unary_grad(static_cast<UnaryGradOp>(op), saved.data(), dx.data(), dx.data(), n,
                               threads);
      ExpectNear(dx, want, 2e-6, 1e-6);
    });
  }
  // Far out the slopes are 0 and 1, not NaN.
  ForEveryKernelSet([](const KernelTable& k, int threads) {
    for (UnaryGradOp op : {UnaryGradOp::kGeluTanh, UnaryGradOp::kGeluErf, UnaryGradOp::kSilu}) {
      const float x[] = {-1e30F, 1e30F}, dy[] = {1, 1};
      float dx[2];
      k.elementwise.unary_grad(op, x, dy, dx, 2, threads);
      EXPECT_EQ(dx[0], 0);
      EXPECT_EQ(dx[1], 1);
    }
  });
}

double Exact(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
    case BinaryOp::kPow:
      return std::pow(a, b);
    case BinaryOp::kMin:
      return std::min(a, b);
    case BinaryOp::kMax:
      return std::max(a, b);
  }
  return 0;
}

TEST(Elementwise, BinaryBroadcasts) {
  for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {5, 257}, {301, 131}, {70, 1}}) {
    for (int form = 0; form < 4; ++form) {
      for (bool swapped : {false, true}) {
        const auto broadcast = static_cast<Broadcast>(form);
        const int64_t b_size[] = {rows * cols, 1, cols, rows};
        auto a = RandomVector(rows * cols, 1), b = RandomVector(b_size[form], 2);
        for (float& x : a) x += x > 0 ? 0.5F : -0.5F;
        for (float& x : b) x += x > 0 ? 0.5F : -0.5F;
        const auto b_at = [&](int64_t i) -> double {
          const int64_t at[] = {i, 0, i % cols, i / cols};
          return b[at[form]];
        };
        for (int op = 0; op <= static_cast<int>(BinaryOp::kMax); ++op) {
          const bool pow = static_cast<BinaryOp>(op) == BinaryOp::kPow;
          auto base = a;
          auto exponent = b;
          if (pow) {
            for (float& x : base) x = std::abs(x);
            for (float& x : exponent) x = std::abs(x);
          }
          std::vector<double> want;
          for (int64_t i = 0; i < rows * cols; ++i) {
            const double y = pow ? std::abs(b_at(i)) : b_at(i);
            want.push_back(
                Exact(static_cast<BinaryOp>(op), swapped ? y : base[i], swapped ? base[i] : y));
          }
          ForEveryKernelSet([&](const KernelTable& k, int threads) {
            auto y = base;
            k.elementwise.binary(static_cast<BinaryOp>(op),
                                 {.a = y.data(),
                                  .b = exponent.data(),
                                  .rows = rows,
                                  .cols = cols,
                                  .broadcast = broadcast,
                                  .swapped = swapped},
                                 y.data(), threads);
            ExpectNear(y, want, 1e-6, 1e-7);
          });
        }
        ForEveryKernelSet([&](const KernelTable& k, int threads) {
          std::vector<uint8_t> y(a.size());
          for (auto op : {CompareOp::kLess, CompareOp::kGreaterEqual}) {
            k.elementwise.compare(op,
                                  {.a = a.data(),
                                   .b = b.data(),
                                   .rows = rows,
                                   .cols = cols,
                                   .broadcast = broadcast,
                                   .swapped = swapped},
                                  y.data(), threads);
            for (size_t i = 0; i < y.size(); ++i) {
              const double p = swapped ? b_at(i) : a[i], q = swapped ? a[i] : b_at(i);
              ASSERT_EQ(y[i], (op == CompareOp::kLess ? p < q : p >= q) ? 1 : 0);
            }
          }
        });
      }
    }
  }
}

TEST(Elementwise, MinAndMaxKeepNan) {
  ForEveryKernelSet([](const KernelTable& k, int threads) {
    const float a[] = {kNan, 1}, b[] = {1, kNan};
    for (BinaryOp op : {BinaryOp::kMin, BinaryOp::kMax}) {
      float y[2];
      k.elementwise.binary(op, {.a = a, .b = b, .cols = 2}, y, threads);
      EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
    }
  });
}

TEST(Elementwise, ComparesEqualAndUnordered) {
  const std::vector<float> numbers = {-kInf, -1, -0.0F, 0, 1, kInf, kNan};
  std::vector<float> a, b;
  for (float x : numbers) {
    for (float y : numbers) a.push_back(x), b.push_back(y);
  }
  const auto exact = [](CompareOp op, float x, float y) {
    switch (op) {
      case CompareOp::kEqual:
        return x == y;
      case CompareOp::kNotEqual:
        return x != y;
      case CompareOp::kLess:
        return x < y;
      case CompareOp::kLessEqual:
        return x <= y;
      case CompareOp::kGreater:
        return x > y;
      case CompareOp::kGreaterEqual:
        return x >= y;
    }
    return false;
  };
  const auto n = static_cast<int64_t>(a.size());
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    for (int op = 0; op <= static_cast<int>(CompareOp::kGreaterEqual); ++op) {
      std::vector<uint8_t> y(a.size());
      k.elementwise.compare(static_cast<CompareOp>(op), {.a = a.data(), .b = b.data(), .cols = n},
                            y.data(), threads);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(y[i], exact(static_cast<CompareOp>(op), a[i], b[i])) << a[i] << " " << b[i];
      }
    }
  });
}

TEST(Elementwise, WhereAxpyAffine) {
  const int64_t n = 40001;
  const auto a = RandomVector(n, 1), b = RandomVector(n, 2);
  std::vector<uint8_t> condition(n);
  for (int64_t i = 0; i < n; ++i) condition[i] = i % 3 == 0 ? 200 : 0;
  ForEveryKernelSet([&](const KernelTable& k, int threads) {
    std::vector<float> y(n);
    for (int form = 0; form < 4; ++form) {
      const float* pa = (form & 1) != 0 ? nullptr : a.data();
      const float* pb = (form & 2) != 0 ? nullptr : b.data();
      k.elementwise.where(condition.data(), pa, 3, pb, -kInf, y.data(), n, threads);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(y[i],
                  condition[i] != 0 ? (pa != nullptr ? a[i] : 3) : (pb != nullptr ? b[i] : -kInf));
      }
    }
    y = b;
    k.elementwise.axpy(-0.5F, a.data(), y.data(), n, threads);
    for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(y[i], b[i] - 0.5 * a[i], 1e-6);
    k.elementwise.affine(a.data(), 3, -1, y.data(), n, threads);
    for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(y[i], 3.0 * a[i] - 1, 1e-6);
  });
}

// IEEE binary16 and bfloat16 by the compiler's own types, which round correctly.
TEST(Cast, HalfTypesExhaustively) {
  ForEveryKernelSet([](const KernelTable& k, int threads) {
    std::vector<uint16_t> all(65536), back(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> f(65536);
    k.cast.f16_to_f32(all.data(), f.data(), 65536, threads);
    k.cast.f32_to_f16(f.data(), back.data(), 65536, threads);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto want = static_cast<float>(std::bit_cast<NativeF16>(all[i]));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(f[i]));
        ASSERT_GT(back[i] & 0x7fff, 0x7c00);
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(f[i]), std::bit_cast<uint32_t>(want)) << i;
        ASSERT_EQ(back[i], all[i]);
      }
    }
    k.cast.bf16_to_f32(all.data(), f.data(), 65536, threads);
    k.cast.f32_to_bf16(f.data(), back.data(), 65536, threads);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(f[i]) >> 16, i);
      if (!std::isnan(f[i])) {
        ASSERT_EQ(back[i], all[i]);
      }
    }
    const auto x = Sweep(kInf);
    std::vector<uint16_t> h(x.size()), b(x.size());
    k.cast.f32_to_f16(x.data(), h.data(), static_cast<int64_t>(x.size()), threads);
    k.cast.f32_to_bf16(x.data(), b.data(), static_cast<int64_t>(x.size()), threads);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(h[i], std::bit_cast<uint16_t>(static_cast<NativeF16>(x[i]))) << x[i];
      const uint32_t u = std::bit_cast<uint32_t>(x[i]);
      const uint32_t low = u & 0xffff, up = low > 0x8000 || (low == 0x8000 && ((u >> 16) & 1) != 0);
      ASSERT_EQ(b[i], static_cast<uint16_t>((u >> 16) + up)) << x[i];
    }
  });
}

TEST(Cast, OtherTypes) {
  ForEveryKernelSet([](const KernelTable& k, int threads) {
    const int64_t n = 33001;
    auto x = RandomVector(n, 1, 1e6F);
    x[0] = 0;
    x[1] = -0.0F;
    x[2] = kNan;
    std::vector<double> d(n);
    std::vector<float> f(n);
    std::vector<uint8_t> b(n);
    k.cast.f32_to_f64(x.data(), d.data(), n, threads);
    k.cast.f64_to_f32(d.data(), f.data(), n, threads);
    k.cast.f32_to_bool(x.data(), b.data(), n, threads);
    EXPECT_TRUE(b[0] == 0 && b[1] == 0 && b[2] == 1 && b[3] == 1);
    EXPECT_TRUE(SameBits(f, x));
    k.cast.bool_to_f32(b.data(), f.data(), n, threads);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(f[i], b[i]);
    x[2] = -1.75F;
    std::vector<int64_t> whole(n);
    k.cast.f32_to_i64(x.data(), whole.data(), n, threads);
    k.cast.i64_to_f32(whole.data(), f.data(), n, threads);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(whole[i], static_cast<int64_t>(x[i]));
      ASSERT_EQ(f[i], static_cast<float>(whole[i]));
    }
  });
}

}  // namespace
}  // namespace shardc::cpu
