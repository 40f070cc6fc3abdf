#include <cstring>

#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

struct Case {
  int64_t rows, cols, pairs, cos_step, sin_step;
};

uint16_t Rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float Widened(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}

void Check(const Case& c, bool interleaved, bool inverse) {
  SCOPED_TRACE(testing::Message() << c.rows << "x" << c.cols << " pairs " << c.pairs
                                  << (interleaved ? " interleaved" : "")
                                  << (inverse ? " inverse" : ""));
  const int64_t size = c.rows * c.cols;
  auto x = RandomVector(size, 1, 3);
  std::vector<uint16_t> narrow;
  for (float& v : x) {  // what bf16 holds
    narrow.push_back(Rounded(v));
    v = Widened(narrow.back());
  }
  const auto cos = RandomVector(c.rows * c.cos_step + c.pairs, 2);
  const auto sin = RandomVector(c.rows * c.sin_step + c.pairs, 3);
  std::vector<double> want(x.begin(), x.end());
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t i = 0; i < c.pairs; ++i) {
      const int64_t first = r * c.cols + (interleaved ? 2 * i : i),
                    second = first + (interleaved ? 1 : c.pairs);
      const double a = want[first], b = want[second], co = cos[r * c.cos_step + i];
      const double si = sin[r * c.sin_step + i] * (inverse ? -1.0 : 1.0);
      want[first] = a * co - b * si;
      want[second] = b * co + a * si;
    }
  }
  for (Isa isa : SupportedIsas()) {
    SCOPED_TRACE(IsaName(isa));
    const RotaryKernels& k = KernelsFor(isa).rotary;
    auto turn = [&](auto* rows, const auto* from, auto* to) {
      RotaryRowsOf<std::remove_cvref_t<decltype(*from)>, std::remove_cvref_t<decltype(*to)>> a;
      a.x = from, a.y = to;
      a.cos = cos.data(), a.sin = sin.data();
      a.rows = c.rows, a.cols = c.cols, a.pairs = c.pairs;
      a.cos_step = c.cos_step, a.sin_step = c.sin_step;
      a.interleaved = interleaved, a.inverse = inverse;
      rows(a);
    };
    std::vector<float> y(x.size(), NAN), place = x;
    turn(k.rows, x.data(), y.data());
    ExpectNear(y, want, 1e-6, 1e-6);
    turn(k.rows, place.data(), place.data());
    EXPECT_TRUE(SameBits(y, place)) << "in place";
    std::vector<uint16_t> y_narrow(x.size(), 0x7fff), place_narrow = narrow;
    turn(k.rows_bf16, narrow.data(), y_narrow.data());
    std::vector<uint16_t> rounded(x.size(), 0x7fff);
    turn(k.rows_to_bf16, x.data(), rounded.data());
    std::vector<float> wide(x.size(), NAN);
    turn(k.rows_from_bf16, narrow.data(), wide.data());
    ExpectNear(wide, want, 1e-6, 1e-6, "from bf16");
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(Widened(rounded[i]), want[i], std::abs(want[i]) / 256 + 1e-6) << "to bf16";
    }
    std::vector<float> widened;
    for (uint16_t v : y_narrow) widened.push_back(Widened(v));
    ExpectNear(widened, want, 1.0 / 256, 1e-6, "bf16");
    turn(k.rows_bf16, place_narrow.data(), place_narrow.data());
    EXPECT_TRUE(SameBits(y_narrow, place_narrow)) << "bf16 in place";
  }
}

// Whole vectors of every instruction set and less; one table for all rows, one for each.
TEST(Rotary, EqualsTheFormula) {
  for (bool interleaved : {false, true}) {
    for (bool inverse : {false, true}) {
      for (const Case& c : {Case{3, 128, 64, 64, 64},
                            {5, 64, 32, 0, 0},
                            {2, 80, 16, 16, 0},
                            {4, 10, 5, 7, 9},
                            {3, 7, 2, 2, 2},
                            {2, 3, 1, 1, 1},
                            {3, 5, 0, 0, 0},
                            {0, 8, 4, 4, 4},
                            {1, 67, 33, 33, 33}}) {
        Check(c, interleaved, inverse);
      }
    }
  }
}

}  // namespace
}  // namespace shardc::cpu
