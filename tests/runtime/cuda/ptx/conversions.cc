// PTX ISA 9.7.9: mov and cvt.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/runtime/cuda/ptx/lanes.h"

namespace shardc::ptx {
namespace {

uint16_t ToF16(float v) { return std::bit_cast<uint16_t>(static_cast<NativeF16>(v)); }
uint16_t ToBf16(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  if (std::isnan(v)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Out of range gives the nearest; NaN 0, or of 64 bits the sign alone.
template <typename I, typename F>
I Saturated(F v) {
  if (v != v) {
    constexpr bool kWide = sizeof(F) == 8 || sizeof(I) == 8;
    return kWide ? static_cast<I>(uint64_t{1} << (8 * sizeof(I) - 1)) : I(0);
  }
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

}  // namespace

Step FindConversion(const Parts& p) {
  if (p.HasAny({"ftz", "relu", "satfinite"})) return nullptr;
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

Step FindMove(const Parts& p, const Instruction& i) {
  const std::string_view type = p.Last();
  const int parts = std::max(i.results, i.slots - i.results);
  if (parts == 1) return ByBits(type, kSame1<[](auto a) { return a; }>);
  const bool pack = i.results == 1;
  if (type == "b32" && parts == 2) return pack ? &Pack<uint16_t> : &Unpack<uint16_t>;
  if (type == "b64" && parts == 2) return pack ? &Pack<uint32_t> : &Unpack<uint32_t>;
  if (type == "b64" && parts == 4) return pack ? &Pack<uint16_t> : &Unpack<uint16_t>;
  return nullptr;
}

}  // namespace shardc::ptx
