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
SHARDC_UNARY(SigmoidFn, W(1) / (W(1) + ::exp(-x)))
SHARDC_UNARY(ErfFn, ::erf(x))
SHARDC_UNARY(SiluFn, x / (W(1) + ::exp(-x)))
#undef SHARDC_UNARY

inline constexpr double kCubic = 0.044715;
inline constexpr double kRootTwoOverPi = 0.7978845608028653559;
inline constexpr double kRootHalf = 0.7071067811865475244;
inline constexpr double kBellHeight = 0.3989422804014326779;  // 1 / sqrt(2 pi)

struct GeluTanhFn {
  template <typename W>
  SHARDC_HD W operator()(W x) const {
    return W(0.5) * x * (W(1) + ::tanh(W(kRootTwoOverPi) * (x + W(kCubic) * x * x * x)));
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
struct SiluGradFn {
  template <typename W>
  SHARDC_HD W operator()(W dy, W x) const {
    W s = SigmoidFn()(x);
    return dy * (s * (W(1) + x * (W(1) - s)));
  }
};
struct GeluTanhGradFn {
  template <typename W>
  SHARDC_HD W operator()(W dy, W x) const {
    W t = ::tanh(W(kRootTwoOverPi) * (x + W(kCubic) * x * x * x));
    W slope = W(0.5) * (W(1) + t) +
              W(0.5) * x * (W(1) - t * t) * W(kRootTwoOverPi) * (W(1) + W(3 * kCubic) * x * x);
    return dy * slope;
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

// Running maximum and sum of exp(x - maximum).
template <typename W>
struct SoftmaxState {
  W max = -Infinity<W>(), sum = 0;
  SHARDC_HD void Add(W x) {
    if (x == -Infinity<W>()) return;
    if (x > max) {
      sum = sum * ::exp(max - x) + W(1);
      max = x;
    } else {
      sum += ::exp(x - max);
    }
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
