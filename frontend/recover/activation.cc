#include <cmath>
#include <numbers>

#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

// Scalars that a gelu's product is multiplied with, one after the other, or that x is. A chain of
// scalars may be as long as the graph, and each of its ops may be the end of a gelu.
constexpr int kMaxScalars = 8;

bool IsPolynomial(const Value* x, const Value* v, const Polynomial& expected) {
  std::optional<Polynomial> p = PolynomialIn(x, v);
  if (!p) return false;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0 ? (*p)[i] != 0 : !Close((*p)[i], expected[i])) return false;
  }
  return true;
}

// The erf or tanh inside a factor c * (1 + f), else null.
Op* FindFunction(const Value* v, int depth = 4) {
  Op* op = v->producer;
  if (op == nullptr || depth == 0) return nullptr;
  if (op->name() == "erf" || op->name() == "tanh") return op;
  if (op->name() != "add" && op->name() != "mul" && op->name() != "div") return nullptr;
  for (const Value* operand : op->operands) {
    if (Op* found = FindFunction(operand, depth - 1)) return found;
  }
  return nullptr;
}

// x * c * (1 + f(x)) with c = 0.5 in all, f the erf of Hendrycks & Gimpel 2016 (eq. 1) or its tanh
// form.
Value* MatchGelu(Builder& b, Value* scaled_x, Value* factor, double scale) {
  Op* f = FindFunction(factor);
  if (f == nullptr) return nullptr;
  std::optional<Polynomial> outer = PolynomialIn(f->result(), factor);
  if (!outer || (*outer)[0] == 0 || !Close((*outer)[1], (*outer)[0]) || (*outer)[2] != 0 ||
      (*outer)[3] != 0) {
    return nullptr;
  }
  scale *= (*outer)[0];
  const double root = std::sqrt(2 / std::numbers::pi);
  const Polynomial tanh_form = {0, root, 0, root * 0.044715};
  const Polynomial erf_form = {0, std::numbers::sqrt2 / 2, 0, 0};
  // x may itself be a scaled value: every way to read it is tried.
  Value* x = scaled_x;
  for (int scalars = 0; x != nullptr && scalars <= kMaxScalars; ++scalars) {
    bool tanh = f->name() == "tanh";
    if (Close(scale, 0.5) && IsPolynomial(x, f->operands[0], tanh ? tanh_form : erf_form)) {
      return b.Make("gelu", {x}, {{"approximate", std::string(tanh ? "tanh" : "none")}});
    }
    std::optional<std::pair<Value*, double>> inner = ScaledBy(x);
    if (inner) scale *= inner->second;
    x = inner ? inner->first : nullptr;
  }
  return nullptr;
}

Value* RecoverGelu(Builder& b, Op* op) {
  if (op->name() != "mul" && op->name() != "div") return nullptr;
  Value* v = op->result();
  double scale = 1;
  // Scalars outside of the product.
  for (int scalars = 0; scalars < kMaxScalars; ++scalars) {
    const auto inner = ScaledBy(v);
    if (!inner) break;
    scale *= inner->second;
    v = inner->first;
  }
  Op* product = ProducedBy(v, "mul");
  for (int i = 0; product != nullptr && i < 2; ++i) {
    Value* gelu = MatchGelu(b, product->operands[i], product->operands[1 - i], scale);
    if (gelu != nullptr && gelu->type.shape == op->out().shape) return gelu;
  }
  return nullptr;
}

// The y of sigmoid(y), written as such or as 1 / (1 + exp(-y)).
Value* SigmoidOf(const Value* v) {
  if (Op* sigmoid = ProducedBy(v, "sigmoid")) return sigmoid->operands[0];
  const Value* denominator = nullptr;
  if (Op* reciprocal = ProducedBy(v, "reciprocal")) denominator = reciprocal->operands[0];
  if (Op* div = ProducedBy(v, "div"); div && IsSplat(div->operands[0], 1))
    denominator = div->operands[1];
  Op* add = denominator ? ProducedBy(denominator, "add") : nullptr;
  for (int i = 0; add != nullptr && i < 2; ++i) {
    Op* exp = ProducedBy(add->operands[i], "exp");
    Op* neg = exp ? ProducedBy(exp->operands[0], "neg") : nullptr;
    if (neg && IsSplat(add->operands[1 - i], 1)) return neg->operands[0];
  }
  return nullptr;
}

Value* RecoverSilu(Builder& b, Op* op) {
  if (op->name() != "mul") return nullptr;
  for (int i = 0; i < 2; ++i) {
    Value* x = op->operands[i];
    // The 1 of 1 / (1 + exp(-x)) may be of a larger shape.
    if (x->type.shape == op->out().shape && SigmoidOf(op->operands[1 - i]) == x)
      return b.Make("silu", {x});
  }
  return nullptr;
}

// log(1 + x) -> log1p(x), which is exact where 1 + x has lost x.
Value* LogOfOneMore(Builder& b, Op* op) {
  Op* add = op->name() == "log" ? ProducedBy(op->operands[0], "add") : nullptr;
  for (int i = 0; add != nullptr && i < 2; ++i) {
    Value* x = add->operands[i];
    if (IsSplat(add->operands[1 - i], 1) && x->type.shape == op->out().shape) {
      return b.Make("log1p", {x});
    }
  }
  return nullptr;
}

// log(sigmoid(x)), and log(1 - sigmoid(x)) for -x -> min(x, 0) - log1p(exp(-|x|)), which is finite
// where the sigmoid is 0.
Value* LogOfSigmoid(Builder& b, Op* op) {
  if (op->name() != "log") return nullptr;
  Value* of = op->operands[0];
  Op* sub = ProducedBy(of, "sub");
  if (sub != nullptr && sub->attrs.Bool("detached", false)) return nullptr;
  const bool other = sub != nullptr && IsSplat(sub->operands[0], 1);
  Value* x = SigmoidOf(other ? sub->operands[1] : of);
  if (x == nullptr || x->type.shape != op->out().shape) return nullptr;
  if (other) x = b.Neg(x);
  Value* rest = b.Make("log1p", {b.Make("exp", {b.Neg(b.Make("abs", {x}))})});
  return b.Sub(b.Make("min", {x, b.Scalar(x->type.dtype, 0)}), rest);
}

}  // namespace

bool RecoverActivations(Graph& graph) {
  return ApplyRules(graph, {RecoverGelu, RecoverSilu, LogOfOneMore, LogOfSigmoid});
}

}  // namespace shardc::recover
