#include <algorithm>

#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

bool IsLastDim(const Op& reduce) {
  const Ints& axes = reduce.attrs.IntList("axes");
  return axes.size() == 1 && IsLastAxis(axes[0], reduce.in(0).rank());
}

// The x of mean(x) over the last dim, which stays as 1, else null.
Value* MeanOf(const Value* v) {
  if (Op* reshape = ProducedBy(v, "reshape")) v = reshape->operands[0];
  Op* mean = ProducedBy(v, "reduce_mean");
  return mean && IsLastDim(*mean) ? mean->operands[0] : nullptr;
}

// The y of sqrt(y) or y ^ 0.5, else null.
Value* RootOf(const Value* v) {
  if (Op* sqrt = ProducedBy(v, "sqrt")) return sqrt->operands[0];
  Op* pow = ProducedBy(v, "pow");
  return pow && IsSplat(pow->operands[1], 0.5) ? pow->operands[0] : nullptr;
}

// The y of 1 / sqrt(y) however it is written, else null.
Value* InverseRootOf(const Value* v) {
  if (Op* rsqrt = ProducedBy(v, "rsqrt")) return rsqrt->operands[0];
  if (Op* reciprocal = ProducedBy(v, "reciprocal")) return RootOf(reciprocal->operands[0]);
  if (Op* div = ProducedBy(v, "div"); div && IsSplat(div->operands[0], 1)) {
    return RootOf(div->operands[1]);
  }
  Op* pow = ProducedBy(v, "pow");
  return pow && IsSplat(pow->operands[1], -0.5) ? pow->operands[0] : nullptr;
}

// n / sqrt(mean(n ^ 2) + eps); with n = x - mean(x) it is a layer_norm of x.
Value* MatchNorm(Builder& b, Value* n, Value* radicand, const Shape& shape) {
  Op* add = radicand ? ProducedBy(radicand, "add") : nullptr;
  if (add == nullptr || n->type.rank() == 0 || n->type.shape != shape) return nullptr;
  Shape statistic = n->type.shape;
  statistic.back() = 1;
  if (radicand->type.shape != statistic) return nullptr;
  for (int i = 0; i < 2; ++i) {
    std::optional<double> eps = SplatOf(add->operands[1 - i]);
    Value* squares = MeanOf(add->operands[i]);
    if (!eps || squares == nullptr || SquareOf(squares) != n) continue;
    Op* centered = ProducedBy(n, "sub");
    bool layer = centered != nullptr && centered->in(0).shape == shape &&
                 centered->in(1).shape == statistic &&
                 MeanOf(centered->operands[1]) == centered->operands[0];
    Attributes attrs = {{"eps", *eps}};
    if (layer) return b.Create("layer_norm", {centered->operands[0]}, std::move(attrs))->result();
    return b.Create("rms_norm", {n}, std::move(attrs))->result();
  }
  return nullptr;
}

Value* RecoverNorm(Builder& b, Op* op) {
  if (op->name() == "div") {
    return MatchNorm(b, op->operands[0], RootOf(op->operands[1]), op->out().shape);
  }
  if (op->name() != "mul") return nullptr;
  for (int i = 0; i < 2; ++i) {
    Value* y = MatchNorm(b, op->operands[i], InverseRootOf(op->operands[1 - i]), op->out().shape);
    if (y != nullptr) return y;
  }
  return nullptr;
}

// The eps of inverse_root = 1 / sqrt(mean((x - mean) ^ 2) + eps), a number for each row of x.
std::optional<double> EpsOfVariance(const Value* inverse_root, const Value* x, const Value* mean) {
  Value* radicand = InverseRootOf(inverse_root);
  Op* add = radicand ? ProducedBy(radicand, "add") : nullptr;
  if (add == nullptr || inverse_root->type.shape != mean->type.shape) return std::nullopt;
  for (int i = 0; i < 2; ++i) {
    Value* squares = MeanOf(add->operands[i]);
    Value* root = squares ? SquareOf(squares) : nullptr;
    Op* centered = root ? ProducedBy(root, "sub") : nullptr;
    if (centered && centered->operands[0] == x && centered->operands[1] == mean)
      return SplatOf(add->operands[1 - i]);
  }
  return std::nullopt;
}

// A vector over the last dim as [h], else null.
Value* AsVector(Builder& b, Value* v, int64_t size) {
  if (v->type.rank() == 0 || v->type.shape.back() != size || v->type.num_elements() != size) {
    return nullptr;
  }
  return b.Reshape(v, {size});
}

// x * s + (bias - mean * s) with s = weight / sqrt(variance + eps): a layer_norm as TensorFlow
// writes it.
Value* MatchScaleAndShift(Builder& b, Op* scaled, Op* shift) {
  Op* product = ProducedBy(shift->operands[1], "mul");
  for (int i = 0; product != nullptr && i < 4; ++i) {
    Value *x = scaled->operands[i / 2], *s = scaled->operands[1 - i / 2];
    Value* mean = product->operands[i % 2];
    Op* scale = ProducedBy(s, "mul");
    if (product->operands[1 - i % 2] != s || scale == nullptr || MeanOf(mean) != x) continue;
    Shape statistic = x->type.shape;
    statistic.back() = 1;
    if (mean->type.shape != statistic) continue;  // else it is another row's
    for (int k = 0; k < 2; ++k) {
      std::optional<double> eps = EpsOfVariance(scale->operands[k], x, mean);
      if (!eps) continue;
      Value* weight = AsVector(b, scale->operands[1 - k], x->type.shape.back());
      Value* bias = AsVector(b, shift->operands[0], x->type.shape.back());
      if (!weight || !bias) return nullptr;
      return b.Create("layer_norm", {x, weight, bias}, {{"eps", *eps}})->result();
    }
  }
  return nullptr;
}

Value* RecoverScaledAndShifted(Builder& b, Op* op) {
  if (op->name() != "add") return nullptr;
  for (int i = 0; i < 2; ++i) {
    Op *scaled = ProducedBy(op->operands[i], "mul"),
       *shift = ProducedBy(op->operands[1 - i], "sub");
    Value* y = scaled && shift ? MatchScaleAndShift(b, scaled, shift) : nullptr;
    if (y != nullptr && y->type.shape == op->out().shape) return y;
  }
  return nullptr;
}

// norm(x) * w -> norm(x, w); layer_norm(x, w) + b -> layer_norm(x, w, b).
Value* AbsorbWeightOrBias(Builder& b, Op* op) {
  bool mul = op->name() == "mul", add = op->name() == "add";
  if (!mul && !add) return nullptr;
  for (int i = 0; i < 2; ++i) {
    Op* norm = op->operands[i]->producer;
    if (norm == nullptr || op->operands[i] != norm->result() || op->in(i).shape != op->out().shape)
      continue;
    bool layer = norm->name() == "layer_norm", rms = norm->name() == "rms_norm";
    if (!(layer || (rms && mul)) || norm->operands.size() != (mul ? 1u : 2u)) continue;
    if (CountUses(norm->result()) != 1 || !OnlyFirstResultRead(*norm)) continue;
    Value* vector = AsVector(b, op->operands[1 - i], op->out().shape.back());
    if (vector == nullptr) continue;
    std::vector<Value*> operands = norm->operands;
    operands.push_back(vector);
    b.BelongWith(*norm);
    return b.Create(norm->name(), std::move(operands), norm->attrs)->result();
  }
  return nullptr;
}

// TorchScript gives a layer_norm without bias a constant of zeros.
Value* DropNeutralOperand(Builder& b, Op* op) {
  if (!IsNorm(op) || op->operands.size() < 2 || !OnlyFirstResultRead(*op)) return nullptr;
  bool bias = op->operands.size() == 3;
  if (!IsSplat(op->operands.back(), bias ? 0 : 1)) return nullptr;
  std::vector<Value*> operands = op->operands;
  operands.pop_back();
  return b.Create(op->name(), std::move(operands), op->attrs)->result();
}

}  // namespace

bool RecoverNorms(Graph& graph) {
  return ApplyRules(graph,
                    {RecoverNorm, RecoverScaledAndShifted, AbsorbWeightOrBias, DropNeutralOperand});
}

}  // namespace shardc::recover
