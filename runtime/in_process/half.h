// f16 and bf16 as bits: conversions without branches, so that loops over them become vector code.
// Magnitudes are compared as signed numbers, which plain SSE2 can do.
#pragma once

#include <bit>
#include <cstdint>

namespace shardc::in_process {

// All ones if a > b, else 0; both are below 2^31.
inline uint32_t Exceeds(uint32_t a, uint32_t b) {
  return -static_cast<uint32_t>(static_cast<int32_t>(a) > static_cast<int32_t>(b));
}
inline uint32_t Select(uint32_t mask, uint32_t a, uint32_t b) { return (mask & a) | (~mask & b); }

inline float BF16ToF32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

// Rounds to nearest even; a NaN stays a (quiet) NaN.
inline uint16_t F32ToBF16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return static_cast<uint16_t>(Select(Exceeds(u & 0x7fffffffu, 0x7f800000u), nan, rounded));
}

inline float F16ToF32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  // 2^-14 (1 + m/1024) - 2^-14 = m 2^-24: exact, and never an f32 subnormal (which FTZ would
  // flush).
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>((magnitude << 13) + (113u << 23)) - 0x1p-14f);
  const uint32_t finite = Select(Exceeds(magnitude, 0x3ffu), normal, subnormal);
  const uint32_t bits = Select(Exceeds(magnitude, 0x7bffu), special, finite);
  return std::bit_cast<float>(bits | sign);
}

// Rounds to nearest even, overflows to infinity; a NaN becomes the quiet NaN of its sign.
inline uint16_t F32ToF16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  const uint32_t special = 0x7c00u | (Exceeds(magnitude, 0x7f800000u) & 0x200u);
  // The ulp of 0.5 is 2^-24, the step of f16 subnormals: the addition does the rounding.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - (126u << 23);
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t finite = Select(Exceeds(magnitude, 0x387fffffu), normal, subnormal);
  const uint32_t bits = Select(Exceeds(magnitude, 0x477fffffu), special, finite);
  return static_cast<uint16_t>(bits | sign);
}

}  // namespace shardc::in_process
