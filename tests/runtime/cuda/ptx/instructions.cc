#include "tests/runtime/cuda/ptx/instructions.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "tests/runtime/cuda/ptx/memory.h"

namespace shardc::ptx {
namespace {

template <typename T>
T From(uint64_t bits) {
  if constexpr (std::is_same_v<T, bool>) {
    return (bits & 1) != 0;
  } else {
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
  }
}
template <typename T>
uint64_t Bits(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<uint64_t>(value);  // of signed numbers the sign goes on
  } else {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
  }
}

template <typename F>
void Lanes(uint32_t mask, F f) {
  if (mask == ~uint32_t{0}) {
    for (int l = 0; l < kLanes; ++l) f(l);
  } else {
    for (uint32_t m = mask; m != 0; m &= m - 1) f(std::countr_zero(m));
  }
}

// Slot 0 becomes f of the others.
template <auto kF, typename R, typename... A>
void Map(const Instruction& i, Warp& w) {
  [&]<size_t... K>(std::index_sequence<K...>) {
    uint64_t* to = w.At(i.slot[0]);
    const uint64_t* from[] = {w.At(i.slot[K + 1])...};
    Lanes(w.mask, [&](int l) { to[l] = Bits<R>(static_cast<R>(kF(From<A>(from[K][l])...))); });
  }
  (std::index_sequence_for<A...>());
}

// ---- Types.

template <typename F>
Step ByFloat(std::string_view type, F f) {
  if (type == "f32") return f.template operator()<float>();
  if (type == "f64") return f.template operator()<double>();
  return nullptr;
}
// Arithmetic wraps: signed numbers are taken as unsigned where that is the same.
template <typename F>
Step ByUnsigned(std::string_view type, F f) {
  if (type.empty() || std::string_view("usbf").find(type[0]) == std::string_view::npos)
    return nullptr;
  const std::string_view size = type.substr(1);
  if (size == "8") return f.template operator()<uint8_t>();
  if (size == "16") return f.template operator()<uint16_t>();
  if (size == "32") return f.template operator()<uint32_t>();
  if (size == "64") return f.template operator()<uint64_t>();
  return nullptr;
}
template <typename F>
Step ByBits(std::string_view type, F f) {
  return type == "pred" ? f.template operator()<bool>() : ByUnsigned(type, f);
}
template <typename F>
Step ByInteger(std::string_view type, F f) {
  if (type == "s8") return f.template operator()<int8_t>();
  if (type == "s16") return f.template operator()<int16_t>();
  if (type == "s32") return f.template operator()<int32_t>();
  if (type == "s64") return f.template operator()<int64_t>();
  if (type.starts_with('u') || type.starts_with('b')) return ByUnsigned(type, f);
  return nullptr;
}
template <typename F>
Step ByNumber(std::string_view type, F f) {
  return type.starts_with('f') ? ByFloat(type, f) : ByInteger(type, f);
}

template <auto kF>
constexpr auto kSame1 = []<typename T>() -> Step { return &Map<kF, T, T>; };
template <auto kF>
constexpr auto kSame2 = []<typename T>() -> Step { return &Map<kF, T, T, T>; };
template <auto kF>
constexpr auto kSame3 = []<typename T>() -> Step { return &Map<kF, T, T, T, T>; };

// ---- Floats.

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
// Of whole numbers exact: CUDA's own exponential in f64 relies on it.
float PowerOfTwo(float v) {
  const float exact = std::exp2(v);
  return v == std::nearbyint(v) ? exact : Roughly(exact);
}
float Flush(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }

// 16 bits of a half, as the type of a vector's elements in a register.
float FromF16(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
uint16_t ToF16(float v) { return std::bit_cast<uint16_t>(static_cast<_Float16>(v)); }
float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t ToBf16(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  if (std::isnan(v)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// ---- Decoding: the opcode's parts.

class Parts {
 public:
  explicit Parts(std::string_view opcode) : rest_(opcode) { name_ = Next(); }
  std::string_view name() const { return name_; }
  // Whether one of the parts that follow is this.
  bool Has(std::string_view part) const {
    std::string_view all = rest_;
    while (!all.empty()) {
      if (TakeFrom(all) == part) return true;
    }
    return false;
  }
  std::string_view Last(int k = 0) const {
    std::string_view s = rest_;
    for (; k > 0; --k) s = s.substr(0, s.rfind('.') == std::string_view::npos ? 0 : s.rfind('.'));
    return s.substr(s.rfind('.') + 1);
  }
  std::string_view First() const {
    std::string_view s = rest_;
    return TakeFrom(s);
  }

 private:
  static std::string_view TakeFrom(std::string_view& s) {
    size_t dot = s.find('.');
    std::string_view part = s.substr(0, dot);
    s = dot == std::string_view::npos ? std::string_view() : s.substr(dot + 1);
    return part;
  }
  std::string_view Next() { return TakeFrom(rest_); }
  std::string_view rest_, name_;
};

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
  if (op == "div" && p.Has("approx")) {
    return &Map<[](float a, float b) { return Roughly(a / b); }, float, float, float>;
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
    return &Map<[](double a) {  // 20 bits of the result
      const double r = 1 / a;
      return std::isfinite(r) ? From<double>(Bits(r) & 0xffffffff00000000ull) : r;
    },
                double, double>;
  }
  if (op == "rcp" && p.Has("approx")) {
    return &Map<[](float a) { return Flush(Roughly(1 / Flush(a))); }, float, float>;
  }
  if (op == "rcp") return ByFloat(type, kSame1<[](auto a) { return decltype(a)(1) / a; }>);
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

// ---- Carries: 32 bits and what goes into the next.

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
  if ((op == "mad" || op == "madc") && p.Has("hi")) {
    return &Carrying<[](U a, U b, U c, U carry) { return ((a * b) >> 32) + c + carry; }>;
  }
  return nullptr;
}

// ---- Comparisons.

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

Step Compare(const Parts& p) {
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

// ---- Conversions.

// Out of range gives the nearest, NaN 0.
template <typename I, typename F>
I Saturated(F v) {
  if (v != v) return 0;
  // The least above all of them is a power of two, and exact.
  const F above = std::ldexp(F(1), std::numeric_limits<I>::digits);
  if (v >= above) return std::numeric_limits<I>::max();
  if (v < (std::is_signed_v<I> ? -above : F(0))) return std::numeric_limits<I>::min();
  return static_cast<I>(v);
}
template <auto kRound, typename S>
Step ToInteger(std::string_view to) {
  return ByInteger(to, []<typename I>() -> Step {
    if constexpr (std::is_same_v<I, bool>)
      return nullptr;
    else
      return &Map<[](S v) { return Saturated<I>(kRound(v)); }, I, S>;
  });
}
template <auto kRound>
Step IntegralAs(std::string_view to, std::string_view from) {
  if (to == from) return ByFloat(to, kSame1<kRound>);
  if (to.starts_with('f')) return nullptr;
  return from == "f32"   ? ToInteger<kRound, float>(to)
         : from == "f64" ? ToInteger<kRound, double>(to)
                         : nullptr;
}

Step Convert(const Parts& p) {
  const std::string_view to = p.Last(1), from = p.Last();
  if (from.starts_with('f') && from != "f16") {
    if (p.Has("rni")) return IntegralAs<[](auto v) { return std::nearbyint(v); }>(to, from);
    if (p.Has("rzi")) return IntegralAs<[](auto v) { return std::trunc(v); }>(to, from);
    if (p.Has("rmi")) return IntegralAs<[](auto v) { return std::floor(v); }>(to, from);
    if (p.Has("rpi")) return IntegralAs<[](auto v) { return std::ceil(v); }>(to, from);
  }
  if (p.Has("sat")) {
    if (to != from) return nullptr;
    return ByFloat(to, kSame1<[](auto v) {  // into [0, 1]; NaN gives 0
                     using T = decltype(v);
                     return 0 < v ? std::min(v, T(1)) : T(0);
                   }>);
  }
  if (from == "f16" && to == "f32") return &Map<&FromF16, float, uint16_t>;
  if (from == "f32" && to == "f16" && p.Has("rn")) return &Map<&ToF16, uint16_t, float>;
  if (from == "f32" && to == "bf16" && p.Has("rn")) return &Map<&ToBf16, uint16_t, float>;
  if (from == "f32" && to == "bf16x2" && p.Has("rn")) {
    return &Map<[](float high, float low) { return uint32_t{ToBf16(high)} << 16 | ToBf16(low); },
                uint32_t, float, float>;
  }
  if (from == "f32" && to == "f16x2" && p.Has("rn")) {
    return &Map<[](float high, float low) { return uint32_t{ToF16(high)} << 16 | ToF16(low); },
                uint32_t, float, float>;
  }
  if (p.Has("rz") || p.Has("rm") || p.Has("rp")) return nullptr;
  if (from == "f64" && to == "f32") return &Map<[](double v) { return v; }, float, double>;
  if (from == "f32" && to == "f64") return &Map<[](float v) { return v; }, double, float>;
  if (from.starts_with('f')) return nullptr;
  return ByInteger(from, [&]<typename S>() -> Step {
    return ByNumber(to, []<typename To>() -> Step { return &Map<[](S v) { return v; }, To, S>; });
  });
}

// ---- Moves.

template <typename T>
void Pack(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    uint64_t bits = 0;
    for (int k = 1; k < i.slots; ++k) {
      bits |= static_cast<uint64_t>(From<T>(w.At(i.slot[static_cast<size_t>(k)])[l]))
              << (8 * sizeof(T) * static_cast<size_t>(k - 1));
    }
    w.At(i.slot[0])[l] = bits;
  });
}
template <typename T>
void Unpack(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    const uint64_t bits = w.At(i.slot[static_cast<size_t>(i.results)])[l];
    for (int k = 0; k < i.results; ++k) {
      w.At(i.slot[static_cast<size_t>(k)])[l] =
          static_cast<T>(bits >> (8 * sizeof(T) * static_cast<size_t>(k)));
    }
  });
}

Step Move(const Parts& p, const Instruction& i) {
  const std::string_view type = p.Last();
  const int parts = std::max(i.results, i.slots - i.results);
  if (parts == 1) return ByBits(type, kSame1<[](auto a) { return a; }>);
  const bool pack = i.results == 1;
  if (type == "b32" && parts == 2) return pack ? &Pack<uint16_t> : &Unpack<uint16_t>;
  if (type == "b64" && parts == 2) return pack ? &Pack<uint32_t> : &Unpack<uint32_t>;
  if (type == "b64" && parts == 4) return pack ? &Pack<uint16_t> : &Unpack<uint16_t>;
  return nullptr;
}

// ---- Memory.

enum class Space { kGeneric, kGlobal, kShared, kLocal, kParam };

template <Space kSpace>
std::byte* Reach(const Instruction& i, const Warp& w, int lane, uint64_t address) {
  const Block& block = *w.block;
  if (address % i.bytes != 0) throw std::runtime_error("an address that is not aligned");
  const auto bytes = static_cast<int64_t>(i.bytes);
  if constexpr (kSpace == Space::kShared) {
    const auto at = static_cast<int64_t>(static_cast<uint32_t>(address)) - kSharedWindow;
    if (at < 0 || at + bytes > block.shared_bytes) {
      throw std::runtime_error("outside of shared memory, which has " +
                               std::to_string(block.shared_bytes) + " bytes: byte " +
                               std::to_string(at));
    }
    return block.shared + at;
  }
  auto* p = reinterpret_cast<std::byte*>(address);
  auto within = [&](const std::byte* begin, int64_t size) {
    return p >= begin && p + bytes <= begin + size;
  };
  const bool generic = kSpace == Space::kGeneric;
  if ((generic || kSpace == Space::kGlobal) && block.memory->Holds(p, bytes)) return p;
  // Parameters of calls are in local memory.
  if ((generic || kSpace == Space::kLocal || kSpace == Space::kParam) &&
      within(w.local + lane * w.local_bytes, w.local_bytes)) {
    return p;
  }
  if ((generic || kSpace == Space::kParam) && within(block.params, block.param_bytes)) return p;
  if (generic && within(block.shared, block.shared_bytes)) return p;
  throw std::runtime_error("outside of what was allocated");
}

template <typename T, int kN, Space kSpace>
void Load(const Instruction& i, Warp& w) {
  const uint64_t* base = w.At(i.slot[kN]);
  Lanes(w.mask, [&](int l) {
    const std::byte* p = Reach<kSpace>(i, w, l, base[l] + static_cast<uint64_t>(i.offset));
    T values[kN];
    std::memcpy(values, p, sizeof(values));
    for (size_t k = 0; k < kN; ++k) w.At(i.slot[k])[l] = Bits(values[k]);
  });
}
template <typename T, int kN, Space kSpace>
void Store(const Instruction& i, Warp& w) {
  const uint64_t* base = w.At(i.slot[0]);
  Lanes(w.mask, [&](int l) {
    std::byte* p = Reach<kSpace>(i, w, l, base[l] + static_cast<uint64_t>(i.offset));
    T values[kN];
    for (size_t k = 0; k < kN; ++k) values[k] = From<T>(w.At(i.slot[k + 1])[l]);
    std::memcpy(p, values, sizeof(values));
  });
}

template <Space kSpace>
Step Access(const Parts& p) {
  const std::string_view type = p.Last();
  const bool load = p.name() == "ld";
  auto of = [&]<int kN>(std::integral_constant<int, kN>) {
    auto make = [&]<typename T>() -> Step {
      if constexpr (std::is_same_v<T, bool>)
        return nullptr;
      else
        return load ? &Load<T, kN, kSpace> : &Store<T, kN, kSpace>;
    };
    return load && type.starts_with('s') ? ByInteger(type, make) : ByUnsigned(type, make);
  };
  if (p.Has("v4")) return of(std::integral_constant<int, 4>());
  if (p.Has("v2")) return of(std::integral_constant<int, 2>());
  return of(std::integral_constant<int, 1>());
}

template <typename T>
void CompareAndSwap(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {  // one after the other
    auto* p = Reach<Space::kGlobal>(i, w, l, w.At(i.slot[1])[l] + static_cast<uint64_t>(i.offset));
    T old;
    std::memcpy(&old, p, sizeof(T));
    const T next = From<T>(w.At(i.slot[3])[l]);
    if (old == From<T>(w.At(i.slot[2])[l])) std::memcpy(p, &next, sizeof(T));
    w.At(i.slot[0])[l] = Bits(old);
  });
}
template <typename T>
void AddTo(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    auto* p = Reach<Space::kGlobal>(i, w, l, w.At(i.slot[1])[l] + static_cast<uint64_t>(i.offset));
    T old;
    std::memcpy(&old, p, sizeof(T));
    const T next = static_cast<T>(old + From<T>(w.At(i.slot[2])[l]));
    std::memcpy(p, &next, sizeof(T));
    w.At(i.slot[0])[l] = Bits(old);
  });
}

Step Atomic(const Parts& p) {
  const std::string_view type = p.Last();
  if (p.First() != "global") return nullptr;
  if (p.Has("cas"))
    return type == "b64"   ? &CompareAndSwap<uint64_t>
           : type == "b32" ? &CompareAndSwap<uint32_t>
                           : nullptr;
  if (p.Has("add") && (type == "u32" || type == "s32")) return &AddTo<uint32_t>;
  return nullptr;
}

// Between addresses of shared memory's window and generic ones.
void SharedToGeneric(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    w.At(i.slot[0])[l] = reinterpret_cast<uintptr_t>(w.block->shared) + w.At(i.slot[1])[l] -
                         static_cast<uint64_t>(kSharedWindow);
  });
}
void GenericToShared(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    w.At(i.slot[0])[l] = w.At(i.slot[1])[l] - reinterpret_cast<uintptr_t>(w.block->shared) +
                         static_cast<uint64_t>(kSharedWindow);
  });
}

Step Address(const Parts& p) {
  if (p.Has("shared")) return p.Has("to") ? &GenericToShared : &SharedToGeneric;
  return &Map<[](uint64_t a) { return a; }, uint64_t, uint64_t>;
}

// ---- What the lanes of a warp do together.

// Butterflies and lanes by number, of segments (the clamp's upper bits) that are whole warps.
template <typename F>
void Shuffle(const Instruction& i, Warp& w, F source) {
  uint64_t old[kLanes];
  std::copy_n(w.At(i.slot[static_cast<size_t>(i.results)]), kLanes, old);
  Lanes(w.mask, [&](int l) {
    const auto operand = From<uint32_t>(w.At(i.slot[static_cast<size_t>(i.results) + 1])[l]);
    if (From<uint32_t>(w.At(i.slot[static_cast<size_t>(i.results) + 2])[l]) != 31) {
      throw std::runtime_error("a shuffle within a part of the warp");
    }
    const int from = source(l, static_cast<int>(operand));
    if (((w.mask >> from) & 1) == 0)
      throw std::runtime_error("a shuffle from a lane that is not there");
    w.At(i.slot[0])[l] = From<uint32_t>(old[from]);
    if (i.results > 1) w.At(i.slot[1])[l] = 1;
  });
}
void ShuffleButterfly(const Instruction& i, Warp& w) {
  Shuffle(i, w, [](int lane, int operand) { return (lane ^ operand) & 31; });
}
void ShuffleIndex(const Instruction& i, Warp& w) {
  Shuffle(i, w, [](int, int operand) { return operand & 31; });
}

// Four matrices of 8 rows of 8 halves (16 bytes): lanes 8j to 8j+7 give the rows of matrix j.
template <bool kTransposed>
void LoadMatrices(const Instruction& i, Warp& w) {
  uint16_t matrix[4][8][8];
  for (int l = 0; l < kLanes; ++l) {
    const std::byte* row =
        Reach<Space::kShared>(i, w, l, w.At(i.slot[4])[l] + static_cast<uint64_t>(i.offset));
    std::memcpy(matrix[l / 8][l % 8], row, 16);
  }
  for (int l = 0; l < kLanes; ++l) {
    for (int j = 0; j < 4; ++j) {
      const int row = l / 4, column = l % 4 * 2;
      const uint16_t low = kTransposed ? matrix[j][column][row] : matrix[j][row][column],
                     high = kTransposed ? matrix[j][column + 1][row] : matrix[j][row][column + 1];
      w.At(i.slot[static_cast<size_t>(j)])[l] = uint32_t{high} << 16 | low;
    }
  }
}

// D = A B + C, A [16, 16], B [16, 8] of halves, C and D [16, 8] of f32.
template <auto kWiden>
void MultiplyMatrices(const Instruction& i, Warp& w) {
  float a[16][16], b[16][8], d[16][8];
  auto half = [&](size_t slot, int l, int k) {
    return kWiden(static_cast<uint16_t>(w.At(i.slot[slot])[l] >> (16 * k)));
  };
  for (int l = 0; l < kLanes; ++l) {
    const int group = l / 4, pair = l % 4 * 2;
    for (int k = 0; k < 2; ++k) {
      a[group][pair + k] = half(4, l, k);
      a[group + 8][pair + k] = half(5, l, k);
      a[group][pair + 8 + k] = half(6, l, k);
      a[group + 8][pair + 8 + k] = half(7, l, k);
      b[pair + k][group] = half(8, l, k);
      b[pair + 8 + k][group] = half(9, l, k);
      d[group][pair + k] = From<float>(w.At(i.slot[static_cast<size_t>(10 + k)])[l]);
      d[group + 8][pair + k] = From<float>(w.At(i.slot[static_cast<size_t>(12 + k)])[l]);
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[m][k] * b[k][n];
      d[m][n] += sum;
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    const int group = l / 4, pair = l % 4 * 2;
    for (size_t k = 0; k < 2; ++k) {
      w.At(i.slot[k])[l] = Bits(d[group][static_cast<size_t>(pair) + k]);
      w.At(i.slot[2 + k])[l] = Bits(d[group + 8][static_cast<size_t>(pair) + k]);
    }
  }
}

Step Together(const Parts& p, std::string_view opcode) {
  if (opcode == "shfl.sync.bfly.b32") return &ShuffleButterfly;
  if (opcode == "shfl.sync.idx.b32") return &ShuffleIndex;
  if (opcode == "bar.warp.sync") return [](const Instruction&, Warp&) {};
  if (opcode == "ldmatrix.sync.aligned.m8n8.x4.shared.b16") return &LoadMatrices<false>;
  if (opcode == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") return &LoadMatrices<true>;
  if (p.name() == "mma" && p.Has("m16n8k16") && p.Has("row") && p.Has("col")) {
    if (opcode.ends_with("f32.f16.f16.f32")) return &MultiplyMatrices<&FromF16>;
    if (opcode.ends_with("f32.bf16.bf16.f32")) return &MultiplyMatrices<&FromBf16>;
  }
  return nullptr;
}

size_t BytesOf(const Parts& p) {
  if (p.name() == "ldmatrix") return 16;
  const std::string_view type = p.Last();
  const size_t bits = type.ends_with("64")   ? 64
                      : type.ends_with("32") ? 32
                      : type.ends_with("16") ? 16
                                             : 8;
  return bits / 8 * (p.Has("v4") ? 4 : p.Has("v2") ? 2 : 1);
}

Step Find(const Parts& p, const Instruction& i) {
  const std::string_view op = p.name();
  if (op == "mov") return Move(p, i);
  if (op == "ld" || op == "st") {
    if (p.Has("global")) return Access<Space::kGlobal>(p);
    if (p.Has("shared")) return Access<Space::kShared>(p);
    if (p.Has("local")) return Access<Space::kLocal>(p);
    if (p.Has("param")) return Access<Space::kParam>(p);
    return Access<Space::kGeneric>(p);
  }
  if (op == "atom") return Atomic(p);
  if (op == "cvta") return Address(p);
  if (op == "cvt") return Convert(p);
  if (op == "setp") return i.results == 1 && i.slots == 3 ? Compare(p) : nullptr;
  if (Step step = Arithmetic(p)) return step;
  if (Step step = Functions(p)) return step;
  if (Step step = Logic(p)) return step;
  return Carry(p);
}

}  // namespace

void Decode(Instruction& i) {
  const Parts p(i.opcode);
  if (p.name() == "bra" || p.name() == "ret") {
    i.kind = p.name() == "bra" ? Kind::kBranch : Kind::kReturn;
    return;
  }
  if (i.opcode == "bar.sync" && i.guard < 0) {
    i.kind = Kind::kBarrier;
    return;
  }
  i.step = Together(p, i.opcode);
  if (i.step != nullptr) i.kind = Kind::kTogether;
  if (p.name() == "ld" || p.name() == "st" || p.name() == "atom" || p.name() == "ldmatrix") {
    i.bytes = BytesOf(p);
  }
  if (i.step == nullptr) i.step = Find(p, i);
  if (i.step == nullptr) {
    throw std::runtime_error("PTX line " + std::to_string(i.line) + ": unknown instruction '" +
                             std::string(i.opcode) + "'");
  }
}

}  // namespace shardc::ptx
