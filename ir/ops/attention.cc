// Softmax attention with grouped heads, and its gradient. With p the probabilities, per query row:
// dv = p^T do, ds = p * (do v^T - sum(do * o)), dq = scale ds k, dk = scale ds^T q
// (FlashAttention-2, arXiv:2307.08691, algorithm 2). With z what dropout multiplies p by, it is
// (p z) in dv and z (do v^T) in ds.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ir/attention_mask.h"
#include "ir/attention_part.h"
#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/ops/draws.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool HeadsFirst(const Attributes& attrs) { return attrs.String("layout", "bhsd") == "bhsd"; }

// Sizes of one call or op, whatever the layout.
struct Sizes {
  bool heads_first;
  int64_t b, hq, hkv, s, t, d, dv;

  Sizes(const Shape& q, const Shape& k, const Shape& v, bool heads_first)
      : heads_first(heads_first),
        b(q[0]),
        hq(q[heads_first ? 1 : 2]),
        hkv(k[heads_first ? 1 : 2]),
        s(q[heads_first ? 2 : 1]),
        t(k[heads_first ? 2 : 1]),
        d(q[3]),
        dv(v[3]) {}

  Shape Probabilities() const { return {b, hq, s, t}; }
  Shape Tensor(int64_t heads, int64_t rows, int64_t width) const {
    return heads_first ? Shape{b, heads, rows, width} : Shape{b, rows, heads, width};
  }
  // Flat index of the first element of a row of a tensor with `heads`, `rows` and `width`.
  int64_t Row(int64_t batch, int64_t head, int64_t row, int64_t heads, int64_t rows,
              int64_t width) const {
    return (heads_first ? (batch * heads + head) * rows + row
                        : (batch * rows + row) * heads + head) *
           width;
  }
};

// q, k, v at operands first, first + 1, first + 2.
Sizes CheckHeads(std::string_view op, const InferArgs& args, size_t first) {
  std::string layout = args.attrs.String("layout", "bhsd");
  if (layout != "bhsd" && layout != "bshd") {
    InferError(op, StrCat("layout is \"bhsd\" or \"bshd\", not \"", layout, "\""));
  }
  const TensorType &q = args[first], &k = args[first + 1], &v = args[first + 2];
  RequireFloat(op, q, "q");
  RequireDType(op, k, q.dtype, "k");
  RequireDType(op, v, q.dtype, "v");
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) {
    InferError(op,
               StrCat("q, k and v must have four dims (", layout, "), not ", ShapeToString(q.shape),
                      ", ", ShapeToString(k.shape), ", ", ShapeToString(v.shape)));
  }
  Sizes z(q.shape, k.shape, v.shape, layout == "bhsd");
  RequireShape(op, k, z.Tensor(z.hkv, z.t, z.d), "k");
  RequireShape(op, v, z.Tensor(z.hkv, z.t, z.dv), "v");
  if (z.hkv < 1 || z.hq % z.hkv != 0) {
    InferError(op, StrCat("the ", z.hq, " query heads are not a multiple of the ", z.hkv,
                          " key/value heads"));
  }
  return z;
}

// The mask, if there is one, at operand `index`, and then the step, if it drops.
void CheckMaskAndStep(std::string_view op, const InferArgs& args, size_t index, const Sizes& z) {
  if (args.attrs.Bool("causal")) CheckPart(op, args.attrs, z.Probabilities());
  const bool drops = args.attrs.Has("ratio");
  const size_t rest = args.size() - index;
  if (drops && rest == 0) InferError(op, "with a ratio its last operand must be the step");
  if (drops) CheckDraws(op, args, z.Probabilities());
  if (!drops && rest == 2) InferError(op, "without a ratio it has no operand behind the mask");
  if (rest == (drops ? 1 : 0)) return;
  const TensorType& mask = args[index];
  if (mask.dtype != DType::kBool) RequireFloat(op, mask, "the mask (if not bool)");
  const Shape scores = z.Probabilities();
  if (mask.rank() > 4 || BroadcastShapes(op, mask.shape, scores) != scores) {
    InferError(op, StrCat("the mask ", ShapeToString(mask.shape),
                          " does not broadcast to the scores ", ShapeToString(scores)));
  }
}

std::vector<TensorType> Infer(const InferArgs& args) {
  Sizes z = CheckHeads("attention", args, 0);
  CheckMaskAndStep("attention", args, 3, z);
  DType dtype = args[0].dtype;
  return {TensorType(dtype, z.Tensor(z.hq, z.s, z.dv)),
          TensorType(StatisticType(dtype), {z.b, z.hq, z.s})};
}

std::vector<TensorType> InferGrad(const InferArgs& args) {
  constexpr std::string_view op = "attention_grad";
  Sizes z = CheckHeads(op, args, 1);
  CheckMaskAndStep(op, args, 6, z);
  RequireTensor(op, args[0], args[1].dtype, z.Tensor(z.hq, z.s, z.dv), "the gradient of o");
  RequireTensor(op, args[4], args[1].dtype, args[0].shape, "o");
  DType statistic = StatisticType(args[1].dtype);
  if (args[5].dtype != statistic) {
    InferError(op,
               StrCat("lse is ", DTypeName(args[5].dtype), " but must be ", DTypeName(statistic)));
  }
  RequireShape(op, args[5], {z.b, z.hq, z.s}, "lse");
  std::vector<TensorType> results;
  for (size_t i = 1; i <= 3; ++i) results.emplace_back(args[i].dtype, args[i].shape);
  return results;
}

Sizes OpSizes(const Op& op, int q) {
  return Sizes(op.in(q).shape, op.in(q + 1).shape, op.in(q + 2).shape, HeadsFirst(op.attrs));
}

Value* MaskAt(const Op& op, size_t index) {
  return op.operands.size() - Drops(op) > index ? op.operands[index] : nullptr;
}

// Factors: b; g kv heads, each with r query heads; s queries; t keys; d, e the widths of k and v. A
// causal mask tells a query's place by that of the first one. Not linear in v alone (lse), and the
// gradient, though linear in do, would make three partial values of one.
ShardingRule Rule(const Op& op, int q) {
  Sizes z = OpSizes(op, q);
  ShardingRule rule;
  int b = rule.AddFactor(z.b), g = rule.AddFactor(z.hkv), r = rule.AddFactor(z.hq / z.hkv);
  int s = rule.AddFactor(z.s);
  rule.factors[s].contiguous = op.attrs.Bool("causal");
  int t = rule.AddFactor(z.t, FactorKind::kReplicated);
  int d = rule.AddFactor(z.d, FactorKind::kReplicated);
  int e = rule.AddFactor(z.dv, FactorKind::kReplicated);
  using Dims = std::vector<DimFactors>;
  auto tensor = [&](DimFactors heads, int rows, int width) {
    DimFactors row{{rows}, {}};
    return z.heads_first ? Dims{{{b}, {}}, heads, row, {{width}, {}}}
                         : Dims{{{b}, {}}, row, heads, {{width}, {}}};
  };
  DimFactors query_heads{{g, r}, {}}, kv_heads{{g}, {}};
  Dims query = tensor(query_heads, s, d), key = tensor(kv_heads, t, d);
  Dims value = tensor(kv_heads, t, e), out = tensor(query_heads, s, e);
  Dims lse = {{{b}, {}}, query_heads, {{s}, {}}};
  if (q == 1) rule.operands.push_back(out);
  rule.operands.insert(rule.operands.end(), {query, key, value});
  if (q == 1) rule.operands.insert(rule.operands.end(), {out, lse});
  if (const Value* operand = MaskAt(op, rule.operands.size())) {
    const Shape& mask = operand->type.shape;
    Dims scores = {{{b}, {}}, query_heads, {{s}, {}}, {{t}, {}}};
    Dims dims(scores.end() - static_cast<int64_t>(mask.size()), scores.end());
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 1) dims[i] = DimFactors();
    }
    rule.operands.push_back(std::move(dims));
  }
  if (Drops(op)) rule.operands.emplace_back();  // the step
  if (q == 1) {
    rule.results = {query, key, value};
  } else {
    rule.results = {out, lse};
  }
  return rule;
}

// Scaled and masked scores, one query row at a time; -inf where the query does not see the key.
class Scores {
 public:
  // `o`: the result, or its gradient. `index`: of the mask, if there is one.
  Scores(const KernelCall& call, const Sizes& z, const TensorView& o, const std::vector<double>& q,
         const std::vector<double>& k, size_t index)
      : z_(z),
        q_(q),
        k_(k),
        scale_(call.attrs->Float("scale")),
        causal_(call.attrs->Bool("causal")),
        diagonal_(causal_ ? CausalDiagonal(call, o, z.heads_first, z.t) : 0) {
    if (call.in.size() - call.attrs->Has("ratio") <= index) return;
    const TensorView& mask = call.in[index];
    mask_ = ToDoubles(mask);
    bool_mask_ = mask.dtype == DType::kBool;
    int64_t stride = 1;
    for (size_t i = 0; i < mask.shape.size(); ++i) {
      int64_t n = mask.shape[mask.shape.size() - 1 - i];
      mask_strides_[3 - i] = n == 1 ? 0 : stride;
      stride *= n;
    }
  }

  double scale() const { return scale_; }

  void Row(int64_t b, int64_t h, int64_t i, double* out) const {
    const double* q = &q_[z_.Row(b, h, i, z_.hq, z_.s, z_.d)];
    int64_t kv = h / (z_.hq / z_.hkv);
    for (int64_t j = 0; j < z_.t; ++j) {
      const double* k = &k_[z_.Row(b, kv, j, z_.hkv, z_.t, z_.d)];
      double score = 0;
      for (int64_t c = 0; c < z_.d; ++c) score += q[c] * k[c];
      score *= scale_;
      if (causal_ && j > i + diagonal_) score = -kInfinity;
      if (!mask_.empty()) {
        double m = mask_[b * mask_strides_[0] + h * mask_strides_[1] + i * mask_strides_[2] +
                         j * mask_strides_[3]];
        score = bool_mask_ ? (m != 0 ? score : -kInfinity) : score + m;
      }
      out[j] = score;
    }
  }

 private:
  const Sizes& z_;
  const std::vector<double>&q_, &k_;
  double scale_;
  bool causal_, bool_mask_ = false;
  int64_t diagonal_;
  std::vector<double> mask_;
  int64_t mask_strides_[4] = {0, 0, 0, 0};
};

// What dropout multiplies the probabilities by; `o`: the result, or its gradient.
class Factors {
 public:
  Factors(const KernelCall& call, const Sizes& z, const TensorView& o) {
    if (!call.attrs->Has("ratio")) return;
    draws_.emplace(call);
    places_ = PlacesOfProbabilities(call, o, z.heads_first, z.t);
  }
  double At(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!draws_) return 1;
    return draws_->Factor(places_.batch[b] + places_.head[h] + places_.query[i] + j);
  }

 private:
  std::optional<Draws> draws_;
  ProbabilityPlaces places_;
};

Sizes CallSizes(const KernelCall& call, size_t q) {
  return Sizes(call.in[q].shape, call.in[q + 1].shape, call.in[q + 2].shape,
               HeadsFirst(*call.attrs));
}

template <typename Fn>
void ForEachQuery(const Sizes& z, Fn fn) {
  for (int64_t b = 0; b < z.b; ++b) {
    for (int64_t h = 0; h < z.hq; ++h) {
      for (int64_t i = 0; i < z.s; ++i) fn(b, h, i);
    }
  }
}

void Reference(const KernelCall& call) {
  Sizes z = CallSizes(call, 0);
  std::vector<double> q = ToDoubles(call.in[0]), k = ToDoubles(call.in[1]),
                      v = ToDoubles(call.in[2]);
  const Scores scores(call, z, call.out[0], q, k, 3);
  const Factors factors(call, z, call.out[0]);
  std::vector<double> o(call.out[0].num_elements()), lse(call.out[1].num_elements()), p(z.t);
  ForEachQuery(z, [&](int64_t b, int64_t h, int64_t i) {
    scores.Row(b, h, i, p.data());
    double max = -kInfinity, sum = 0;
    for (double score : p) max = std::max(max, score);
    double& log_sum = lse[(b * z.hq + h) * z.s + i];
    log_sum = max;
    // max leaves NaN out, and a row of NaN is none that sees no key.
    if (std::ranges::all_of(p, [](double score) { return score == -kInfinity; })) return;
    for (double& score : p) sum += score = std::exp(score - max);
    log_sum += std::log(sum);
    double* row = &o[z.Row(b, h, i, z.hq, z.s, z.dv)];
    for (int64_t j = 0; j < z.t; ++j) {
      const double* value = &v[z.Row(b, h / (z.hq / z.hkv), j, z.hkv, z.t, z.dv)];
      const double kept = p[j] / sum * factors.At(b, h, i, j);
      for (int64_t c = 0; c < z.dv; ++c) row[c] += kept * value[c];
    }
  });
  FromDoubles(o, call.out[0]);
  FromDoubles(lse, call.out[1]);
}

void ReferenceGrad(const KernelCall& call) {
  Sizes z = CallSizes(call, 1);
  std::vector<double> grad = ToDoubles(call.in[0]), q = ToDoubles(call.in[1]);
  std::vector<double> k = ToDoubles(call.in[2]), v = ToDoubles(call.in[3]);
  std::vector<double> o = ToDoubles(call.in[4]), lse = ToDoubles(call.in[5]), p(z.t);
  const Scores scores(call, z, call.in[0], q, k, 6);
  const Factors factors(call, z, call.in[0]);
  std::vector<double> dq(q.size()), dk(k.size()), dv(v.size());
  ForEachQuery(z, [&](int64_t b, int64_t h, int64_t i) {
    double log_sum = lse[(b * z.hq + h) * z.s + i];
    if (log_sum == -kInfinity) return;
    scores.Row(b, h, i, p.data());
    int64_t at_o = z.Row(b, h, i, z.hq, z.s, z.dv), at_q = z.Row(b, h, i, z.hq, z.s, z.d);
    double both = 0;
    for (int64_t c = 0; c < z.dv; ++c) both += grad[at_o + c] * o[at_o + c];
    for (int64_t j = 0; j < z.t; ++j) {
      int64_t kv = h / (z.hq / z.hkv);
      int64_t at_k = z.Row(b, kv, j, z.hkv, z.t, z.d), at_v = z.Row(b, kv, j, z.hkv, z.t, z.dv);
      double probability = std::exp(p[j] - log_sum), dp = 0;
      const double factor = factors.At(b, h, i, j);
      for (int64_t c = 0; c < z.dv; ++c) {
        dp += grad[at_o + c] * v[at_v + c];
        dv[at_v + c] += probability * factor * grad[at_o + c];
      }
      double ds = scores.scale() * probability * (factor * dp - both);
      for (int64_t c = 0; c < z.d; ++c) {
        dq[at_q + c] += ds * k[at_k + c];
        dk[at_k + c] += ds * q[at_q + c];
      }
    }
  });
  FromDoubles(dq, call.out[0]);
  FromDoubles(dk, call.out[1]);
  FromDoubles(dv, call.out[2]);
}

// A row whose top absorbs the scores is uniform over the n keys that have it, and its lse has lost
// log n, so that exp(score - lse) is 1 for each of them. The gradient is linear in do, which is
// divided by n there. (Where it rounds them only, no row comes here: passes/center_masks.h.)
Value* DividedWhereAbsorbed(Builder& b, const Op& op, Value* d_o) {
  const Value* mask = MaskOf(op);
  if (mask == nullptr || mask->type.dtype == DType::kBool || d_o->type.num_elements() == 0)
    return d_o;
  const DType type = StatisticType(op.in(0).dtype);
  const double absorbs = TopLimitsOf(type).absorbs;
  const std::optional<std::vector<double>> tops = KnownTops(op);
  if (tops && std::ranges::all_of(*tops, [&](double t) { return std::fabs(t) < absorbs; }))
    return d_o;
  Value* added = AddedToScores(b, op);
  Value* top = b.ReduceMax(added, {3}, true);
  Value* n = b.ReduceSum(b.Cast(b.Make("equal", {added, top}), type), {3}, true);
  Value* absorbed = b.Make("less_equal", {b.Scalar(type, absorbs), b.Make("abs", {top})});
  Value* factor = b.Make("where", {absorbed, b.Div(b.Scalar(type, 1), n), b.Scalar(type, 1)});
  if (!HeadsFirst(op.attrs)) factor = b.Transpose(factor, {0, 2, 1, 3});
  return b.Mul(d_o, b.Cast(factor, d_o->type.dtype));
}

std::vector<Value*> Gradient(const GradientArgs& args) {
  const Op& op = args.op;
  auto refuse = [&](std::string what, std::string fix) {
    throw Diagnostic("E1104", ExitCode::kBadModel, op.site, std::move(what), std::move(fix));
  };
  if (MaskAt(op, 3) && args.wanted[3]) {
    refuse(
        "the mask of an attention depends on something that is trained, and a mask has no gradient",
        "write the bias as an add to the scores before a softmax, or leave its parameter out of "
        "those that are differentiated");
  }
  Builder& b = args.builder;
  Value *v = op.operands[2], *o = op.results[0], *d_o = args.result_grads[0];
  const int64_t width = o->type.shape[3];
  Value* d_lse = args.result_grads[1];
  if (d_o == nullptr) d_o = b.BroadcastTo(b.Scalar(o->type.dtype, 0), o->type.shape);
  if (d_lse) {
    // A score's gradient is p (do v - sum(do o) + dlse): of a value more, of which v has 0, o 1 and
    // do -dlse, the sum alone sees dlse. So many values more that all are a multiple of 8.
    const int64_t more = 8 - width % 8;
    auto wider = [&](Value* x, int64_t columns, double value) {
      return b.Make("pad", {x},
                    {{"low", Ints(4)}, {"high", Ints{0, 0, 0, columns}}, {"value", value}});
    };
    Shape column = o->type.shape;
    column[3] = 1;
    if (!OpSizes(op, 0).heads_first) d_lse = b.Transpose(d_lse, {0, 2, 1});
    d_lse = b.Neg(b.Reshape(b.Cast(d_lse, o->type.dtype), std::move(column)));
    d_o = wider(b.Make("concat", {d_o, d_lse}, {{"axis", int64_t{3}}}), more - 1, 0);
    v = wider(v, more, 0);
    o = wider(o, more, 1);
  }
  std::vector<Value*> operands = {
      DividedWhereAbsorbed(b, op, d_o), op.operands[0], op.operands[1], v, o, op.results[1]};
  operands.insert(operands.end(), op.operands.begin() + 3, op.operands.end());
  std::vector<Value*> grads = b.Create("attention_grad", std::move(operands), op.attrs)->results;
  if (d_lse) grads[2] = b.Slice(grads[2], 3, 0, width);
  grads.resize(op.operands.size());
  return grads;
}

// `part`, `origin`: of the first result, which is laid out as q.
Attributes Resized(const Op& op, int q, const Shape& part, const Shape& origin) {
  const Sizes z = OpSizes(op, q);
  const bool all_queries = part[z.heads_first ? 2 : 1] == z.s;
  if (!Drops(op) && (all_queries || !op.attrs.Bool("causal"))) return op.attrs;
  const Shape drawn = {origin[0], origin[z.heads_first ? 1 : 2], origin[z.heads_first ? 2 : 1], 0};
  return AttributesOfDrawnPart(op, z.Probabilities(), drawn);
}

int64_t FlopsOf(const Op& op, int q, int64_t width_d, int64_t width_v) {
  Sizes z = OpSizes(op, q);
  int64_t flops = 2 * z.b * z.hq * z.s * z.t * (width_d * z.d + width_v * z.dv);
  return op.attrs.Bool("causal") ? flops / 2 : flops;
}

// Of cuDNN's kernels for Hopper that give the same bits in every run (9.19, asked without a GPU):
// two bytes of each score, in tiles of 128 by 128, and dk and dv of each query head in halves where
// several share a key head; and some more: a number of each row, up to all of dq in f32. It knows
// no masks and no dropout of ours.
int64_t ScratchOfGrad(const InferArgs& args) {
  const TensorType &q = args[1], &k = args[2], &v = args[3];
  if (!IsHalf(q.dtype) || args.size() > 6) return 0;
  const Sizes z(q.shape, k.shape, v.shape, HeadsFirst(args.attrs));
  auto tiled = [](int64_t n) { return (n + 127) / 128 * 128; };
  return z.b * z.hq * (2 * tiled(z.s) * tiled(z.t) + 2 * z.t * (z.d + z.dv) + 4 * z.s * z.d);
}

OpDef Def(std::string_view name, int operands) {
  OpDef def;
  def.name = name;
  def.min_operands = operands;
  def.max_operands = operands + 2;
  def.precision = Precision::kCompute;
  def.cpu_halves = CpuHalves::kBf16;
  def.attrs = {{"scale", AttrKind::kFloat, true},
               {"causal", AttrKind::kBool},
               {"layout", AttrKind::kString}};
  AddDropAttrs(def, false);
  def.undropped = WithoutStep;
  const int q = operands == 3 ? 0 : 1;
  def.resized = [q](const Op& op, std::span<const TensorType> results, const Shape& origin) {
    return Resized(op, q, results[0].shape, origin);
  };
  return def;
}

}  // namespace

void RegisterAttentionOps(OpRegistry& registry) {
  // A padded query head, or batch, has lse = log t, and o = mean of v where only query heads are
  // cut: the padding is not zero.
  OpDef attention = Def("attention", 3);
  attention.full_operands = {3};
  attention.infer = Infer;
  attention.rule = [](const Op& op) { return Rule(op, 0); };
  attention.gradient = Gradient;
  attention.flops = [](const Op& op) { return FlopsOf(op, 0, 1, 1); };
  attention.reference = Reference;
  registry.Add(std::move(attention));

  // do = 0 makes everything that a padded query adds zero.
  OpDef grad = Def("attention_grad", 6);
  grad.full_operands = {5, 6};
  grad.infer = InferGrad;
  grad.rule = [](const Op& op) { return Rule(op, 1); };
  grad.no_gradient = kSecondDerivative;
  grad.flops = [](const Op& op) { return FlopsOf(op, 1, 3, 2); };
  grad.scratch_bytes = ScratchOfGrad;
  grad.reference = ReferenceGrad;
  grad.keeps_zero_padding = true;
  registry.Add(std::move(grad));
}

}  // namespace shardc
