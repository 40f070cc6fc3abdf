// Straight-line programs over scalars: what the op fused_elementwise does to every element.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attributes.h"

namespace shardc {

struct Op;

// Float functions of one to three floats. Of the gradients the first operand is dy, the second what
// the op saved. Comparisons give 1 or 0; kWhere is its second operand where the first is not 0,
// else the third.
enum class ScalarOp : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMin,
  kMax,
  kNeg,
  kAbs,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kExp,
  kLog,
  kLog1p,
  kSin,
  kCos,
  kTanh,
  kErf,
  kSigmoid,
  kRelu,
  kSilu,
  kGeluTanh,
  kGeluErf,
  kTanhGrad,
  kSigmoidGrad,
  kReluGrad,
  kSiluGrad,
  kGeluTanhGrad,
  kGeluErfGrad,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kWhere,
};
inline constexpr int kNumScalarOps = static_cast<int>(ScalarOp::kWhere) + 1;
inline bool IsComparison(ScalarOp op) {
  return op >= ScalarOp::kEqual && op <= ScalarOp::kGreaterEqual;
}

struct ScalarOpInfo {
  std::string_view name;         // in a program: "gelu_tanh"
  std::string_view op;           // the op that does it to tensors: "gelu"
  std::string_view approximate;  // ... with this attribute; empty: it has none
  int operands;
};
const ScalarOpInfo& InfoOf(ScalarOp op);
// What the op does to each element, if it is one of these.
std::optional<ScalarOp> ScalarOpOf(const Op& op);

struct ScalarStep {
  ScalarOp op;
  std::array<int, 3> operands{};  // numbers of values; the first ones count
};

// Values are numbered: first the `inputs`, then one per step.
struct ScalarProgram {
  static constexpr int kMaxInputs = 12, kMaxSteps = 24, kMaxResults = 6;

  int inputs = 0;
  std::vector<ScalarStep> steps;
  std::vector<int> results;

  // {"steps": ["mul 0 1", "silu 2"], "results": [3]}
  Strings StepsToStrings() const;
  // The program of an op with these attributes. Throws Diagnostic E1101 when it is malformed, uses
  // a value before it is made, or is beyond the limits.
  static ScalarProgram Parse(const Attributes& attrs, int inputs);
};

}  // namespace shardc
