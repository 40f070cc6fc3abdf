// bf16 numbers for tests of kernels.
#pragma once

#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {

using Halves = std::vector<uint16_t>;

// One rounding to bf16, relative.
inline constexpr double kRounding = 1.0 / 256;

inline uint16_t Round(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline Halves RandomHalves(int64_t n, uint64_t seed, float scale = 1) {
  Halves out;
  for (float x : RandomVector(n, seed, scale)) out.push_back(Round(x));
  return out;
}

inline std::vector<float> Wide(const Halves& halves) {
  std::vector<float> out(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    uint32_t u = static_cast<uint32_t>(halves[i]) << 16;
    std::memcpy(&out[i], &u, 4);
  }
  return out;
}

inline std::vector<double> Doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }
}  // namespace shardc::cpu
