// Arithmetic of the kernels, for host and device: element types, the functions of the elementwise
// ops, online softmax. Needs no CUDA header, so that tests run it on the CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SHARDC_HD __host__ __device__ __forceinline__
#else
#define SHARDC_HD inline
#endif

namespace shardc::cuda {

template <typename To, typename From>
SHARDC_HD To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// Storage types; values are computed in float. Rounding is to nearest even.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct Bool {
  uint8_t bits;  // any byte but 0 is true
};

SHARDC_HD float Widen(BF16 v) { return BitCast<float>(static_cast<uint32_t>(v.bits) << 16); }
SHARDC_HD float Widen(F16 v) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(v.bits));
#else
  uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
  if (rest >= 0x7c00) return BitCast<float>(sign | 0x7f800000u | (rest & 0x3ff) << 13);
  // Scaling by 2^112 is exact, also for what is subnormal in f16.
  float f = BitCast<float>(rest << 13) * 0x1p112f;
  return BitCast<float>(BitCast<uint32_t>(f) | sign);
#endif
}
SHARDC_HD float Widen(float v) { return v; }
SHARDC_HD double Widen(double v) { return v; }
SHARDC_HD int64_t Widen(int32_t v) { return v; }
SHARDC_HD int64_t Widen(int64_t v) { return v; }
SHARDC_HD bool Widen(Bool v) { return v.bits != 0; }

// What an element type is computed in.
template <typename T>
using Wide = decltype(Widen(T()));

// What a norm makes of a normalised element: said in one way, and not left to what a compiler
// contracts, so that a gradient that makes it again gets the same bits.
SHARDC_HD float NormValue(float xhat, float w, float b) { return ::fmaf(xhat, w, b); }
SHARDC_HD double NormValue(double xhat, double w, double b) { return ::fma(xhat, w, b); }

template <typename T>
struct Narrower {
  template <typename W>
  static SHARDC_HD T From(W v) {
    return static_cast<T>(v);
  }
};
template <>
struct Narrower<Bool> {
  template <typename W>
  static SHARDC_HD Bool From(W v) {
    return Bool{static_cast<uint8_t>(v != W(0))};
  }
};
template <>
struct Narrower<BF16> {
  static SHARDC_HD BF16 From(float v) {
#if defined(__CUDA_ARCH__)
    return BF16{__bfloat16_as_ushort(__float2bfloat16_rn(v))};
#else
    uint32_t u = BitCast<uint32_t>(v);
    if (v != v) return BF16{static_cast<uint16_t>(u >> 16 | 0x40)};
    return BF16{static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16)};
#endif
  }
};
template <>
struct Narrower<F16> {
  static SHARDC_HD F16 From(float v) {
#if defined(__CUDA_ARCH__)
    return F16{__half_as_ushort(__float2half_rn(v))};
#else
    uint32_t u = BitCast<uint32_t>(v), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return F16{static_cast<uint16_t>(sign | 0x7e00)};
    if (u >= 0x477ff000) return F16{static_cast<uint16_t>(sign | 0x7c00)};
    if (u < 0x38800000) {
      // Adding 0.5 puts the units of f16's subnormals at the end of the fraction, rounded.
      uint32_t r = BitCast<uint32_t>(BitCast<float>(u) + 0.5f) - 0x3f000000u;
      return F16{static_cast<uint16_t>(sign | r)};
    }
    u += 0xfff + (u >> 13 & 1);
    return F16{static_cast<uint16_t>(sign | (u - 0x38000000) >> 13)};
#endif
  }
};
template <typename T, typename W>
SHARDC_HD T Narrow(W v) {
  return Narrower<T>::From(v);
}

// Two values as they lie beside each other, and back.
SHARDC_HD uint32_t NarrowPair(float first, float second) {
#if defined(__CUDA_ARCH__)
  return BitCast<uint32_t>(__floats2bfloat162_rn(first, second));
#else
  return Narrow<BF16>(first).bits | static_cast<uint32_t>(Narrow<BF16>(second).bits) << 16;
#endif
}
SHARDC_HD void WidenPair(uint32_t pair, float* first, float* second) {
  *first = BitCast<float>(pair << 16);
  *second = BitCast<float>(pair & 0xffff0000u);
}

template <typename W>
inline constexpr bool kIsFloatW = std::is_floating_point_v<W>;
template <typename T>
inline constexpr bool kIsFloat = kIsFloatW<Wide<T>>;

template <typename W>
SHARDC_HD bool IsNan(W v) {
  return v != v;
}
// NaN wins.
template <typename W>
SHARDC_HD W MaxNan(W a, W b) {
  return IsNan(a) || a > b ? a : b;
}
template <typename W>
SHARDC_HD W MinNan(W a, W b) {
  return IsNan(a) || a < b ? a : b;
}

template <typename W>
SHARDC_HD W Infinity() {
  return static_cast<W>(BitCast<float>(uint32_t{0x7f800000}));
}

// std::numeric_limits' own functions are the host's.
template <typename T>
inline constexpr T kLeast = std::numeric_limits<T>::min();
template <typename T>
inline constexpr T kGreatest = std::numeric_limits<T>::max();

// Truncates, saturates, NaN gives 0.
template <typename To, typename W>
SHARDC_HD To FloatToInt(W x) {
  if (IsNan(x)) return 0;
  if (x <= static_cast<W>(kLeast<To>)) return kLeast<To>;
  if (x >= static_cast<W>(kGreatest<To>)) return kGreatest<To>;
  return static_cast<To>(x);
}
template <typename To, typename From>
SHARDC_HD To CastElement(From from) {
  using F = Wide<From>;
  F x = Widen(from);
  if constexpr (std::is_same_v<To, Bool>) {
    return Narrow<Bool>(x);
  } else if constexpr (kIsFloat<To>) {
    return Narrow<To>(static_cast<Wide<To>>(x));
  } else if constexpr (kIsFloatW<F>) {
    return FloatToInt<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// How exp and quotients are computed.
struct Exact {
  template <typename W>
  static SHARDC_HD W Exp(W x) {
    return ::exp(x);
  }
  template <typename W>
  static SHARDC_HD W Div(W a, W b) {
    return a / b;
  }
};
// By the GPU's own instructions: off by 2 + |1.2 x| and by 2 units in the last place at most (CUDA
// Programming Guide, "Intrinsic Functions"), for what is rounded to halves. What is less than
// 2^-126, or divided by more than 2^126, is 0.
struct Fast {
  static SHARDC_HD float Exp(float x) {
#if defined(__CUDA_ARCH__)
    float y;  // __expf takes twice as long for the sake of such small results
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
#else
    return ::exp(x);
#endif
  }
  static SHARDC_HD float Div(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fdividef(a, b);
#else
    return a / b;
#endif
  }
};
// For values that come from and go to these types.
template <typename... T>
using MathOf = std::conditional_t<((sizeof(T) == 2) && ...), Fast, Exact>;

// fn(x...), by Math where the function leaves it open.
template <typename Math, typename Fn, typename... W>
SHARDC_HD auto Compute(Fn fn, W... x) {
  if constexpr (requires { fn.template By<Math>(x...); }) {
    return fn.template By<Math>(x...);
  } else {
    return fn(x...);
  }
}

// The functions of the ops. Each takes and returns values of one wide type.
#define SHARDC_UNARY(Name, expression)  \
  struct Name {                         \
    template <typename W>               \
    SHARDC_HD W operator()(W x) const { \
      return expression;                \
    }                                   \
  };
SHARDC_UNARY(NegFn, -x)
SHARDC_UNARY(AbsFn, x < 0 ? -x : (x == 0 ? W(0) : x))
SHARDC_UNARY(SignFn, x > 0 ? W(1) : x < 0 ? W(-1) : x)
SHARDC_UNARY(ExpFn, ::exp(x))
SHARDC_UNARY(LogFn, ::log(x))
SHARDC_UNARY(Log1pFn, ::log1p(x))
SHARDC_UNARY(SqrtFn, ::sqrt(x))
SHARDC_UNARY(RsqrtFn, W(1) / ::sqrt(x))
SHARDC_UNARY(ReciprocalFn, W(1) / x)
SHARDC_UNARY(FloorFn, ::floor(x))
SHARDC_UNARY(CeilFn, ::ceil(x))
SHARDC_UNARY(RoundFn, ::rint(x))
SHARDC_UNARY(SinFn, ::sin(x))
SHARDC_UNARY(CosFn, ::cos(x))
SHARDC_UNARY(ReluFn, x < 0 ? W(0) : x)
SHARDC_UNARY(TanhFn, ::tanh(x))
SHARDC_UNARY(ErfFn, ::erf(x))
#undef SHARDC_UNARY

inline constexpr double kCubic = 0.044715;
inline constexpr double kRootTwoOverPi = 0.7978845608028653559;
inline constexpr double kRootHalf = 0.7071067811865475244;
inline constexpr double kBellHeight = 0.3989422804014326779;  // 1 / sqrt(2 pi)

struct SigmoidFn {
  template <typename Math, typename W>
  SHARDC_HD W By(W x) const {
    return Math::Div(W(1), W(1) + Math::Exp(-x));
  }
  template <typename W>
  SHARDC_HD W operator()(W x) const {
    return By<Exact>(x);
  }
};
struct SiluFn {
  template <typename Math, typename W>
  SHARDC_HD W By(W x) const {
    return Math::Div(x, W(1) + Math::Exp(-x));
  }
  template <typename W>
  SHARDC_HD W operator()(W x) const {
    return By<Exact>(x);
  }
};
// (1 + tanh u) / 2 is the sigmoid of 2u, which keeps its digits where tanh u is nearly -1.
struct GeluTanhFn {
  template <typename W>
  static SHARDC_HD W TwoU(W x) {
    return W(2 * kRootTwoOverPi) * (x + W(kCubic) * x * x * x);
  }
  template <typename Math, typename W>
  SHARDC_HD W By(W x) const {
    return x * SigmoidFn().By<Math>(TwoU(x));
  }
  template <typename W>
  SHARDC_HD W operator()(W x) const {
    return By<Exact>(x);
  }
};
struct GeluErfFn {
  template <typename W>
  SHARDC_HD W operator()(W x) const {
    return W(0.5) * x * (W(1) + ::erf(x * W(kRootHalf)));
  }
};

// dx from dy and what the forward op saved.
struct ReluGradFn {
  template <typename W>
  SHARDC_HD W operator()(W dy, W x) const {
    return dy * (x > 0 ? W(1) : W(0));
  }
};
struct TanhGradFn {
  template <typename W>
  SHARDC_HD W operator()(W dy, W y) const {
    return dy * (W(1) - y * y);
  }
};
struct SigmoidGradFn {
  template <typename W>
  SHARDC_HD W operator()(W dy, W y) const {
    return dy * (y * (W(1) - y));
  }
};
// A sigmoid and its slope, which is not 1 - s times s: what Math::Div leaves 1 off by, a large x
// would make large.
template <typename W>
struct SigmoidSlope {
  W value, slope;
  template <typename Math>
  static SHARDC_HD SigmoidSlope Of(W x) {
    const W e = Math::Exp(-::fabs(x)), most = Math::Div(W(1), W(1) + e), rest = e * most;
    return {x < 0 ? rest : most, rest * most};
  }
};
struct SiluGradFn {
  template <typename Math, typename W>
  SHARDC_HD W By(W dy, W x) const {
    const auto s = SigmoidSlope<W>::template Of<Math>(x);
    return dy * (s.value + x * s.slope);
  }
  template <typename W>
  SHARDC_HD W operator()(W dy, W x) const {
    return By<Exact>(dy, x);
  }
};
struct GeluTanhGradFn {
  template <typename Math, typename W>
  SHARDC_HD W By(W dy, W x) const {
    const auto s = SigmoidSlope<W>::template Of<Math>(GeluTanhFn::TwoU(x));
    return dy * (s.value + x * s.slope * (W(2 * kRootTwoOverPi) * (W(1) + W(3 * kCubic) * x * x)));
  }
  template <typename W>
  SHARDC_HD W operator()(W dy, W x) const {
    return By<Exact>(dy, x);
  }
};
struct GeluErfGradFn {
  template <typename W>
  SHARDC_HD W operator()(W dy, W x) const {
    W bell = ::exp(W(-0.5) * x * x) * W(kBellHeight);
    return dy * (W(0.5) * (W(1) + ::erf(x * W(kRootHalf))) + x * bell);
  }
};

// Integers wrap where the CPU reference refuses; a division by zero gives 0.
SHARDC_HD int64_t WrapAdd(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
SHARDC_HD int64_t WrapMul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
struct AddFn {
  template <typename W>
  SHARDC_HD W operator()(W a, W b) const {
    if constexpr (kIsFloatW<W>)
      return a + b;
    else
      return WrapAdd(a, b);
  }
};
struct SubFn {
  template <typename W>
  SHARDC_HD W operator()(W a, W b) const {
    if constexpr (kIsFloatW<W>)
      return a - b;
    else
      return WrapAdd(a, WrapMul(b, -1));
  }
};
struct MulFn {
  template <typename W>
  SHARDC_HD W operator()(W a, W b) const {
    if constexpr (kIsFloatW<W>)
      return a * b;
    else
      return WrapMul(a, b);
  }
};
struct DivFn {
  template <typename W>
  SHARDC_HD W operator()(W a, W b) const {
    if constexpr (kIsFloatW<W>)
      return a / b;
    else
      return b == 0 ? 0 : b == -1 ? WrapMul(a, -1) : a / b;
  }
};
struct MaxFn {
  template <typename W>
  SHARDC_HD W operator()(W a, W b) const {
    return MaxNan(a, b);
  }
};
struct MinFn {
  template <typename W>
  SHARDC_HD W operator()(W a, W b) const {
    return MinNan(a, b);
  }
};
// Floats take the sign of a, integers that of b.
struct ModFn {
  template <typename W>
  SHARDC_HD W operator()(W a, W b) const {
    if constexpr (kIsFloatW<W>) {
      return ::fmod(a, b);
    } else {
      if (b == 0 || b == -1) return 0;
      W r = a % b;
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
  }
};
struct PowFn {
  template <typename W>
  SHARDC_HD W operator()(W a, W b) const {
    if constexpr (kIsFloatW<W>) {
      return ::pow(a, b);
    } else {
      if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
      W y = 1;
      for (; b > 0; b /= 2, a = WrapMul(a, a)) {
        if (b % 2) y = WrapMul(y, a);
      }
      return y;
    }
  }
};

#define SHARDC_COMPARE(Name, op)                \
  struct Name {                                 \
    template <typename W>                       \
    SHARDC_HD bool operator()(W a, W b) const { \
      return a op b;                            \
    }                                           \
  };
SHARDC_COMPARE(EqualFn, ==)
SHARDC_COMPARE(NotEqualFn, !=)
SHARDC_COMPARE(LessFn, <)
SHARDC_COMPARE(LessEqualFn, <=)
SHARDC_COMPARE(AndFn, &&)
SHARDC_COMPARE(OrFn, ||)
#undef SHARDC_COMPARE
struct IsNanFn {
  template <typename W>
  SHARDC_HD bool operator()(W x) const {
    return x != x;
  }
};
struct IsInfFn {
  template <typename W>
  SHARDC_HD bool operator()(W x) const {
    return x == Infinity<W>() || x == -Infinity<W>();
  }
};
struct NotFn {
  SHARDC_HD bool operator()(bool x) const { return !x; }
};

// Running maximum and sum of exp(x - maximum). NaN stays in the sum.
template <typename W, typename Math = Exact>
struct SoftmaxState {
  W max = -Infinity<W>(), sum = 0;
  template <int N>
  SHARDC_HD void Add(const W (&x)[N]) {
    W top = max;
    for (int j = 0; j < N; ++j) top = ::fmax(top, x[j]);
    const W from = top == -Infinity<W>() ? W(0) : top;
    // For many elements a branch costs more than another exponential.
    if (N >= 4 || top > max) sum *= Math::Exp(max - from);
    max = top;
    for (int j = 0; j < N; ++j) sum += Math::Exp(x[j] - from);
  }
  // The sum of exp(x - top), of a maximum that others have found.
  SHARDC_HD W SumFrom(W top) const {
    return max == -Infinity<W>() ? sum : sum * Math::Exp(max - top);
  }
};

// Philox4x32-10, as ir/philox.h.
struct PhiloxBlock {
  uint32_t word[4];
};
SHARDC_HD PhiloxBlock Philox(uint64_t block, uint32_t counter2, uint32_t counter3, uint64_t key) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = counter2, c3 = counter3;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

struct AdamWConstants {
  double beta1, beta2, eps, weight_decay;
};
template <typename W>
struct AdamWStep {
  W beta1, one_minus_beta1, beta2, one_minus_beta2, eps, decay, step_size, root_correction, scale;
  SHARDC_HD AdamWStep(const AdamWConstants& c, double step, double grad_scale, double lr)
      : beta1(W(c.beta1)),
        one_minus_beta1(W(1 - c.beta1)),
        beta2(W(c.beta2)),
        one_minus_beta2(W(1 - c.beta2)),
        eps(W(c.eps)),
        decay(W(lr * c.weight_decay)),
        step_size(W(lr / (1 - ::pow(c.beta1, step)))),
        root_correction(W(::sqrt(1 - ::pow(c.beta2, step)))),
        scale(W(grad_scale)) {}
  SHARDC_HD void Update(W& w, W g, W& m, W& v) const {
    g *= scale;
    m = beta1 * m + one_minus_beta1 * g;
    v = beta2 * v + one_minus_beta2 * g * g;
    w -= decay * w;
    w -= step_size * m / (::sqrt(v) / root_correction + eps);
  }
};

struct SgdConstants {
  double momentum, dampening, weight_decay;
  bool nesterov;
};
template <typename W>
SHARDC_HD void SgdUpdate(const SgdConstants& c, bool buffered, bool first, W scale, W lr, W& w, W g,
                         W& buffer) {
  W d = g * scale + W(c.weight_decay) * w;
  if (buffered) {
    buffer = first ? d : W(c.momentum) * buffer + W(1 - c.dampening) * d;
    d = c.nesterov ? d + W(c.momentum) * buffer : buffer;
  }
  w -= lr * d;
}

}  // namespace shardc::cuda
