// What tests of collectives send, and what must come of it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "runtime/communicator.h"
#include "tests/runtime/native_f16.h"

namespace shardc {

using Bytes = std::vector<std::byte>;

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// bf16 by arithmetic, not by bits: 8 significant digits, nearest even.
inline float RoundToBF16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}
inline uint16_t BF16Bits(float x) {
  const float rounded = RoundToBF16(x);
  uint32_t bits;
  std::memcpy(&bits, &rounded, 4);
  return static_cast<uint16_t>(bits >> 16);
}
inline float BF16Value(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint16_t F16Bits(float x) {
  const auto h = static_cast<NativeF16>(x);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}
inline float F16Value(uint16_t bits) {
  NativeF16 h;
  std::memcpy(&h, &bits, 2);
  return static_cast<float>(h);
}

template <typename T, typename Accumulator>
void Combine(Accumulator& a, Accumulator b, ReduceOp op) {
  if (op == ReduceOp::kMax) {
    a = std::max(a, b);
  } else if (op == ReduceOp::kMin) {
    a = std::min(a, b);
  } else if constexpr (std::is_integral_v<T>) {
    a = static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    a += b;
  }
}

// Calls visit.operator()<T, Accumulator>(draw, load, store): a value from random bits, and how a
// stored T turns into what is accumulated, and back.
template <typename Visit>
auto VisitDType(DType dtype, const Visit& visit) {
  auto same = [](auto x) { return x; };
  // About [-4, 4), with mantissas that make the order of a sum visible.
  auto real = [](uint64_t bits) {
    return static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-61;
  };
  switch (dtype) {
    case DType::kF32:
      return visit([=](uint64_t x) { return static_cast<float>(real(x)); }, same, same);
    case DType::kF64:
      return visit(real, same, same);
    case DType::kF16:
      return visit([=](uint64_t x) { return F16Bits(static_cast<float>(real(x))); }, F16Value,
                   F16Bits);
    case DType::kBF16:
      return visit([=](uint64_t x) { return BF16Bits(static_cast<float>(real(x))); }, BF16Value,
                   BF16Bits);
    case DType::kI32:
      return visit([](uint64_t x) { return static_cast<int32_t>(x); }, same, same);
    case DType::kI64:
      return visit([](uint64_t x) { return static_cast<int64_t>(x); }, same, same);
    case DType::kBool:
      return visit([](uint64_t x) { return static_cast<uint8_t>(x % 8 == 0); }, same, same);
  }
  std::abort();
}

// What rank `rank` holds: `count` elements that depend on (seed, rank, index).
inline Bytes RandomElements(DType dtype, int64_t count, uint64_t seed, int rank) {
  Bytes out(count * DTypeSize(dtype));
  VisitDType(dtype, [&](auto draw, auto, auto) {
    for (int64_t i = 0; i < count; ++i) {
      const auto x = draw(Mix(seed * 64 + rank, i));
      std::memcpy(out.data() + i * sizeof(x), &x, sizeof(x));
    }
  });
  return out;
}

// The reduction of all ranks' elements in rank order.
inline Bytes ReduceSerially(DType dtype, ReduceOp op, const std::vector<Bytes>& ranks) {
  Bytes out(ranks[0].size());
  VisitDType(dtype, [&](auto draw, auto load, auto store) {
    using T = decltype(draw(0));
    for (size_t at = 0; at < out.size(); at += sizeof(T)) {
      auto element = [&](size_t r) {
        T x;
        std::memcpy(&x, ranks[r].data() + at, sizeof(T));
        return load(x);
      };
      auto sum = element(0);
      for (size_t r = 1; r < ranks.size(); ++r) Combine<decltype(sum)>(sum, element(r), op);
      const T x = store(sum);
      std::memcpy(out.data() + at, &x, sizeof(T));
    }
  });
  return out;
}

inline std::vector<Bytes> RandomRanks(DType dtype, int64_t count, uint64_t seed, int num_ranks) {
  std::vector<Bytes> out;
  for (int r = 0; r < num_ranks; ++r) out.push_back(RandomElements(dtype, count, seed, r));
  return out;
}

inline Bytes Slice(const Bytes& all, int64_t begin, int64_t size) {
  return Bytes(all.begin() + begin, all.begin() + begin + size);
}

inline constexpr std::array kAllDTypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64,
                                          DType::kI32, DType::kI64, DType::kBool};
inline std::vector<ReduceOp> LegalOps(DType dtype) {
  if (dtype == DType::kBool) return {ReduceOp::kMax, ReduceOp::kMin};
  return {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
}

// One large odd count, which no number of ranks divides, besides the smallest ones.
inline const std::array<int64_t, 6> kCounts = {0, 1, 3, 61, 4099, 1000003};
inline std::string CaseName(int n, DType dtype, int64_t count) {
  return std::to_string(n) + " ranks, " + std::to_string(count) + " " +
         std::string(DTypeName(dtype));
}

}  // namespace shardc
