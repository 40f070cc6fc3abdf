// Products of chosen rows against naive f64 loops, by teams of several sizes: many threads take few
// rows at a time, or a part of a sum.
#include "runtime/cpu/kernels/matmul_rows.h"

#include <algorithm>
#include <string>

#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

constexpr int64_t kMatrices = 3, kRows = 300, kK = 200, kN = 33;

uint16_t ToBf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float FromBf16(uint16_t x) {
  const uint32_t u = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// Numbers that both types hold, and their bytes as one of them.
std::vector<float> Numbers(int64_t count, uint64_t seed) {
  std::vector<float> v = RandomVector(count, seed);
  for (float& x : v) x = FromBf16(ToBf16(x));
  return v;
}
std::vector<std::byte> BytesOf(const std::vector<float>& v, bool bf16) {
  const size_t size = bf16 ? 2 : 4;
  std::vector<std::byte> bytes(v.size() * size);
  for (size_t i = 0; i < v.size(); ++i) {
    const uint16_t half = ToBf16(v[i]);
    std::memcpy(&bytes[i * size], bf16 ? static_cast<const void*>(&half) : &v[i], size);
  }
  return bytes;
}

void Check(MatmulRowsConfig c) {
  SCOPED_TRACE(testing::Message() << "nt " << c.transpose_b << " sums " << c.sums << " bf16 "
                                  << c.bf16 << c.result_bf16 << " adds " << c.accumulate
                                  << " threads " << c.threads);
  const int64_t b_rows = c.sums ? kRows : kK, c_rows = c.sums ? kK : kRows;
  const std::vector<float> a = Numbers(kRows * kK, 1), b = Numbers(kMatrices * b_rows * kN, 2);
  std::vector<uint8_t> chosen(kMatrices * kRows);
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = i % 5 == 0 || i % 7 < 5;
  std::fill(chosen.end() - kRows, chosen.end(), 0);  // none of the last matrix
  const std::vector<float> before(static_cast<size_t>(kMatrices * c_rows * kN), 0.75F);
  std::vector<double> want(before.size(), c.accumulate ? before[0] : 0.0);
  for (int64_t e = 0; e < kMatrices; ++e) {
    const float* mine = &b[static_cast<size_t>(e * b_rows * kN)];
    double* y = &want[static_cast<size_t>(e * c_rows * kN)];
    for (int64_t r = 0; r < kRows; ++r) {
      if (!chosen[static_cast<size_t>(e * kRows + r)]) continue;
      for (int64_t k = 0; k < kK; ++k) {
        const double x = a[static_cast<size_t>(r * kK + k)];
        for (int64_t n = 0; n < kN; ++n) {
          if (c.sums) {
            y[k * kN + n] += x * mine[r * kN + n];
          } else {
            y[r * kN + n] += x * mine[c.transpose_b ? n * kK + k : k * kN + n];
          }
        }
      }
    }
  }
  const int64_t size = c.bf16 ? 2 : 4, result_size = c.result_bf16 ? 2 : 4;
  c.rows = kRows, c.k = kK, c.n = kN;
  for (int64_t e = 0; e < kMatrices; ++e) {  // A is the same for all
    c.matrices.push_back({0, e * b_rows * kN * size, e * c_rows * kN * result_size});
  }
  const auto a_bytes = BytesOf(a, c.bf16), b_bytes = BytesOf(b, c.bf16);
  std::vector<std::byte> first;
  const auto product = MatmulRows::Create(c);
  if (c.bf16 && !product) GTEST_SKIP() << "this machine's oneDNN has no bf16 product";
  ASSERT_TRUE(product);
  for (int run = 0; run < 2; ++run) {
    std::vector<std::byte> out = BytesOf(before, c.result_bf16);
    product->Execute(chosen.data(), a_bytes.data(), b_bytes.data(), out.data());
    std::vector<float> got(want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (c.result_bf16) {
        uint16_t half;
        std::memcpy(&half, &out[2 * i], 2);
        got[i] = FromBf16(half);
      } else {
        std::memcpy(&got[i], &out[4 * i], 4);
      }
    }
    ExpectNear(got, want, c.result_bf16 ? 1.0 / 256 : 1e-6, 1e-5);
    if (run == 0) first = out;
    EXPECT_TRUE(SameBits(first, out)) << "another run";
  }
}

TEST(MatmulRows, AgainstF64) {
  for (int threads : {1, 2, 5, 20}) {
    for (bool bf16 : {false, true}) {
      for (bool result_bf16 : {false, true}) {
        if (result_bf16 && !bf16) continue;
        for (int form : {0, 1, 2, 3}) {
          MatmulRowsConfig c;
          c.transpose_b = form == 1;
          c.sums = form >= 2;
          c.accumulate = form == 3;
          c.bf16 = bf16;
          c.result_bf16 = result_bf16;
          c.threads = threads;
          Check(c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardc::cpu
