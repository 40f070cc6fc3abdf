#include "frontend/recover/bounds.h"

#include <algorithm>
#include <limits>

#include "frontend/recover/match.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

constexpr int kDepth = 16;

template <typename T>
constexpr Bounds kAll{std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};

Bounds Find(const Value* v, int depth);

// Integer arithmetic fails where it overflows: what it gives lies within the type.
int64_t Saturated(__int128 x) {
  constexpr Bounds all = kAll<int64_t>;
  return x < all.low ? all.low : x > all.high ? all.high : static_cast<int64_t>(x);
}

Bounds Either(Bounds a, Bounds b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }
Bounds Negated(Bounds a) { return {Saturated(-__int128{a.high}), Saturated(-__int128{a.low})}; }
Bounds Sum(Bounds a, Bounds b) {
  return {Saturated(__int128{a.low} + b.low), Saturated(__int128{a.high} + b.high)};
}

Bounds Product(Bounds a, Bounds b) {
  auto times = [](int64_t x, int64_t y) { return Saturated(__int128{x} * y); };
  const auto [low, high] = std::minmax(
      {times(a.low, b.low), times(a.low, b.high), times(a.high, b.low), times(a.high, b.high)});
  return {low, high};
}

// It has the sign of the divisor.
Bounds Remainder(Bounds divisor) {
  return divisor.low > 0 ? Bounds{0, divisor.high - 1} : kAll<int64_t>;
}

Bounds OfConstant(const HostTensor& data) {
  if (data.num_elements() == 0) return kAll<int64_t>;
  Bounds b{data.AsInt(0), data.AsInt(0)};
  for (int64_t i = 1; i < data.num_elements(); ++i) b = Either(b, {data.AsInt(i), data.AsInt(i)});
  return b;
}

Bounds OfOp(const Op& op, int depth) {
  auto of = [&](size_t i) { return Find(op.operands[i], depth); };
  const std::string_view name = op.name();
  if (OneOf(name, {"reshape", "transpose", "broadcast_to", "slice", "split", "gather", "gather_nd",
                   "reduce_min", "reduce_max"})) {
    return of(0);
  }
  if (name == "concat" || name == "where") {
    const size_t first = name == "where" ? 1 : 0;
    Bounds all = of(first);
    for (size_t i = first + 1; i < op.operands.size(); ++i) all = Either(all, of(i));
    return all;
  }
  if (name == "min" || name == "max") {
    const Bounds a = of(0), b = of(1);
    return name == "min" ? Bounds{std::min(a.low, b.low), std::min(a.high, b.high)}
                         : Bounds{std::max(a.low, b.low), std::max(a.high, b.high)};
  }
  if (name == "add") return Sum(of(0), of(1));
  if (name == "sub") return Sum(of(0), Negated(of(1)));
  if (name == "neg") return Negated(of(0));
  if (name == "mul") return Product(of(0), of(1));
  if (name == "mod") return Remainder(of(1));
  if (name == "top_k") return {0, op.in(0).shape[AxisOf(op.attrs, op.in(0).rank())] - 1};
  // From wider integers it wraps, which leaves what fits as it is.
  if (name == "cast" && !IsFloat(op.in(0).dtype)) return of(0);
  return kAll<int64_t>;
}

Bounds Find(const Value* v, int depth) {
  if (v->type.dtype == DType::kBool) return {0, 1};
  if (!IsInteger(v->type.dtype)) return kAll<int64_t>;
  if (const HostTensor* data = ConstantOf(v)) return OfConstant(*data);
  const Bounds type = v->type.dtype == DType::kI32 ? kAll<int32_t> : kAll<int64_t>;
  const Op* op = v->producer;
  if (op == nullptr || op->operands.empty() || depth == 0) return type;
  const Bounds b = OfOp(*op, depth - 1);
  return b.low >= type.low && b.high <= type.high ? b : type;
}

}  // namespace

Bounds BoundsOf(const Value* v) { return Find(v, kDepth); }

}  // namespace shardc::recover
