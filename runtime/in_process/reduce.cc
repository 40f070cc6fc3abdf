#include "runtime/in_process/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "runtime/in_process/half.h"

namespace shardc::in_process {
namespace {

// How a stored element T becomes an accumulator and back.
template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static T Load(T x) { return x; }
  static T Store(T x) { return x; }
};
struct BF16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t x) { return BF16ToF32(x); }
  static uint16_t Store(float x) { return F32ToBF16(x); }
};
struct F16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t x) { return F16ToF32(x); }
  static uint16_t Store(float x) { return F32ToF16(x); }
};

struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
// `a != a`: a NaN wins.
struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <typename T>
  static T Apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

// Works through a block that stays in the first-level cache; being local, it also tells the
// compiler that nothing aliases, although destinations may be sources.
template <typename Format, typename Op>
void ReduceTyped(std::span<const void* const> sources, std::span<void* const> destinations,
                 int64_t begin, int64_t end) {
  using Stored = typename Format::Stored;
  using Accumulator = typename Format::Accumulator;
  constexpr int64_t kBlock = 4096 / sizeof(Accumulator);
  alignas(64) Accumulator block[kBlock];
  alignas(64) Stored result[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = std::min(kBlock, end - at);
    auto source = [&](size_t k) { return static_cast<const Stored*>(sources[k]) + at; };
    const Stored* first = source(0);
    if (sources.size() == 1) {
      for (int64_t i = 0; i < n; ++i) block[i] = Format::Load(first[i]);
    } else {
      const Stored* second = source(1);
      for (int64_t i = 0; i < n; ++i) {
        block[i] = Op::Apply(Format::Load(first[i]), Format::Load(second[i]));
      }
    }
    for (size_t k = 2; k < sources.size(); ++k) {
      const Stored* next = source(k);
      for (int64_t i = 0; i < n; ++i) block[i] = Op::Apply(block[i], Format::Load(next[i]));
    }
    const void* out = block;
    if constexpr (!std::is_same_v<Stored, Accumulator>) {
      for (int64_t i = 0; i < n; ++i) result[i] = Format::Store(block[i]);
      out = result;
    }
    for (void* destination : destinations) {
      std::memcpy(static_cast<Stored*>(destination) + at, out, n * sizeof(Stored));
    }
  }
}

template <typename Format>
void ReduceWith(std::span<const void* const> sources, std::span<void* const> destinations,
                int64_t begin, int64_t end, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceTyped<Format, Sum>(sources, destinations, begin, end);
    case ReduceOp::kMax:
      return ReduceTyped<Format, Max>(sources, destinations, begin, end);
    case ReduceOp::kMin:
      return ReduceTyped<Format, Min>(sources, destinations, begin, end);
  }
}

}  // namespace

void Reduce(std::span<const void* const> sources, std::span<void* const> destinations,
            int64_t begin, int64_t end, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kF32:
      return ReduceWith<Plain<float>>(sources, destinations, begin, end, op);
    case DType::kF16:
      return ReduceWith<F16>(sources, destinations, begin, end, op);
    case DType::kBF16:
      return ReduceWith<BF16>(sources, destinations, begin, end, op);
    case DType::kF64:
      return ReduceWith<Plain<double>>(sources, destinations, begin, end, op);
    case DType::kI32:
      return ReduceWith<Plain<int32_t>>(sources, destinations, begin, end, op);
    case DType::kI64:
      return ReduceWith<Plain<int64_t>>(sources, destinations, begin, end, op);
    case DType::kBool:
      return ReduceWith<Plain<uint8_t>>(sources, destinations, begin, end, op);
  }
}

}  // namespace shardc::in_process
