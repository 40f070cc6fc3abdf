// PTX ISA 9.7.1 to 9.7.4, 9.7.6 to 9.7.8: arithmetic, comparisons, bits.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <functional>
#include <type_traits>

#include "tests/runtime/cuda/ptx/lanes.h"

namespace shardc::ptx {
namespace {

// In another rounding than to the nearest.
template <int kMode, typename F>
auto Rounded(F f) {
  std::fesetround(kMode);
  volatile auto result = f();
  std::fesetround(FE_TONEAREST);
  return static_cast<decltype(f())>(result);
}
template <int kMode>
constexpr auto kFusedIn = [](auto a, auto b, auto c) {
  volatile auto x = a, y = b, z = c;
  return Rounded<kMode>([&] { return std::fma(x, y, z); });
};

// As wrong as the manual lets it be, this way or that: |error| <= 2^-22 of the result, or so.
float Roughly(float v) {
  if (!std::isfinite(v) || v == 0) return v;
  const uint32_t hash = std::bit_cast<uint32_t>(v) * 2654435761u;
  const float wrong = v * (1 + ((hash >> 16) % 2 == 0 ? 0x1p-22f : -0x1p-22f));
  return std::isfinite(wrong) ? wrong : v;
}
// By more than 2^126 it gives 0, of what is finite.
float DivideRoughly(float a, float b) {
  const bool large = std::isfinite(b) && std::fabs(b) > 0x1p126f;
  return large ? a * std::copysign(0.0f, b) : Roughly(a / b);
}
// Of whole numbers exact: CUDA's own exponential in f64 relies on it.
float PowerOfTwo(float v) {
  const float exact = std::exp2(v);
  return v == std::nearbyint(v) ? exact : Roughly(exact);
}
// What has 20 bits of the result.
double UpperWord(double v) {
  return std::isfinite(v) ? From<double>(Bits(v) & 0xffffffff00000000ull) : v;
}
float Flush(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }

template <typename T>
T ShiftLeft(T a, uint32_t n) {
  return n >= 8 * sizeof(T) ? T(0) : static_cast<T>(a << n);
}
template <typename T>
T ShiftRight(T a, uint32_t n) {
  if (n < 8 * sizeof(T)) return static_cast<T>(a >> n);
  return static_cast<T>(a < 0 ? -1 : 0);
}
template <typename T>
using Twice =
    std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                       std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
template <typename T>
using Double = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;

// Minimum and maximum of floats: NaN gives way to a number.
constexpr auto kMin = [](auto a, auto b) {
  if constexpr (std::is_floating_point_v<decltype(a)>)
    return std::fmin(a, b);
  else
    return std::min(a, b);
};
constexpr auto kMax = [](auto a, auto b) {
  if constexpr (std::is_floating_point_v<decltype(a)>)
    return std::fmax(a, b);
  else
    return std::max(a, b);
};

Step Arithmetic(const Parts& p) {
  const std::string_view op = p.name(), type = p.Last();
  const bool real = type.starts_with('f');
  if (p.Has("cc") || op == "addc" || op == "subc" || op == "madc") return nullptr;
  auto wrapping = [&](auto f) { return real ? ByFloat(type, f) : ByUnsigned(type, f); };
  if (op == "add" && p.Has("rz")) {
    return ByFloat(type, kSame2<[](auto a, auto b) {
                     return Rounded<FE_TOWARDZERO>([&] {
                       volatile auto x = a;
                       return x + b;
                     });
                   }>);
  }
  if (op == "add") return wrapping(kSame2<[](auto a, auto b) { return a + b; }>);
  if (op == "sub") return wrapping(kSame2<[](auto a, auto b) { return a - b; }>);
  if (op == "neg") return wrapping(kSame1<[](auto a) { return -a; }>);
  if ((op == "mul" && real) || (op == "mul" && p.Has("lo"))) {
    return wrapping(kSame2<[](auto a, auto b) {
      if constexpr (std::is_floating_point_v<decltype(a)>)
        return a * b;
      else
        return static_cast<uint64_t>(a) * b;
    }>);
  }
  if (op == "mad" && p.Has("lo")) {
    return ByUnsigned(
        type, kSame3<[](auto a, auto b, auto c) { return static_cast<uint64_t>(a) * b + c; }>);
  }
  if (p.Has("wide")) {
    return ByInteger(type, [&]<typename T>() -> Step {
      using W = Twice<T>;
      if (op == "mul") return &Map<[](auto a, auto b) { return W(a) * W(b); }, W, T, T>;
      if (op == "mad") {
        return &Map<[](auto a, auto b, auto c) { return W(a) * W(b) + c; }, W, T, T, W>;
      }
      return nullptr;
    });
  }
  if (op == "mul" && p.Has("hi")) {
    return ByInteger(type, kSame2<[](auto a, auto b) {
                       using T = decltype(a);
                       return static_cast<T>((Double<T>(a) * b) >> (8 * sizeof(T)));
                     }>);
  }
  if (op == "fma") {
    if (p.Has("rz")) return ByFloat(type, kSame3<kFusedIn<FE_TOWARDZERO>>);
    if (p.Has("rm")) return ByFloat(type, kSame3<kFusedIn<FE_DOWNWARD>>);
    if (p.Has("rp")) return ByFloat(type, kSame3<kFusedIn<FE_UPWARD>>);
    return ByFloat(type, kSame3<[](auto a, auto b, auto c) { return std::fma(a, b, c); }>);
  }
  if (op == "div" && p.Has("approx") && p.Has("ftz")) {
    return &Map<[](float a, float b) { return Flush(DivideRoughly(Flush(a), Flush(b))); }, float,
                float, float>;
  }
  if (op == "div" && p.Has("approx")) {
    return &Map<&DivideRoughly, float, float, float>;
  }
  if (op == "div") {
    return ByNumber(type, kSame2<[](auto a, auto b) {
                      using T = decltype(a);
                      if constexpr (std::is_floating_point_v<T>) return a / b;
                      // What division by 0 gives is not said; by -1 it would trap here.
                      else if (b == 0)
                        return static_cast<T>(-1);
                      else if (std::is_signed_v<T> && b == static_cast<T>(-1))
                        return static_cast<T>(T(0) - a);
                      else
                        return static_cast<T>(a / b);
                    }>);
  }
  if (op == "rem") {
    return ByInteger(type, kSame2<[](auto a, auto b) {
                       using T = decltype(a);
                       if (b == 0) return a;
                       if (std::is_signed_v<T> && b == static_cast<T>(-1)) return T(0);
                       return static_cast<T>(a % b);
                     }>);
  }
  if (op == "min") return ByNumber(type, kSame2<kMin>);
  if (op == "max") return ByNumber(type, kSame2<kMax>);
  if (op == "abs") {
    return ByNumber(type, kSame1<[](auto a) {
                      if constexpr (std::is_unsigned_v<decltype(a)>)
                        return a;
                      else
                        return std::abs(a);
                    }>);
  }
  return nullptr;
}

Step Functions(const Parts& p) {
  const std::string_view op = p.name(), type = p.Last();
  if (op == "sqrt") return ByFloat(type, kSame1<[](auto a) { return std::sqrt(a); }>);
  if (op == "rcp" && p.Has("approx") && type == "f64") {
    return &Map<[](double a) { return UpperWord(1 / a); }, double, double>;
  }
  if (op == "rcp" && p.Has("approx")) {
    return &Map<[](float a) { return Flush(Roughly(1 / Flush(a))); }, float, float>;
  }
  if (op == "rcp") return ByFloat(type, kSame1<[](auto a) { return decltype(a)(1) / a; }>);
  if (op == "rsqrt" && type == "f64") {
    return &Map<[](double a) { return UpperWord(1 / std::sqrt(UpperWord(a))); }, double, double>;
  }
  if (op == "rsqrt") {
    return &Map<[](float a) { return Roughly(1 / std::sqrt(Flush(a))); }, float, float>;
  }
  if (op == "ex2" && p.Has("ftz")) {
    return &Map<[](float a) { return Flush(PowerOfTwo(Flush(a))); }, float, float>;
  }
  if (op == "ex2") return &Map<&PowerOfTwo, float, float>;
  if (op == "copysign") {
    return ByFloat(type, kSame2<[](auto a, auto b) { return std::copysign(b, a); }>);
  }
  return nullptr;
}

uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t selector = selectors >> (4 * k);
    auto byte = static_cast<uint32_t>(bytes >> (8 * (selector & 7))) & 255;
    if (selector & 8) byte = (byte & 128) != 0 ? 255 : 0;  // its sign
    result |= byte << (8 * k);
  }
  return result;
}

Step Logic(const Parts& p) {
  const std::string_view op = p.name(), type = p.Last();
  if (op == "and") return ByBits(type, kSame2<[](auto a, auto b) { return a & b; }>);
  if (op == "or") return ByBits(type, kSame2<[](auto a, auto b) { return a | b; }>);
  if (op == "xor") return ByBits(type, kSame2<[](auto a, auto b) { return a ^ b; }>);
  if (op == "not") {
    return ByBits(type, kSame1<[](auto a) {
                    if constexpr (std::is_same_v<decltype(a), bool>)
                      return !a;
                    else
                      return ~a;
                  }>);
  }
  if (op == "shl") {
    return ByUnsigned(type, []<typename T>() -> Step {
      return &Map<[](T a, uint32_t n) { return ShiftLeft(a, n); }, T, T, uint32_t>;
    });
  }
  if (op == "shr") {
    return ByInteger(type, []<typename T>() -> Step {
      return &Map<[](T a, uint32_t n) { return ShiftRight(a, n); }, T, T, uint32_t>;
    });
  }
  if (op == "selp") {
    return ByUnsigned(type, []<typename T>() -> Step {
      return &Map<[](T a, T b, bool c) { return c ? a : b; }, T, T, T, bool>;
    });
  }
  if (op == "clz") {
    return ByUnsigned(type, []<typename T>() -> Step {
      if constexpr (std::is_same_v<T, bool>)
        return nullptr;
      else
        return &Map<[](T a) { return std::countl_zero(a); }, uint32_t, T>;
    });
  }
  if (op == "prmt" && p.First() == type) {
    return &Map<&PermuteBytes, uint32_t, uint32_t, uint32_t, uint32_t>;
  }
  if (op == "bfi") {
    return ByUnsigned(type, []<typename T>() -> Step {
      return &Map<[](T a, T b, uint32_t at, uint32_t n) {
        const uint32_t width = 8 * sizeof(T), begin = at & 255, count = n & 255;
        T result = b;
        for (uint32_t k = 0; k < count && begin + k < width; ++k) {
          const T bit = static_cast<T>(T(1) << (begin + k));
          result = static_cast<T>((a >> k) & 1 ? result | bit : result & ~bit);
        }
        return result;
      },
                  T, T, T, uint32_t, uint32_t>;
    });
  }
  return nullptr;
}

// Carries: 32 bits and what goes into the next.

template <auto kF>
void Carrying(const Instruction& i, Warp& w) {
  const bool in = i.opcode.substr(0, i.opcode.find('.')).ends_with('c');
  const bool out = i.opcode.find(".cc") != std::string_view::npos;
  Lanes(w.mask, [&](int l) {
    uint32_t a = From<uint32_t>(w.At(i.slot[1])[l]), b = From<uint32_t>(w.At(i.slot[2])[l]),
             c = i.slots > 3 ? From<uint32_t>(w.At(i.slot[3])[l]) : 0;
    const uint64_t carry = in ? (w.carry >> l) & 1 : 0;
    const uint64_t result = kF(a, b, c, carry);  // bit 32: what is carried or borrowed
    w.At(i.slot[0])[l] = static_cast<uint32_t>(result);
    if (out) w.carry = (w.carry & ~(1u << l)) | (static_cast<uint32_t>((result >> 32) & 1) << l);
  });
}

Step Carry(const Parts& p) {
  const std::string_view op = p.name(), type = p.Last();
  if (type != "u32" && type != "s32" && type != "b32") return nullptr;
  using U = uint64_t;
  if (op == "add" || op == "addc") {
    return &Carrying<[](U a, U b, U, U carry) { return a + b + carry; }>;
  }
  if (op == "sub" || op == "subc") {
    return &Carrying<[](U a, U b, U, U carry) { return a - b - carry; }>;
  }
  if ((op == "mad" || op == "madc") && p.Has("lo")) {
    return &Carrying<[](U a, U b, U c, U carry) { return ((a * b) & 0xffffffff) + c + carry; }>;
  }
  if ((op == "mad" || op == "madc") && p.Has("hi") && type == "u32") {
    return &Carrying<[](U a, U b, U c, U carry) { return ((a * b) >> 32) + c + carry; }>;
  }
  return nullptr;
}

// Of floats that are no numbers `unordered` says what it gives.
template <auto kF>
Step Comparison(std::string_view type, bool unordered) {
  if (unordered) {
    return ByFloat(type, []<typename T>() -> Step {
      return &Map<[](T a, T b) { return std::isunordered(a, b) || kF(a, b); }, bool, T, T>;
    });
  }
  return ByNumber(type, []<typename T>() -> Step { return &Map<kF, bool, T, T>; });
}

}  // namespace

Step FindArithmetic(const Parts& p) {
  const bool rsqrt = p.name() == "rsqrt";
  if (rsqrt && !(p.Has("approx") && p.Has("ftz"))) return nullptr;
  const bool divides = p.name() == "rcp" || p.name() == "div";
  const bool ftz = p.name() == "ex2" || rsqrt || (divides && p.Has("approx"));
  if (p.HasAny({"sat", "relu", "NaN", "full"}) || (p.Has("ftz") && !ftz)) return nullptr;
  const bool directed = p.name() == "fma" || (p.name() == "add" && p.Has("rz"));
  if (p.HasAny({"rz", "rm", "rp"}) && !directed) return nullptr;
  if (p.name() == "sqrt" && p.Has("approx")) return nullptr;
  if (Step step = Arithmetic(p)) return step;
  if (Step step = Functions(p)) return step;
  if (Step step = Logic(p)) return step;
  return Carry(p);
}

Step FindComparison(const Parts& p) {
  if (p.Has("ftz")) return nullptr;
  std::string_view how = p.First();
  const std::string_view type = p.Last();
  if (how == "nan") return Comparison<[](auto, auto) { return false; }>(type, true);
  if (how == "num") {
    return ByFloat(type, []<typename T>() -> Step {
      return &Map<[](T a, T b) { return !std::isunordered(a, b); }, bool, T, T>;
    });
  }
  const bool unordered = how.size() == 3 && how.ends_with('u');
  how = how.substr(0, 2);
  if (how == "eq") return Comparison<std::equal_to<>{}>(type, unordered);
  if (how == "ne")
    return Comparison<[](auto a, auto b) { return a < b || b < a; }>(type, unordered);
  if (how == "lt") return Comparison<std::less<>{}>(type, unordered);
  if (how == "le") return Comparison<std::less_equal<>{}>(type, unordered);
  if (how == "gt") return Comparison<std::greater<>{}>(type, unordered);
  if (how == "ge") return Comparison<std::greater_equal<>{}>(type, unordered);
  return nullptr;
}

}  // namespace shardc::ptx
