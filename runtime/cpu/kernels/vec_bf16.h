// bf16 in memory as the vectors of vec.h: widened when loaded, rounded to nearest even when stored,
// NaN kept. Templates of kernels take an element type of float or uint16_t (bf16). Only for
// *_isa.cc files.
#ifndef RUNTIME_CPU_KERNELS_VEC_BF16_H_
#define RUNTIME_CPU_KERNELS_VEC_BF16_H_

#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {

typedef uint32_t VecUint __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecHalf __attribute__((vector_size(kLanes * 2)));
typedef uint16_t UnalignedVecHalf __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

SHARDC_INLINE Vec Load(const uint16_t* p) {
  const VecHalf h = *reinterpret_cast<const UnalignedVecHalf*>(p);
  return (Vec)(__builtin_convertvector(h, VecUint) << 16);
}
SHARDC_INLINE VecHalf RoundToHalves(Vec v) {
  const VecUint u = (VecUint)v;
  const VecUint rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const VecUint bits = (u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded;
  return __builtin_convertvector(bits, VecHalf);
}
SHARDC_INLINE void Store(uint16_t* p, Vec v) {
  *reinterpret_cast<UnalignedVecHalf*>(p) = RoundToHalves(v);
}

SHARDC_INLINE float ToFloat(float x) { return x; }
SHARDC_INLINE float ToFloat(uint16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}
SHARDC_INLINE void Put(float* p, float x) { *p = x; }
SHARDC_INLINE void Put(uint16_t* p, float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  *p = static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

// Lanes beyond are `fill`, a number that bf16 has.
SHARDC_INLINE Vec LoadN(const uint16_t* p, int64_t n, float fill = 0) {
  if (n == kLanes) return Load(p);
#if defined(__AVX512F__)
  const auto fills = (__m256i)RoundToHalves(Splat(fill));
  const auto h = (VecHalf)_mm256_mask_loadu_epi16(fills, FirstLanes(n), p);
  return (Vec)(__builtin_convertvector(h, VecUint) << 16);
#else
  Vec v = Splat(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = ToFloat(p[i]);
  return v;
#endif
}
SHARDC_INLINE void StoreN(uint16_t* p, int64_t n, Vec v) {
  if (n == kLanes) return Store(p, v);
#if defined(__AVX512F__)
  _mm256_mask_storeu_epi16(p, FirstLanes(n), (__m256i)RoundToHalves(v));
#else
  for (int64_t i = 0; i < n; ++i) Put(p + i, v[i]);
#endif
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_VEC_BF16_H_
