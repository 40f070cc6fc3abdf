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

// The x of x - mean(x), else null.
Value* CenteredFrom(const Value* v) {
  Op* sub = ProducedBy(v, "sub");
  if (sub == nullptr || sub->in(0).rank() == 0 || sub->in(0).shape != v->type.shape) return nullptr;
  Shape statistic = v->type.shape;
  statistic.back() = 1;
  if (sub->in(1).shape != statistic) return nullptr;  // else it is another row's
  return MeanOf(sub->operands[1]) == sub->operands[0] ? sub->operands[0] : nullptr;
}

// mean((x - mean(x)) ^ 2), or mean(x ^ 2) - mean(x) ^ 2, which rounding may make negative.
bool IsVarianceOf(const Value* v, const Value* x) {
  Value* squares = MeanOf(v);
  if (Value* root = squares ? SquareOf(squares) : nullptr) return CenteredFrom(root) == x;
  for (int i = 0; i < 2; ++i) {
    Op* floor = ProducedBy(v, "max");
    if (floor && IsSplat(floor->operands[1 - i], 0) && floor->in(i).shape == v->type.shape)
      v = floor->operands[i];
  }
  if (Op* relu = ProducedBy(v, "relu")) v = relu->operands[0];
  Op* sub = ProducedBy(v, "sub");
  squares = sub ? MeanOf(sub->operands[0]) : nullptr;
  Value* mean = sub ? SquareOf(sub->operands[1]) : nullptr;
  return squares && mean && SquareOf(squares) == x && MeanOf(mean) == x &&
         mean->type.shape == v->type.shape;
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
    if (!eps) continue;
    Attributes attrs = {{"eps", *eps}};
    if (Value* x = CenteredFrom(n); x && IsVarianceOf(add->operands[i], x))
      return b.Create("layer_norm", {x}, std::move(attrs))->result();
    Value* squares = MeanOf(add->operands[i]);
    if (squares && SquareOf(squares) == n)
      return b.Create("rms_norm", {n}, std::move(attrs))->result();
  }
  return nullptr;
}

// v = scale * w with a number of `shape` for each row: (scale, w); as it stands: (v, null).
std::vector<std::pair<Value*, Value*>> FactorsOf(Value* v, const Shape& shape) {
  std::vector<std::pair<Value*, Value*>> factors = {{v, nullptr}};
  Op* mul = ProducedBy(v, "mul");
  for (int i = 0; mul && i < 2; ++i) {
    if (mul->in(i).shape == shape) factors.emplace_back(mul->operands[i], mul->operands[1 - i]);
  }
  return factors;
}

Shape StatisticOf(const Value* x) {
  Shape shape = x->type.shape;
  if (!shape.empty()) shape.back() = 1;
  return shape;
}

// Also n * (w / sqrt(..)).
Value* RecoverNorm(Builder& b, Op* op) {
  if (op->name() == "div") {
    return MatchNorm(b, op->operands[0], RootOf(op->operands[1]), op->out().shape);
  }
  if (op->name() != "mul") return nullptr;
  for (int i = 0; i < 2; ++i) {
    Value* n = op->operands[i];
    for (const auto& [scale, weight] : FactorsOf(op->operands[1 - i], StatisticOf(n))) {
      Value* y = MatchNorm(b, n, InverseRootOf(scale), op->out().shape);
      if (y != nullptr) return weight ? b.Mul(y, weight) : y;
    }
  }
  return nullptr;
}

// The x of which v is the root of the sum of squares over the last dim, which stays as 1, maybe
// chosen to be zero where the sum is, for the gradient's sake; else null.
Value* LengthOf(const Value* v) {
  const Value* zero = nullptr;  // the condition
  if (Op* where = ProducedBy(v, "where"); where && IsSplat(where->operands[1], 0)) {
    zero = where->operands[0];
    v = where->operands[2];
  }
  Value* sum = RootOf(v);
  if (zero != nullptr) {
    Op* where = sum ? ProducedBy(sum, "where") : nullptr;
    if (where == nullptr || where->operands[0] != zero) return nullptr;
    sum = where->operands[2];
    Op* equal = ProducedBy(zero, "equal");
    if (!equal || equal->operands[0] != sum || !IsSplat(equal->operands[1], 0)) return nullptr;
  }
  Op* squares = sum ? ProducedBy(sum, "reduce_sum") : nullptr;
  return squares && IsLastDim(*squares) ? SquareOf(squares->operands[0]) : nullptr;
}

// x / max(|x|, floor), as F.normalize is -> rms_norm(x) / sqrt(d): with d * eps = floor ^ 2 it is
// the same in f32 for all |x| that are not near a floor that nothing but a row of zeros is near to,
// and for that row.
Value* RecoverUnitNorm(Builder& b, Op* op) {
  constexpr double kMostFloor = 1e-8, kLeastEps = 1e-36;
  if (op->name() != "div" || op->out().dtype == DType::kF16 || op->out().rank() == 0)
    return nullptr;
  Value* x = op->operands[0];
  Op* max = ProducedBy(op->operands[1], "max");
  for (int i = 0; max && i < 2; ++i) {
    std::optional<double> floor = SplatOf(max->operands[1 - i]);
    if (!floor || !(*floor > 0 && *floor <= kMostFloor) || LengthOf(max->operands[i]) != x ||
        x->type.shape != op->out().shape || max->in(i).shape != StatisticOf(x)) {
      continue;
    }
    const auto d = static_cast<double>(x->type.shape.back());
    const double eps = *floor * *floor / d;
    if (!(eps >= kLeastEps)) return nullptr;
    Value* y = b.Create("rms_norm", {x}, {{"eps", eps}})->result();
    return b.Mul(y, b.Scalar(y->type.dtype, 1 / std::sqrt(d)));
  }
  return nullptr;
}

// norm(x) * c * d of numbers c and d -> norm(x) * (c * d), or norm(x).
Value* JoinScalesOfNorm(Builder& b, Op* op) {
  auto outer = ScaledBy(op->result());
  auto inner = outer ? ScaledBy(outer->first) : std::nullopt;
  if (!inner || !inner->first->producer || !IsNorm(inner->first->producer)) return nullptr;
  const double factor = outer->second * inner->second;
  return Close(factor, 1) ? inner->first : b.Mul(inner->first, b.Scalar(op->out().dtype, factor));
}

// A vector over the last dim as [h], else null.
Value* AsVector(Builder& b, Value* v, int64_t size) {
  if (v->type.rank() == 0 || v->type.shape.back() != size || v->type.num_elements() != size) {
    return nullptr;
  }
  return b.Reshape(v, {size});
}

struct Term {
  Value* value;
  bool negative;
};

// What v is the sum of, through add, sub and neg, also of one factor.
void TermsOf(Value* v, bool negative, int depth, std::vector<Term>& terms) {
  if (const Op* neg = ProducedBy(v, "neg")) {
    v = neg->operands[0];
    negative = !negative;
  }
  const Op* op = v->producer;
  const bool add = op && op->name() == "add", sub = op && op->name() == "sub";
  if (depth > 0 && (add || sub)) {
    TermsOf(op->operands[0], negative, depth - 1, terms);
    TermsOf(op->operands[1], negative != sub, depth - 1, terms);
  } else {
    terms.push_back({v, negative});
  }
}

// Whether the term is -mean(x) * s.
bool IsShiftOf(const Term& term, const Value* x, const Value* s) {
  Op* product = ProducedBy(term.value, "mul");
  for (int i = 0; product && i < 2; ++i) {
    Value* mean = product->operands[i];
    bool negative = term.negative;
    if (product->operands[1 - i] != s) continue;
    if (Op* neg = ProducedBy(mean, "neg")) {
      mean = neg->operands[0];
      negative = !negative;
    }
    // Of another shape it is another row's.
    if (negative && MeanOf(mean) == x && mean->type.shape == StatisticOf(x)) return true;
  }
  return false;
}

// x * s + (bias - mean * s) with s = weight / sqrt(variance + eps), in any order and with or
// without weight and bias: a layer_norm as TensorFlow writes it.
Value* RecoverScaledAndShifted(Builder& b, Op* op) {
  if (op->name() != "add" && op->name() != "sub") return nullptr;
  std::vector<Term> terms;
  TermsOf(op->result(), false, 2, terms);
  for (const Term& term : terms) {
    Op* scaled = term.negative || terms.size() > 3 ? nullptr : ProducedBy(term.value, "mul");
    for (int i = 0; scaled && i < 2; ++i) {
      Value *x = scaled->operands[i], *s = scaled->operands[1 - i];
      auto shift = std::ranges::find_if(terms, [&](const Term& t) { return IsShiftOf(t, x, s); });
      if (shift == terms.end() || x->type.shape != op->out().shape) continue;
      auto rest =
          std::ranges::find_if(terms, [&](const Term& t) { return &t != &term && &t != &*shift; });
      for (const auto& [scale, weight] : FactorsOf(s, StatisticOf(x))) {
        Value* radicand = InverseRootOf(scale);
        Op* add = radicand ? ProducedBy(radicand, "add") : nullptr;
        for (int k = 0; add && k < 2; ++k) {
          std::optional<double> eps = SplatOf(add->operands[1 - k]);
          if (!eps || radicand->type.shape != StatisticOf(x) ||
              !IsVarianceOf(add->operands[k], x)) {
            continue;
          }
          Value* y = b.Create("layer_norm", {x}, {{"eps", *eps}})->result();
          if (weight) y = b.Mul(y, weight);
          if (rest != terms.end()) {
            y = rest->negative ? b.Sub(y, rest->value) : b.Add(y, rest->value);
          }
          return y;
        }
      }
    }
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

// A norm of each head, [b, s * n, d] of [b, s, n * d] -> of [b, s, n, d]: there heads are a dim.
Value* NormHeadsApart(Builder& b, Op* op) {
  Op* reshape =
      IsNorm(op) && OnlyFirstResultRead(*op) ? ProducedBy(op->operands[0], "reshape") : nullptr;
  if (reshape == nullptr || reshape->in(0).rank() == 0) return nullptr;
  Shape heads = reshape->in(0).shape;
  const int64_t width = heads.back(), size = op->out().shape.back();
  if (size == 0 || width <= size || width % size != 0) return nullptr;
  heads.back() = width / size;
  heads.push_back(size);
  if (heads == op->out().shape) return nullptr;
  std::vector<Value*> operands = op->operands;
  operands[0] = b.Reshape(reshape->operands[0], std::move(heads));
  Value* y = b.Create(op->name(), std::move(operands), op->attrs)->result();
  return b.Reshape(y, op->out().shape);
}

}  // namespace

bool RecoverNorms(Graph& graph) {
  const bool changed =
      ApplyRules(graph, {RecoverNorm, RecoverUnitNorm, RecoverScaledAndShifted, JoinScalesOfNorm,
                         AbsorbWeightOrBias, DropNeutralOperand});
  // A norm has its weight first.
  return ApplyRules(graph, {NormHeadsApart}) || changed;
}

}  // namespace shardc::recover
