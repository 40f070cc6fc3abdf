// Attention as exporters write it, in the forms that tests combine.
#pragma once

#include <functional>
#include <limits>

#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {

inline constexpr int64_t kB = 2, kS = 5, kHeads = 4, kD = 6;
inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kMin = -3.4028234663852886e38;

// `on` where keep(query, key), else `off`.
HostTensor Mask(const Shape& shape, DType dtype, double on, double off,
                const std::function<bool(int64_t i, int64_t j)>& keep);
inline bool Triangle(int64_t i, int64_t j) { return j <= i; }
inline bool Band(int64_t i, int64_t j) { return j <= i && j + 2 > i; }

// What stands between the scores and the softmax.
using MaskFn = std::function<Value*(TestGraph&, Value*)>;
MaskFn AddConst(HostTensor t);
MaskFn WhereConst(HostTensor keep, double fill);

// kOneHead: one head of k and v, repeated as it is multiplied.
enum class KForm { kPerm, kAfterHeads, kFlat, kNt, kOneHead };
struct Form {
  KForm k = KForm::kPerm;
  int scale = 0;  // where and how the scores are scaled: four ways
  int heads_kv = kHeads;
  MaskFn mask = [](TestGraph&, Value* s) { return s; };
  // Rows that see no key: 1: NaNs are replaced; 2, 3: by what _safe_softmax asks, and its opposite.
  int guard = 0;
  bool rotate = false;
  enum Repeat { kHeadsFirst, kHeadsLast, kTile, kStack } repeat = kHeadsFirst;  // of kv heads
  double dropout = 0;
};

// Of q, k, v from inputs [b, s, heads * d], o back to that.
Graph RecoverForm(const Form& f);

}  // namespace shardc::recover_testing
