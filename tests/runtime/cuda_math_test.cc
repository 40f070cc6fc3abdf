// The arithmetic that kernels and host share, against the standard library in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "ir/host_tensor.h"
#include "ir/philox.h"
#include "runtime/cuda/kernels/math.h"

namespace shardc::cuda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(CudaMath, HalvesWidenAsTheHostDoes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto b = static_cast<uint16_t>(bits);
    float f16 = Widen(F16{b}), bf16 = Widen(BF16{b});
    if (std::isnan(HalfToFloat(b))) {
      EXPECT_TRUE(std::isnan(f16)) << bits;
    } else {
      EXPECT_EQ(BitCast<uint32_t>(f16), BitCast<uint32_t>(HalfToFloat(b))) << bits;
    }
    if (!std::isnan(bf16)) {
      EXPECT_EQ(BitCast<uint32_t>(bf16), BitCast<uint32_t>(BFloat16ToFloat(b))) << bits;
    }
  }
}

TEST(CudaMath, HalvesRoundAsTheHostDoes) {
  for (uint64_t i = 0; i < (1 << 18); ++i) {
    auto bits = static_cast<uint32_t>(i * 16411);  // over all exponents, with ties among them
    for (uint32_t u : {bits, bits & 0xffffe000u, (bits & 0xffffe000u) | 0x1000u,
                       (bits & 0xffff0000u) | 0x8000u}) {
      float v = BitCast<float>(u);
      if (std::isnan(v)) {
        EXPECT_TRUE(std::isnan(Widen(Narrow<F16>(v))));
        EXPECT_TRUE(std::isnan(Widen(Narrow<BF16>(v))));
        continue;
      }
      ASSERT_EQ(Narrow<F16>(v).bits, FloatToHalf(v)) << v;
      ASSERT_EQ(Narrow<BF16>(v).bits, FloatToBFloat16(v)) << v;
    }
  }
}

TEST(CudaMath, FloatsToIntegersSaturate) {
  EXPECT_EQ((CastElement<int32_t>(1e20f)), std::numeric_limits<int32_t>::max());
  EXPECT_EQ((CastElement<int32_t>(-1e20)), std::numeric_limits<int32_t>::min());
  EXPECT_EQ((CastElement<int64_t>(kInfinity)), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((CastElement<int64_t>(std::nan(""))), 0);
  EXPECT_EQ((CastElement<int32_t>(-2.9f)), -2);
  EXPECT_EQ((CastElement<int32_t>(int64_t{1} << 32 | 5)), 5);
  EXPECT_EQ((CastElement<Bool>(-0.5f).bits), 1);
  EXPECT_EQ((CastElement<float>(Bool{7})), 1);
}

TEST(CudaMath, Activations) {
  for (double x = -6; x <= 6; x += 0.37) {
    double s = 1 / (1 + std::exp(-x)), phi = 0.5 * (1 + std::erf(x / std::numbers::sqrt2));
    double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    EXPECT_NEAR(SigmoidFn()(x), s, 1e-15);
    EXPECT_NEAR(SiluFn()(x), x * s, 1e-14);
    EXPECT_NEAR(GeluErfFn()(x), x * phi, 1e-14);
    EXPECT_NEAR(GeluTanhFn()(x), 0.5 * x * (1 + std::tanh(u)), 1e-14);
    // Gradients against differences.
    auto slope = [&](auto fn) { return (fn(x + 1e-5) - fn(x - 1e-5)) / 2e-5; };
    EXPECT_NEAR(SiluGradFn()(2.0, x), 2 * slope(SiluFn()), 1e-8);
    EXPECT_NEAR(GeluErfGradFn()(2.0, x), 2 * slope(GeluErfFn()), 1e-8);
    EXPECT_NEAR(GeluTanhGradFn()(2.0, x), 2 * slope(GeluTanhFn()), 1e-8);
    EXPECT_NEAR(TanhGradFn()(2.0, std::tanh(x)), 2 * slope(TanhFn()), 1e-8);
    EXPECT_NEAR(SigmoidGradFn()(2.0, s), 2 * slope(SigmoidFn()), 1e-8);
  }
}

// As exact as CUDA says that a GPU's instructions are: any number within that of the right one.
struct Rough {
  static inline double exp_units = 0, div_units = 0;
  static float Off(double y, double units) {
    if (y == 0 || !std::isfinite(y)) return static_cast<float>(y);
    const double unit = std::ldexp(1.0, std::ilogb(y) - 23);
    y += units * unit;
    return std::abs(y) < 0x1p-126 ? 0 : static_cast<float>(y);
  }
  static float Exp(float x) { return Off(std::exp2(double{x * 1.4426950408889634f}), exp_units); }
  static float Div(float a, float b) {
    if (std::abs(b) > 0x1p126f) return std::isinf(a) ? std::nanf("") : std::copysign(0.0f, a);
    return Off(double{a} / b, div_units);
  }
};

// Every half, to a unit of its last place: also where a sigmoid is 1 or nothing.
template <typename T>
void ExpectHalvesAreExact(int fraction_bits, int least_exponent) {
  auto logistic = [](double z) { return 1 / (1 + std::exp(-z)); };
  const double root = 2 * std::sqrt(2 / std::numbers::pi), k = 0.044715;
  auto near = [&](const char* name, float got, double want, float x) {
    const double half = Widen(Narrow<T>(got)), high = Widen(Narrow<T>(static_cast<float>(want)));
    if (half == high) return;
    const int exponent = want == 0 ? least_exponent : std::max(std::ilogb(want), least_exponent);
    // The cancelling terms of gradients, and what is too small for an f32.
    const double unit = std::ldexp(1.0, exponent - fraction_bits) + 4e-6 * (name[0] == 'd') + 1e-36;
    ASSERT_LE(std::abs(half - want), unit) << name << " of " << x;
  };
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = Widen(T{static_cast<uint16_t>(bits)});
    if (!std::isfinite(x)) continue;
    const double z = root * (x + k * x * x * double{x}), s = logistic(x), t = logistic(z);
    near("sigmoid", SigmoidFn().By<Rough>(x), s, x);
    near("silu", SiluFn().By<Rough>(x), x * s, x);
    near("gelu", GeluTanhFn().By<Rough>(x), x * t, x);
    near("d silu", SiluGradFn().By<Rough>(1.0f, x), s + x * s * logistic(-x), x);
    if (std::abs(x) > 1e18f) continue;  // x * x is infinite: NaN, as PyTorch's
    near("d gelu", GeluTanhGradFn().By<Rough>(1.0f, x),
         t + x * t * logistic(-z) * root * (1 + 3 * k * x * double{x}), x);
  }
}
TEST(CudaMath, HalvesAreExactByTheGpusInstructions) {
  for (double e : {-2.0, 0.0, 2.0}) {
    for (double d : {-2.0, 0.0, 2.0}) {
      Rough::exp_units = e;
      Rough::div_units = d;
      ASSERT_NO_FATAL_FAILURE(ExpectHalvesAreExact<BF16>(7, -126)) << e << " " << d;
      ASSERT_NO_FATAL_FAILURE(ExpectHalvesAreExact<F16>(10, -14)) << e << " " << d;
    }
  }
}

TEST(CudaMath, NanAndZeroKeepTheirKind) {
  double nan = std::nan("");
  EXPECT_TRUE(std::isnan(MaxFn()(nan, 1.0)) && std::isnan(MaxFn()(1.0, nan)));
  EXPECT_TRUE(std::isnan(MinFn()(nan, 1.0)) && std::isnan(MinFn()(1.0, nan)));
  EXPECT_TRUE(std::isnan(ReluFn()(nan)) && std::isnan(SignFn()(nan)) && std::isnan(AbsFn()(nan)));
  EXPECT_EQ(RoundFn()(2.5f), 2.0f);
  EXPECT_EQ(RoundFn()(3.5f), 4.0f);
  EXPECT_TRUE(IsInfFn()(-Infinity<float>()) && !IsInfFn()(3e38f) && !IsInfFn()(std::nanf("")));
}

TEST(CudaMath, Integers) {
  EXPECT_EQ(ModFn()(int64_t{-7}, int64_t{3}), 2);
  EXPECT_EQ(ModFn()(int64_t{7}, int64_t{-3}), -2);
  EXPECT_EQ(ModFn()(std::numeric_limits<int64_t>::min(), int64_t{-1}), 0);
  EXPECT_EQ(DivFn()(int64_t{-7}, int64_t{2}), -3);
  EXPECT_EQ(DivFn()(int64_t{7}, int64_t{0}), 0);
  EXPECT_EQ(PowFn()(int64_t{-3}, int64_t{5}), -243);
  EXPECT_EQ(PowFn()(int64_t{-1}, int64_t{-3}), -1);
  EXPECT_EQ(PowFn()(int64_t{2}, int64_t{-1}), 0);
}

TEST(CudaMath, RunningSoftmaxIsTheSum) {
  std::vector<double> x = {-kInfinity, -1, 3, 2.5, -kInfinity, 700, 699, 3};
  SoftmaxState<double> state, two, four;
  double max = -kInfinity, sum = 0;
  for (double v : x) state.Add({v});
  for (size_t i = 0; i < x.size(); i += 2) two.Add({x[i], x[i + 1]});
  four.Add({-kInfinity, -kInfinity, -kInfinity, -kInfinity});
  for (size_t i = 0; i < x.size(); i += 4) four.Add({x[i], x[i + 1], x[i + 2], x[i + 3]});
  for (double v : x) max = std::max(max, v);
  for (double v : x) sum += std::exp(v - max);
  EXPECT_EQ(state.max, max);
  EXPECT_NEAR(state.sum, sum, 1e-14);
  EXPECT_EQ(two.max, max);
  EXPECT_NEAR(two.sum, sum, 1e-14);
  EXPECT_EQ(four.max, max);
  EXPECT_NEAR(four.sum, sum, 1e-14);
  EXPECT_NEAR(two.SumFrom(max + 1), sum / std::exp(1), 1e-14);
  SoftmaxState<double> none, bad;
  none.Add({-kInfinity, -kInfinity});
  EXPECT_EQ(none.max, -kInfinity);
  EXPECT_EQ(none.SumFrom(3), 0);
  bad.Add({-kInfinity, std::nan("")});
  bad.Add({1.0, 2.0, 3.0, 4.0});
  EXPECT_TRUE(std::isnan(bad.SumFrom(3)));
  EXPECT_EQ(SoftmaxState<float>().sum, 0);
}

TEST(CudaMath, PhiloxIsTheOther) {
  for (uint64_t block : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 33}) {
    const auto words = Philox4x32(
        {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 3, 9}, {5, 11});
    const PhiloxBlock got = Philox(block, 3, 9, 5 + (uint64_t{11} << 32));
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], words[i]) << block;
  }
}

TEST(CudaMath, OptimizersFollowTheirFormulas) {
  AdamWStep<double> adam({0.9, 0.95, 1e-8, 0.1}, 3, 0.5, 1e-3);
  double w = 0.7, m = 0.2, v = 0.04, g = -0.6 * 0.5;
  double m1 = 0.9 * m + 0.1 * g, v1 = 0.95 * v + 0.05 * g * g;
  double want = w - 1e-3 * 0.1 * w;
  want -= 1e-3 / (1 - std::pow(0.9, 3)) * m1 /
          (std::sqrt(v1) / std::sqrt(1 - std::pow(0.95, 3)) + 1e-8);
  adam.Update(w, -0.6, m, v);
  EXPECT_NEAR(w, want, 1e-15);
  EXPECT_NEAR(m, m1, 1e-15);
  EXPECT_NEAR(v, v1, 1e-15);
  SgdConstants sgd{0.9, 0, 0.01, true};
  double weight = 1, buffer = 0.5;
  SgdUpdate(sgd, true, false, 2.0, 0.1, weight, 0.25, buffer);
  EXPECT_NEAR(buffer, 0.9 * 0.5 + 0.51, 1e-15);
  EXPECT_NEAR(weight, 1 - 0.1 * (0.51 + 0.9 * 0.96), 1e-15);
}

}  // namespace
}  // namespace shardc::cuda
