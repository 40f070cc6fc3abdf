#include "runtime/cpu/kernels/cast.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = 16384;

SHARDC_INLINE uint32_t Bits(float x) { return __builtin_bit_cast(uint32_t, x); }
SHARDC_INLINE float FromBits(uint32_t u) { return __builtin_bit_cast(float, u); }

SHARDC_INLINE uint16_t ToBf16(float x) {
  const uint32_t u = Bits(x);
  const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const bool nan = (u & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>(nan ? (u >> 16) | 0x40 : rounded);
}

// Normal results round in the integer domain; subnormal ones let the f32 adder round: adding 0.5
// leaves a multiple of 2^-24 in the low mantissa bits.
SHARDC_INLINE uint16_t ToF16(float x) {
  const uint32_t sign = (Bits(x) >> 16) & 0x8000;
  const uint32_t u = Bits(x) & 0x7fffffff;
  const uint32_t normal = (u + 0xfff + ((u >> 13) & 1) - (112U << 23)) >> 13;
  const uint32_t subnormal = Bits(FromBits(u) + 0.5f) - Bits(0.5f);
  uint32_t h = u < (113U << 23) ? subnormal : normal;
  h = u >= (143U << 23) || h > 0x7c00 ? 0x7c00 : h;
  h = u > 0x7f800000 ? 0x7e00 : h;
  return static_cast<uint16_t>(h | sign);
}

SHARDC_INLINE float FromF16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t u = static_cast<uint32_t>(x & 0x7fff) << 13;
  const uint32_t special = u >= (0x7c00U << 13) ? u + (224U << 23) : u + (112U << 23);
  const uint32_t subnormal = Bits(FromBits(u + (113U << 23)) - FromBits(113U << 23));
  return FromBits((u < (0x400U << 13) ? subnormal : special) | sign);
}

template <typename From, typename To, typename Fn>
void Map(const From* x, To* y, int64_t n, int threads, const Fn& fn) {
  ParallelFor(
      threads, n, kGrain,
      [&](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) y[i] = fn(x[i]);
      },
      64);
}

void F32ToBf16(const float* x, uint16_t* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](float v) { return ToBf16(v); });
}
void Bf16ToF32(const uint16_t* x, float* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](uint16_t v) { return FromBits(static_cast<uint32_t>(v) << 16); });
}
void F32ToF16(const float* x, uint16_t* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](float v) { return ToF16(v); });
}
void F16ToF32(const uint16_t* x, float* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](uint16_t v) { return FromF16(v); });
}
void F32ToF64(const float* x, double* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](float v) { return static_cast<double>(v); });
}
void F64ToF32(const double* x, float* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](double v) { return static_cast<float>(v); });
}
void F32ToI64(const float* x, int64_t* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](float v) { return static_cast<int64_t>(v); });
}
void I64ToF32(const int64_t* x, float* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](int64_t v) { return static_cast<float>(v); });
}
void F32ToBool(const float* x, uint8_t* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](float v) { return static_cast<uint8_t>(v != 0); });
}
void BoolToF32(const uint8_t* x, float* y, int64_t n, int threads) {
  Map(x, y, n, threads, [](uint8_t v) { return v != 0 ? 1.0f : 0.0f; });
}

}  // namespace

extern const CastKernels kCastKernels;
const CastKernels kCastKernels = {
    .f32_to_bf16 = F32ToBf16,
    .bf16_to_f32 = Bf16ToF32,
    .f32_to_f16 = F32ToF16,
    .f16_to_f32 = F16ToF32,
    .f32_to_f64 = F32ToF64,
    .f64_to_f32 = F64ToF32,
    .f32_to_i64 = F32ToI64,
    .i64_to_f32 = I64ToF32,
    .f32_to_bool = F32ToBool,
    .bool_to_f32 = BoolToF32,
};

}  // namespace shardc::cpu::SHARDC_ISA
