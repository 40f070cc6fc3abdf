// What the instructions are made of: values in registers, lanes, types, and an opcode's parts.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tests/runtime/cuda/ptx/instructions.h"
#include "tests/runtime/native_f16.h"

namespace shardc::ptx {

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
  bool HasAny(std::initializer_list<std::string_view> parts) const {
    for (std::string_view part : parts) {
      if (Has(part)) return true;
    }
    return false;
  }
  // The last, or the k-th before it.
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

// 16 bits of a half.
inline float FromF16(uint16_t bits) { return static_cast<float>(std::bit_cast<NativeF16>(bits)); }
inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Where the instruction's bytes at an address in shared memory's window are. Throws
// std::runtime_error where some are not shared memory, or not aligned to their number.
std::byte* ReachShared(const Instruction& i, const Warp& w, uint64_t address);

// What an instruction does, by its kind; null for what is not known. Modifiers that change a result
// and are not implemented are not known.
Step FindArithmetic(const Parts& p);
Step FindComparison(const Parts& p);
Step FindConversion(const Parts& p);
Step FindMove(const Parts& p, const Instruction& i);
Step FindAccess(const Parts& p, Space space);  // loads, stores, atomics
Step FindAddress(const Parts& p);              // conversions of addresses
Step FindCopy(std::string_view opcode);        // that go on in the background
// Of the lanes of a warp together.
Step FindExchange(const Parts& p, std::string_view opcode);

}  // namespace shardc::ptx
