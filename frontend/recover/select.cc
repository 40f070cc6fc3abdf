// Choices that are written as arithmetic: x * m + y * (1 - m) with m of zeros and ones -> where.
// Where what is not chosen is infinite or NaN, the model has NaN, and this the choice.
#include <cmath>
#include <optional>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"
#include "ir/row_major.h"

namespace shardc::recover {
namespace {

// What is `one` where `condition` holds (`negated`: where it does not) and 0 elsewhere.
struct ZeroOne {
  Value* condition = nullptr;            // bool, or a constant of zeros and ones
  const HostTensor* constant = nullptr;  // its data
  bool negated = false;
  double one = 1;  // of a constant another number, where an exporter scaled it
};

std::optional<ZeroOne> AsZeroOne(Value* v) {
  if (const HostTensor* data = ConstantOf(v)) {
    if (data->num_elements() < 2) return std::nullopt;
    bool zero = false;
    std::optional<double> one;
    for (int64_t i = 0; i < data->num_elements(); ++i) {
      const double x = data->AsDouble(i);
      if (x != 0 && x != one.value_or(x)) return std::nullopt;
      zero |= x == 0;
      if (x != 0) one = x;
    }
    if (!zero || !one || !std::isfinite(*one)) return std::nullopt;
    return ZeroOne{v, data, false, *one};
  }
  if (Op* sub = ProducedBy(v, "sub"); sub && IsSplat(sub->operands[0], 1)) {
    std::optional<ZeroOne> inner = AsZeroOne(sub->operands[1]);
    if (!inner || inner->one != 1) return std::nullopt;
    inner->negated = !inner->negated;
    return inner;
  }
  Op* cast = ProducedBy(v, "cast");
  if (cast == nullptr) return std::nullopt;
  if (cast->in(0).dtype != DType::kBool) return AsZeroOne(cast->operands[0]);
  ZeroOne out{cast->operands[0]};
  while (Op* inverse = ProducedBy(out.condition, "not")) {
    out = {inverse->operands[0], nullptr, !out.negated};
  }
  return out;
}

// Whether the one is 1 exactly where the other is 0.
bool Complementary(const ZeroOne& a, const ZeroOne& b) {
  if (a.condition == b.condition) return a.negated != b.negated;
  if (!a.constant || !b.constant || a.constant->shape() != b.constant->shape()) return false;
  for (int64_t i = 0; i < a.constant->num_elements(); ++i) {
    const bool same = (a.constant->AsDouble(i) != 0) == (b.constant->AsDouble(i) != 0);
    if (same == (a.negated == b.negated)) return false;
  }
  return true;
}

Value* Choose(Builder& b, const ZeroOne& m, Value* x, Value* otherwise) {
  Value* condition = m.condition;
  if (m.constant) {
    HostTensor data(DType::kBool, m.constant->shape());
    for (int64_t i = 0; i < data.num_elements(); ++i)
      data.SetDouble(i, m.constant->AsDouble(i) != 0);
    condition = b.Constant(std::move(data));
  }
  if (m.negated) std::swap(x, otherwise);
  return b.Make("where", {condition, x, otherwise});
}

// The one number that the constant is wherever m is 0, if it is 0 wherever m is 1.
std::optional<double> FillOf(const HostTensor& constant, const ZeroOne& m) {
  if (!m.constant || constant.shape() != m.constant->shape()) return std::nullopt;
  std::optional<double> fill;
  for (int64_t i = 0; i < constant.num_elements(); ++i) {
    const double x = constant.AsDouble(i);
    const bool chosen = (m.constant->AsDouble(i) != 0) != m.negated;
    if (chosen ? x != 0 : fill && x != *fill) return std::nullopt;
    if (!chosen) fill = x;
  }
  return fill;
}

Value* Times(Builder& b, Value* x, double factor) {
  return factor == 1 ? x : b.Mul(x, b.Scalar(x->type.dtype, factor));
}

// x * m + y * (1 - m), x * m - y * (1 - m), and with a constant in the place of the second product.
Value* RecoverChoice(Builder& b, Op* op) {
  const bool sub = op->name() == "sub";
  if (!sub && op->name() != "add") return nullptr;
  for (int i = 0; i < (sub ? 1 : 2); ++i) {
    Op* product = ProducedBy(op->operands[i], "mul");
    Value* rest = op->operands[1 - i];
    for (int k = 0; product && k < 2; ++k) {
      std::optional<ZeroOne> m = AsZeroOne(product->operands[1 - k]);
      Value* x = product->operands[k];
      if (!m || product->out().shape != op->out().shape) continue;
      auto chosen = [&](Value* otherwise, double factor) -> Value* {
        if (sub) factor = -factor;
        std::optional<double> fill = SplatOf(otherwise);
        otherwise =
            fill ? b.Scalar(otherwise->type.dtype, *fill * factor) : Times(b, otherwise, factor);
        Value* y = Choose(b, *m, Times(b, x, m->one), otherwise);
        return y->type.shape == op->out().shape ? y : nullptr;
      };
      if (const HostTensor* constant = ConstantOf(rest)) {
        std::optional<double> fill = FillOf(*constant, *m);
        if (fill) return chosen(b.Scalar(op->out().dtype, *fill), 1);
      }
      Op* other = ProducedBy(rest, "mul");
      for (int j = 0; other && j < 2; ++j) {
        std::optional<ZeroOne> n = AsZeroOne(other->operands[1 - j]);
        if (n && Complementary(*m, *n)) return chosen(other->operands[j], n->one);
      }
    }
  }
  return nullptr;
}

// Probabilities times zeros and ones.
Value* RecoverMaskedSoftmax(Builder& b, Op* op) {
  for (int i = 0; op->name() == "mul" && i < 2; ++i) {
    Value* p = op->operands[i];
    if (!ProducedBy(p, "softmax") || p->type.shape != op->out().shape) continue;
    std::optional<ZeroOne> m = AsZeroOne(op->operands[1 - i]);
    if (m && m->one == 1) return Choose(b, *m, p, b.Scalar(p->type.dtype, 0));
  }
  return nullptr;
}

}  // namespace

bool RecoverSelects(Graph& graph) {
  // A choice of probabilities or zeros may be a sum, too.
  const bool changed = ApplyRules(graph, {RecoverChoice});
  return ApplyRules(graph, {RecoverMaskedSoftmax}) || changed;
}

}  // namespace shardc::recover
