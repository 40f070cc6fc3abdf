#include "frontend/onnx/delicate.h"

#include <cmath>
#include <set>

#include "ir/constant.h"
#include "ir/op_def.h"

namespace shardc::onnx_import {
namespace {

bool IsPositive(const Value* v) {
  const HostTensor* t = ConstantOf(v);
  for (int64_t i = 0; t != nullptr && i < t->num_elements(); ++i) {
    if (!(t->AsDouble(i) > 0)) return false;
  }
  return t != nullptr;
}

// Whether all elements are known to be at least 0; with `more`, to be more.
bool IsAbove(const Value* v, bool more, int steps = 6) {
  static const std::set<std::string_view> kSame = {"sqrt", "reshape", "broadcast_to", "transpose"};
  static const std::set<std::string_view> kOfAny = {"abs", "relu", "sigmoid"};
  if (ConstantOf(v) != nullptr) return IsPositive(v);
  const Op* op = v->producer;
  if (op == nullptr || op->operands.empty() || --steps < 0) return false;
  const Value *a = op->operands[0], *b = op->operands.back();
  const std::string_view name = op->name();
  auto above = [steps](const Value* x, bool is_more) { return IsAbove(x, is_more, steps); };
  if (name == "add")
    return (above(a, more) && above(b, false)) || (above(a, false) && above(b, more));
  if (kSame.contains(name)) return above(a, more);
  if (name == "exp") return true;
  if (more) return false;
  if (name == "pow" || name == "mul") {
    const HostTensor* power = name == "pow" ? ConstantOf(b) : nullptr;
    return a == b || (power && power->num_elements() == 1 && power->AsDouble(0) == 2);
  }
  if (name == "reduce_mean" || name == "reduce_sum") return above(a, false);
  return kOfAny.contains(name);
}

}  // namespace

int DelicateOperand(std::string_view op, const std::vector<Value*>& operands) {
  static const std::set<std::string_view> kSecond = {"gather", "gather_nd", "div", "mod"};
  static const std::set<std::string_view> kFirst = {"log", "sqrt", "rsqrt", "reciprocal"};
  if (kSecond.contains(op)) return 1;
  if (kFirst.contains(op)) return 0;
  if (op != "pow") return -1;
  const HostTensor* power = ConstantOf(operands[1]);
  for (int64_t i = 0; power != nullptr && i < power->num_elements(); ++i) {
    const double p = power->AsDouble(i);
    if (p < 1 || p != std::floor(p)) return 0;
  }
  return power != nullptr ? -1 : 0;
}

bool IsKnownPositive(const Value* v) { return IsAbove(v, true); }

}  // namespace shardc::onnx_import
