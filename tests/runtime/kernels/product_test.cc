#include "runtime/cpu/kernels/product.h"

#include <bit>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>

#include "oneapi/dnnl/dnnl.h"
#include "tests/runtime/kernels/emulated_amx.h"
#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

struct Case {
  int64_t m, n, k, batch = 1;
  bool ta = false, tb = false, bias = false, accumulate = false;
  int64_t extra = 0;  // elements between stored rows
};

uint16_t ToBf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float FromBf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// Operands as both types hold them, and the product in f64.
struct Data {
  Case c;
  int64_t lda, ldb, ldc, sa, sb, sc;
  std::vector<float> a, b, bias, start;
  std::vector<double> want;

  explicit Data(const Case& given, bool bf16) : c(given) {
    lda = (c.ta ? c.m : c.k) + c.extra, ldb = (c.tb ? c.k : c.n) + c.extra, ldc = c.n + c.extra;
    sa = lda * (c.ta ? c.k : c.m), sb = ldb * (c.tb ? c.n : c.k), sc = ldc * c.m;
    a = RandomVector(c.batch * sa, 1), b = RandomVector(c.batch * sb, 2);
    bias = RandomVector(c.n, 3), start = RandomVector(c.batch * sc, 4);
    if (bf16) {
      for (auto* v : {&a, &b, &bias, &start}) {
        for (float& x : *v) x = FromBf16(ToBf16(x));
      }
    }
    want.assign(start.begin(), start.end());
    ForEachProduct({a, c.ta, lda, sa}, {b, c.tb, ldb, sb}, c.batch, c.m, c.n, c.k,
                   [&](int64_t z, int64_t i, int64_t j, double sum) {
                     double& out = want[z * sc + i * ldc + j];
                     out = (c.accumulate ? out : 0) + (c.bias ? bias[j] : 0) + sum;
                   });
  }

  template <typename T>
  ProductArgsOf<T> Args(const T* pa, const T* pb) const {
    ProductArgsOf<T> args{.m = c.m, .n = c.n, .k = c.k, .batch = c.batch, .a = pa, .b = pb};
    args.transpose_a = c.ta, args.transpose_b = c.tb;
    args.lda = lda, args.ldb = ldb, args.ldc = ldc;
    args.batch_stride_a = sa, args.batch_stride_b = sb, args.batch_stride_c = sc;
    args.accumulate = c.accumulate;
    return args;
  }
};

struct Free {
  void operator()(void* p) const { std::free(p); }
};
std::unique_ptr<void, Free> Work(const ProductKernels& kernels, const Case& c, int parts,
                                 bool result_bf16, int threads) {
  const auto bytes =
      static_cast<size_t>(kernels.work_bytes(c.m, c.n, c.k, c.batch, parts, result_bf16, threads));
  return std::unique_ptr<void, Free>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
}

// The kernels of this machine, or emulated ones; null without either.
const ProductKernels* Tiles() {
  if (SupportedIsas().back() == Isa::kAmx) return &KernelsFor(Isa::kAmx).product;
  return EmulatedAmx() ? &EmulatedAmx()->product : nullptr;
}
#define SKIP_WITHOUT_TILES() \
  if (Tiles() == nullptr) GTEST_SKIP() << "this machine has no AVX-512"

std::string Name(const Case& c) {
  return testing::PrintToString(
      std::vector<int64_t>{c.m, c.n, c.k, c.batch, c.ta, c.tb, c.bias, c.accumulate, c.extra});
}

void CheckF32(const Case& c) {
  SCOPED_TRACE(Name(c));
  const Data data(c, false);
  std::vector<float> first;
  for (int threads : {1, 2, 5}) {
    const auto work = Work(*Tiles(), c, 3, false, threads);
    auto out = data.start;
    auto args = data.Args(data.a.data(), data.b.data());
    args.bias = c.bias ? data.bias.data() : nullptr;
    args.c = out.data();
    Tiles()->f32(args, work.get(), threads);
    ExpectNear(out, data.want, 1e-6, 2e-7 * (2 + std::sqrt(static_cast<double>(c.k))));
    if (first.empty()) first = out;
    EXPECT_TRUE(SameBits(first, out)) << threads << " threads";
  }
}

void CheckBf16(const Case& c, bool result_bf16, bool bias_bf16) {
  SCOPED_TRACE(Name(c) + (result_bf16 ? " to bf16" : " to f32"));
  const Data data(c, true);
  auto halves = [](const std::vector<float>& v) {
    std::vector<uint16_t> h(v.size());
    for (size_t i = 0; i < v.size(); ++i) h[i] = ToBf16(v[i]);
    return h;
  };
  const auto a = halves(data.a), b = halves(data.b), bias = halves(data.bias);
  for (int threads : {1, 2, 3}) {
    const auto work = Work(*Tiles(), c, 1, result_bf16, threads);
    auto out = data.start;
    auto out_bf16 = halves(data.start);
    auto args = data.Args(a.data(), b.data());
    if (c.bias && bias_bf16) args.bias_bf16 = bias.data();
    if (c.bias && !bias_bf16) args.bias = data.bias.data();
    if (result_bf16) {
      args.c_bf16 = out_bf16.data();
    } else {
      args.c = out.data();
    }
    Tiles()->bf16(args, work.get(), threads);
    if (result_bf16) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = FromBf16(out_bf16[i]);
    }
    ExpectNear(out, data.want, result_bf16 ? 1.0 / 256 : 1e-6,
               4e-7 * (2 + std::sqrt(static_cast<double>(c.k))));
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      cases.push_back({1, 1, 1, 1, ta, tb});
      cases.push_back({32, 32, 32, 1, ta, tb});
      cases.push_back({33, 65, 31, 1, ta, tb, true, false});
      cases.push_back({31, 15, 97, 1, ta, tb, true, true, 5});
      cases.push_back({100, 17, 70, 1, ta, tb, false, true});
      cases.push_back({64, 96, 40, 3, ta, tb, false, false, 3});
      cases.push_back({40, 33, 64, 2, ta, tb, true, true});
      // Longer than one stretch of k.
      cases.push_back({45, 47, 1601, 1, ta, tb, true, false});
      cases.push_back({32, 64, 4160, 1, ta, tb, false, true, 1});
      cases.push_back({35, 30, 4100, 2, ta, tb, false, false});
      cases.push_back({33, 35, 2100, 1, ta, tb, true, false});
    }
  }
  return cases;
}

TEST(Product, F32AgainstF64) {
  SKIP_WITHOUT_TILES();
  for (const Case& c : Cases()) CheckF32(c);
}

TEST(Product, Bf16AgainstF64) {
  SKIP_WITHOUT_TILES();
  for (const Case& c : Cases()) {
    for (bool result_bf16 : {false, true}) {
      CheckBf16(c, result_bf16, true);
      if (c.bias) CheckBf16(c, result_bf16, false);
    }
  }
}

// More blocks than one of the operand that is packed for all threads, of the other one, and of sums
// that are kept between stretches of k; some elements are compared.
template <typename T>
void CheckSome(int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
  const Case c{m, n, k, 1, ta, tb};
  SCOPED_TRACE(Name(c));
  constexpr bool kBf16 = std::is_same_v<T, uint16_t>;
  auto make = [](int64_t count, uint64_t seed) {
    const std::vector<float> v = RandomVector(count, seed);
    std::vector<T> made(v.size());
    for (size_t i = 0; i < v.size(); ++i) {
      if constexpr (kBf16) {
        made[i] = ToBf16(v[i]);
      } else {
        made[i] = v[i];
      }
    }
    return made;
  };
  auto value = [](T x) {
    if constexpr (kBf16) {
      return double{FromBf16(x)};
    } else {
      return double{x};
    }
  };
  const std::vector<T> a = make(m * k, 1), b = make(k * n, 2);
  std::vector<T> out(static_cast<size_t>(m * n));
  ProductArgsOf<T> args{.m = m, .n = n, .k = k, .a = a.data(), .b = b.data()};
  args.transpose_a = ta, args.transpose_b = tb;
  args.lda = ta ? m : k, args.ldb = tb ? k : n, args.ldc = n;
  const auto work = Work(*Tiles(), c, kBf16 ? 1 : 3, kBf16, 3);
  if constexpr (kBf16) {
    args.c_bf16 = out.data();
    Tiles()->bf16(args, work.get(), 3);
  } else {
    args.c = out.data();
    Tiles()->f32(args, work.get(), 3);
  }
  std::mt19937 engine(3);
  for (int sample = 0; sample < 3000; ++sample) {
    const int64_t i = engine() % m, j = engine() % n;
    double sum = 0;
    for (int64_t p = 0; p < k; ++p) {
      sum += value(a[ta ? p * m + i : i * k + p]) * value(b[tb ? j * k + p : p * n + j]);
    }
    ASSERT_NEAR(value(out[i * n + j]), sum, 3e-5 + std::abs(sum) * (kBf16 ? 1.0 / 256 : 1e-6))
        << i << ", " << j;
  }
}

TEST(Product, MoreThanTheWorkMemoryHolds) {
  SKIP_WITHOUT_TILES();
  CheckSome<float>(3700, 3600, 800, false, true);
  CheckSome<float>(3600, 3700, 800, true, false);
  CheckSome<uint16_t>(2100, 2000, 2100, true, false);
  CheckSome<uint16_t>(2000, 2100, 2100, false, true);
}

// The error of a product of f32 operands is not above oneDNN's: normal data, all positive (where
// what is left out could add up), and of very different sizes.
TEST(Product, F32IsAsExactAsSgemm) {
  SKIP_WITHOUT_TILES();
  std::mt19937 engine(7);
  std::normal_distribution<float> normal;
  for (const char* kind : {"normal", "positive", "spread"}) {
    for (int64_t k : {64, 1100}) {
      const Case c{96, 96, k};
      Data data({.m = 96, .n = 96, .k = 1}, false);
      auto fill = [&](std::vector<float>& v) {
        v.resize(static_cast<size_t>(96 * k));
        for (float& x : v) {
          x = normal(engine);
          if (*kind == 'p') x = std::abs(x);
          if (*kind == 's') x *= std::exp2(4 * normal(engine));
        }
      };
      fill(data.a), fill(data.b);
      data.c = c;
      data.lda = k;
      std::vector<float> ours(96 * 96), theirs(96 * 96);
      auto args = data.Args(data.a.data(), data.b.data());
      args.c = ours.data();
      const auto work = Work(*Tiles(), c, 3, false, 2);
      Tiles()->f32(args, work.get(), 2);
      dnnl_sgemm('N', 'N', 96, 96, k, 1, data.a.data(), k, data.b.data(), 96, 0, theirs.data(), 96);
      double error = 0, error_of_sgemm = 0;
      ForEachProduct({data.a, false, k, 0}, {data.b, false, 96, 0}, 1, 96, 96, k,
                     [&](int64_t, int64_t i, int64_t j, double sum) {
                       error += std::pow(ours[i * 96 + j] - sum, 2);
                       error_of_sgemm += std::pow(theirs[i * 96 + j] - sum, 2);
                     });
      EXPECT_LE(error, error_of_sgemm) << kind << " k " << k;
    }
  }
}

// What is not finite stays so, and touches only what it contributes to.
TEST(Product, InfinitiesAndNaN) {
  SKIP_WITHOUT_TILES();
  const float inf = std::numeric_limits<float>::infinity();
  for (float special : {inf, -inf, std::nanf(""), std::bit_cast<float>(0x7f800001U)}) {
    const Case c{40, 50, 33};
    Data data(c, false);
    data.a[3 * 33 + 5] = special;
    std::vector<float> out(40 * 50);
    auto args = data.Args(data.a.data(), data.b.data());
    args.c = out.data();
    Tiles()->f32(args, Work(*Tiles(), c, 3, false, 1).get(), 1);
    for (int64_t i = 0; i < 40; ++i) {
      for (int64_t j = 0; j < 50; ++j) EXPECT_EQ(std::isfinite(out[i * 50 + j]), i != 3);
    }
  }
}

// The largest numbers round to infinity as bf16; their sums do not.
TEST(Product, LargestNumbers) {
  SKIP_WITHOUT_TILES();
  const float max = std::numeric_limits<float>::max();
  const Case c{1, 1, 2};
  const float a[] = {max, -max}, b[] = {0.5F, 0.25F};
  ProductArgsOf<float> args{.m = 1, .n = 1, .k = 2, .a = a, .b = b};
  args.lda = 2, args.ldb = 1, args.ldc = 1;
  float out = 0;
  args.c = &out;
  Tiles()->f32(args, Work(*Tiles(), c, 3, false, 1).get(), 1);
  EXPECT_FLOAT_EQ(out, max / 4);
}

}  // namespace
}  // namespace shardc::cpu
