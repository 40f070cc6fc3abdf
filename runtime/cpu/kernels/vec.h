// The native f32 vector of the instruction set a *_isa.cc file is being compiled for, and its
// elementary functions. Only for *_isa.cc files: SHARDC_ISA names their namespace.
//
// Polynomials are weighted minimax fits made for this project (Lawson iteration in f64); the range
// reductions are the classical ones of Cody & Waite, "Software Manual for the Elementary Functions"
// (1980), and for erf the split into x * P(x^2) and 1 - exp(-t + t * Q(t)). Bounds held by
// tests/runtime/kernels/elementwise_test.cc with FMA: Exp 1.1 ulp, Tanh and Erf 1.5 ulp; without
// FMA 1.5 and 2.
#ifndef RUNTIME_CPU_KERNELS_VEC_H_
#define RUNTIME_CPU_KERNELS_VEC_H_

#ifndef SHARDC_ISA
#error "vec.h is for files that are compiled once per instruction set"
#endif

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstdint>

#define SHARDC_INLINE [[gnu::always_inline]] inline

namespace shardc::cpu::SHARDC_ISA {

SHARDC_INLINE int64_t MinOf(int64_t a, int64_t b) { return a < b ? a : b; }
SHARDC_INLINE int64_t MaxOf(int64_t a, int64_t b) { return a > b ? a : b; }
SHARDC_INLINE int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
SHARDC_INLINE int64_t CeilDiv(int64_t n, int64_t by) { return (n + by - 1) / by; }

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecInt __attribute__((vector_size(kLanes * 4)));
typedef float UnalignedVec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

SHARDC_INLINE Vec Load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
SHARDC_INLINE void Store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
SHARDC_INLINE Vec Splat(float s) { return s - Vec{}; }

#if defined(__AVX512F__)
SHARDC_INLINE uint16_t FirstLanes(int64_t n) { return static_cast<uint16_t>((1 << n) - 1); }
#endif

// The first n < kLanes elements, the others `fill`.
#if defined(__AVX512F__)
SHARDC_INLINE Vec LoadPartial(const float* p, int64_t n, float fill = 0) {
  return _mm512_mask_loadu_ps(Splat(fill), FirstLanes(n), p);
}
SHARDC_INLINE void StorePartial(float* p, int64_t n, Vec v) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), v);
}
#else
SHARDC_INLINE Vec LoadPartial(const float* p, int64_t n, float fill = 0) {
  Vec v = Splat(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
SHARDC_INLINE void StorePartial(float* p, int64_t n, Vec v) {
  if (n >= kLanes) __builtin_unreachable();  // gcc 12 would warn of it
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
}
#endif

#if defined(__AVX512F__)
// Where intrinsics without a mask have undefined lanes inside, which gcc 12 warns of.
inline constexpr uint16_t kAllLanes = 0xffff;
#endif

// a > b ? a : b and a < b ? a : b, in one instruction each where the processor can: a NaN in b is
// returned, one in a is dropped.
#if defined(__AVX512F__)
SHARDC_INLINE Vec Max(Vec a, Vec b) { return _mm512_mask_max_ps(a, kAllLanes, a, b); }
SHARDC_INLINE Vec Min(Vec a, Vec b) { return _mm512_mask_min_ps(a, kAllLanes, a, b); }
#elif defined(__AVX2__)
SHARDC_INLINE Vec Max(Vec a, Vec b) { return __builtin_ia32_maxps256(a, b); }
SHARDC_INLINE Vec Min(Vec a, Vec b) { return __builtin_ia32_minps256(a, b); }
#elif defined(__SSE__)
SHARDC_INLINE Vec Max(Vec a, Vec b) { return __builtin_ia32_maxps(a, b); }
SHARDC_INLINE Vec Min(Vec a, Vec b) { return __builtin_ia32_minps(a, b); }
#else
SHARDC_INLINE Vec Max(Vec a, Vec b) { return a > b ? a : b; }
SHARDC_INLINE Vec Min(Vec a, Vec b) { return a < b ? a : b; }
#endif

// a * b + c, rounded once where the processor can. Else the compiler chooses which products to
// contract, and of the same source not always the same ones.
#if defined(__AVX512F__)
SHARDC_INLINE Vec MulAdd(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__FMA__)
SHARDC_INLINE Vec MulAdd(Vec a, Vec b, Vec c) { return __builtin_ia32_vfmaddps256(a, b, c); }
#elif defined(__FP_FAST_FMAF)
SHARDC_INLINE Vec MulAdd(Vec a, Vec b, Vec c) {
  for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
#else
SHARDC_INLINE Vec MulAdd(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

// All lanes into one: the upper half is combined with the lower one, and so on.
template <typename Combine>
SHARDC_INLINE float FoldLanes(Vec v, const Combine& combine) {
  typedef float Four __attribute__((vector_size(16)));
#if defined(__AVX512F__)
  typedef float Eight __attribute__((vector_size(32)));
  const Eight eight = combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  Four four = combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                      __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#elif defined(__AVX2__)
  Four four =
      combine(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7));
#else
  Four four = v;
#endif
  four = combine(four, __builtin_shufflevector(four, four, 2, 3, 2, 3));
  four = combine(four, __builtin_shufflevector(four, four, 1, 1, 1, 1));
  return four[0];
}
SHARDC_INLINE float Sum(Vec v) {
  return FoldLanes(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}
SHARDC_INLINE float MaxOf(Vec v) {
  return FoldLanes(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
}

SHARDC_INLINE Vec Abs(Vec x) { return (Vec)((VecInt)x & 0x7fffffff); }
SHARDC_INLINE Vec CopySign(Vec magnitude, Vec sign) {
  return (Vec)(((VecInt)magnitude & 0x7fffffff) | ((VecInt)sign & INT32_MIN));
}
SHARDC_INLINE Vec Sqrt(Vec x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}

// p * 2^n for a whole n from -150 to 128, rounded to subnormals.
SHARDC_INLINE Vec Scale(Vec p, Vec n) {
#if defined(__AVX512F__)
  return _mm512_mask_scalef_ps(p, kAllLanes, p, n);
#else
  const VecInt k = __builtin_convertvector(n, VecInt);
  const VecInt half = k >> 1;  // in two factors: none of them is infinite or zero
  p = p * (Vec)((half + 127) << 23);
  return p * (Vec)((k - half + 127) << 23);
#endif
}

// e^x as p * 2^n with p near 1, for finite x.
struct ExpParts {
  Vec p;
  Vec n;
};
SHARDC_INLINE ExpParts SplitExp(Vec x) {
  const float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (x * 1.44269504088896341f + kRound) - kRound;
  const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec p = r * 0.00139504053f + 0.00836886138f;
  p = p * r + 0.0416662079f;
  p = p * r + 0.166665192f;
  p = p * r + 0.5f;
  return {(p * r) * r + r + 1.0f, n};
}

// e^x, with subnormal results, 0 below -104 and infinity above 88.72.
SHARDC_INLINE Vec Exp(Vec x) {
  x = Max(Splat(-104.0f), x);
  x = Min(Splat(89.0f), x);
  const ExpParts e = SplitExp(x);
  return Scale(e.p, e.n);
}

// e^x for x up to 88, and 0 where that is subnormal: making a subnormal number takes the processor
// a hundred times as long.
SHARDC_INLINE Vec ExpOrZero(Vec x) {
  const float kLeast = -87.33f;
#if defined(__AVX512F__)
  const ExpParts e = SplitExp(x);
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, Splat(kLeast), _CMP_NLT_US), e.p, e.n);
#else
  const ExpParts e = SplitExp(Max(Splat(kLeast), x));
  const Vec power = (Vec)((__builtin_convertvector(e.n, VecInt) + 127) << 23);
  return x < kLeast ? Vec{} : e.p * power;
#endif
}

SHARDC_INLINE Vec Tanh(Vec x) {
  const Vec t = Abs(x);
  const Vec z = x * x;
  Vec p = z * -0.0056653328f + 0.020606707f;
  p = p * z + -0.0537309406f;
  p = p * z + 0.133313544f;
  p = p * z + -0.333332796f;
  const Vec small = (p * z) * x + x;
  const Vec large = CopySign(1.0f - 2.0f / (Exp(t + t) + 1.0f), x);
  return t > 0.625f ? large : small;
}

SHARDC_INLINE Vec Erf(Vec x) {
  const Vec t = Min(Splat(4.0f), Abs(x));
  const Vec s = x * x;
  Vec p = s * -0.000598390883f + 0.00499233902f;
  p = p * s + -0.0267664761f;
  p = p * s + 0.112818272f;
  p = p * s + -0.376124966f;
  p = p * s + 0.12837915f;
  const Vec small = p * x + x;
  Vec q = t * -1.15229564e-05f + 0.000325658739f;
  q = q * t + -0.00365378634f;
  q = q * t + 0.0237853899f;
  q = q * t + -0.106263191f;
  q = q * t + -0.635135887f;
  q = q * t + -0.128652168f;
  const Vec large = CopySign(1.0f - Exp(q * t - t), x);
  return t > 0.92f ? large : small;
}

SHARDC_INLINE Vec Sigmoid(Vec x) { return 1.0f / (1.0f + Exp(-x)); }

// Gelu and its derivative, tanh form: x * sigmoid(2u) = 0.5 x (1 + tanh u), u = sqrt(2/pi) (x +
// 0.044715 x^3).
SHARDC_INLINE Vec GeluTanh(Vec x) {
  const float k = 1.59576912160573f;  // 2 sqrt(2/pi)
  return x / (1.0f + Exp(-k * x * (1.0f + 0.044715f * x * x)));
}
SHARDC_INLINE Vec GeluTanhGrad(Vec x) {
  const float k = 1.59576912160573f;
  const Vec s = Sigmoid(k * x * (1.0f + 0.044715f * x * x));
  const Vec du = k * (1.0f + 0.134145f * x * x);
  const Vec t = x * s * (1.0f - s) * du;
  return s + (Abs(x) > 1e4f ? Vec{} : t);  // else infinity * 0
}
// Exact form: x Phi(x); derivative Phi(x) + x phi(x).
SHARDC_INLINE Vec GeluErf(Vec x) { return 0.5f * x * (1.0f + Erf(x * 0.70710678118654752f)); }
SHARDC_INLINE Vec GeluErfGrad(Vec x) {
  const Vec phi = 0.39894228040143268f * Exp(-0.5f * x * x);
  return 0.5f * (1.0f + Erf(x * 0.70710678118654752f)) + x * phi;
}

// Calls fn(i, n) for i = 0, kLanes, ... with n == kLanes except in a shorter last call. Load and
// store through LoadN and StoreN: with a constant n they become plain vector moves.
template <typename Fn>
SHARDC_INLINE void ForLanes(int64_t begin, int64_t end, const Fn& fn) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) fn(i, int64_t{kLanes});
  if (i < end) fn(i, end - i);
}
SHARDC_INLINE Vec LoadN(const float* p, int64_t n, float fill = 0) {
  return n == kLanes ? Load(p) : LoadPartial(p, n, fill);
}
SHARDC_INLINE void StoreN(float* p, int64_t n, Vec v) {
  if (n == kLanes) {
    Store(p, v);
  } else {
    StorePartial(p, n, v);
  }
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_VEC_H_
