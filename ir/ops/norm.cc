// layer_norm and rms_norm over the last dim, and their gradients. With xhat the normalised x and
// g = dy * w: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), without mean(g) for rms_norm.
#include <cmath>
#include <numeric>
#include <string>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

// layer_norm subtracts the mean, and so has a result mean, and a bias.
struct Norm {
  std::string_view name, grad_name;
  bool centered;
  // Operands of the gradient: dy, x[, mean], rstd[, weight[, bias]].
  size_t grad_mean() const { return 2; }
  size_t grad_rstd() const { return centered ? 3 : 2; }
  size_t grad_weight() const { return centered ? 4 : 3; }
};
constexpr Norm kLayerNorm{"layer_norm", "layer_norm_grad", true};
constexpr Norm kRmsNorm{"rms_norm", "rms_norm_grad", false};

void RequireRows(std::string_view op, const TensorType& x) {
  RequireFloat(op, x, "the operand");
  if (x.rank() < 1) InferError(op, "normalises the last dim, but the operand is a scalar");
  if (x.shape.back() == 0) InferError(op, "normalises the last dim, which has no elements");
}

std::vector<TensorType> Infer(const Norm& norm, const InferArgs& args) {
  const TensorType& x = args[0];
  RequireRows(norm.name, x);
  for (size_t i = 1; i < args.size(); ++i) {
    RequireTensor(norm.name, args[i], x.dtype, {x.shape.back()},
                  i == 1 ? "the weight" : "the bias");
  }
  TensorType statistic(x.dtype, WithoutLast(x.shape));
  std::vector<TensorType> results = {TensorType(OutType(norm.name, args.attrs, x.dtype), x.shape),
                                     statistic};
  if (norm.centered) results.push_back(statistic);
  return results;
}

std::vector<TensorType> InferGrad(const Norm& norm, const InferArgs& args) {
  std::string_view op = norm.grad_name;
  const TensorType &dy = args[0], &x = args[1];
  RequireRows(op, dy);
  RequireRows(op, x);
  RequireNarrowTensor(op, dy, x.dtype, x.shape, "dy");
  Shape rows = WithoutLast(x.shape);
  if (norm.centered) RequireTensor(op, args[norm.grad_mean()], x.dtype, rows, "the mean");
  RequireTensor(op, args[norm.grad_rstd()], x.dtype, rows, "rstd");
  TensorType weight(x.dtype, {x.shape.back()});
  std::vector<TensorType> results = {TensorType(x.dtype, x.shape)};
  const bool weighted = args.size() > norm.grad_weight(), again = args.attrs.Has("y");
  if (weighted) {
    RequireTensor(op, args[norm.grad_weight()], x.dtype, weight.shape, "the weight");
    results.push_back(weight);
  }
  if (args.attrs.Bool("bias")) {
    if (!weighted) InferError(op, "has a bias but no weight");
    results.push_back(weight);
  }
  if (args.size() > norm.grad_weight() + 1) {
    if (!again) InferError(op, "needs its bias for y alone");
    RequireTensor(op, args[norm.grad_weight() + 1], x.dtype, weight.shape, "the bias");
  }
  if (again) results.emplace_back(OutType(op, args.attrs, x.dtype, "y"), x.shape);
  return results;
}

ShardingRule Rule(const Norm& norm, const Op& op) {
  std::string text = "... h?";
  for (size_t i = 1; i < op.operands.size(); ++i) text += ", h?";
  return EinsumRule(op, text + (norm.centered ? " -> ... h?, ..., ..." : " -> ... h?, ..."));
}

// Linear in dy, as y is not. The weight's gradients are then partial too, which pays where dx is
// added to others that are, as behind two norms of one value.
ShardingRule GradRule(const Norm& norm, const Op& op) {
  std::string text = norm.centered ? "... h?, ... h?, ..., ..." : "... h?, ... h?, ...";
  for (size_t i = norm.grad_weight(); i < op.operands.size(); ++i) text += ", h?";
  const bool again = op.attrs.Has("y");
  text += " -> ... h?";
  for (size_t i = again ? 2 : 1; i < op.results.size(); ++i) text += ", h?";
  return again ? EinsumRule(op, text + ", ... h?") : EinsumRule(op, text, {{0}});
}

void Reference(const Norm& norm, const KernelCall& call) {
  const TensorView& x = call.in[0];
  int64_t h = x.shape.back(), rows = h == 0 ? 0 : x.num_elements() / h;
  double eps = call.attrs->Float("eps");
  std::vector<double> y = ToDoubles(x), w(h, 1.0), b(h, 0.0), means(rows), rstds(rows);
  if (call.in.size() > 1) w = ToDoubles(call.in[1]);
  if (call.in.size() > 2) b = ToDoubles(call.in[2]);
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = &y[r * h];
    double mean = norm.centered ? std::accumulate(row, row + h, 0.0) / static_cast<double>(h) : 0;
    double squares = 0;
    for (int64_t i = 0; i < h; ++i) squares += (row[i] - mean) * (row[i] - mean);
    means[r] = mean;
    rstds[r] = 1 / std::sqrt(squares / static_cast<double>(h) + eps);
  }
  if (norm.centered) FromDoubles(means, call.out[1]);
  FromDoubles(rstds, call.out.back());
  // As they are in memory: the gradient, which may make the result again, has them from there.
  if (norm.centered) means = ToDoubles(call.out[1]);
  rstds = ToDoubles(call.out.back());
  for (int64_t r = 0; r < rows; ++r) {
    double* row = &y[r * h];
    for (int64_t i = 0; i < h; ++i) row[i] = (row[i] - means[r]) * rstds[r] * w[i] + b[i];
  }
  FromDoubles(y, call.out[0]);
}

void ReferenceGrad(const Norm& norm, const KernelCall& call) {
  const TensorView& x = call.in[1];
  int64_t h = x.shape.back(), rows = h == 0 ? 0 : x.num_elements() / h;
  std::vector<double> dy = ToDoubles(call.in[0]), dx = ToDoubles(x), w(h, 1.0), b(h), dw(h), db(h);
  std::vector<double> means(rows), rstds = ToDoubles(call.in[norm.grad_rstd()]), xhat(h);
  if (norm.centered) means = ToDoubles(call.in[norm.grad_mean()]);
  if (call.in.size() > norm.grad_weight()) w = ToDoubles(call.in[norm.grad_weight()]);
  if (call.in.size() > norm.grad_weight() + 1) b = ToDoubles(call.in[norm.grad_weight() + 1]);
  std::vector<double> y(dx.size());
  for (int64_t r = 0; r < rows; ++r) {
    double *row = &dx[r * h], sum = 0, product = 0;
    const double* d = &dy[r * h];
    for (int64_t i = 0; i < h; ++i) {
      xhat[i] = (row[i] - means[r]) * rstds[r];
      sum += d[i] * w[i];
      product += d[i] * w[i] * xhat[i];
      dw[i] += d[i] * xhat[i];
      db[i] += d[i];
      y[r * h + i] = xhat[i] * w[i] + b[i];
    }
    double mean = norm.centered ? sum / static_cast<double>(h) : 0;
    for (int64_t i = 0; i < h; ++i) {
      row[i] = rstds[r] * (d[i] * w[i] - mean - xhat[i] * product / static_cast<double>(h));
    }
  }
  FromDoubles(dx, call.out[0]);
  std::span<const TensorView> more = call.out;
  more = more.subspan(1);
  if (call.attrs->Has("y")) {
    FromDoubles(y, more.back());
    more = more.first(more.size() - 1);
  }
  if (!more.empty()) FromDoubles(dw, more[0]);
  if (more.size() > 1) FromDoubles(db, more[1]);
}

// Builds on rows: statistics keep the last dim, of size 1.
class Rows {
 public:
  Rows(Builder& builder, const TensorType& x)
      : builder_(builder), x_(x), last_(x.rank() - 1), keep_(x.shape) {
    keep_.back() = 1;
  }
  Value* Sum(Value* v) { return builder_.ReduceSum(v, {last_}, true); }
  // The size of the row is the global one, whatever part of it a rank holds.
  Value* Mean(Value* v) {
    return builder_.Mul(Sum(v), Scalar(1.0 / static_cast<double>(x_.shape.back())));
  }
  Value* Scalar(double v) { return builder_.Scalar(x_.dtype, v); }
  Value* Keep(Value* statistic) { return builder_.Reshape(statistic, keep_); }
  Value* Drop(Value* statistic) { return builder_.Reshape(statistic, WithoutLast(x_.shape)); }
  Value* SumRows(Value* v) { return builder_.SumTo(v, {x_.shape.back()}); }

 private:
  Builder& builder_;
  const TensorType& x_;
  int64_t last_;
  Shape keep_;
};

std::vector<Value*> Expand(const Norm& norm, Builder& builder, const Op& op) {
  Rows rows(builder, op.in(0));
  Value *x = op.operands[0], *mean = nullptr;
  if (norm.centered) {
    mean = rows.Mean(x);
    x = builder.Sub(x, mean);
  }
  Value* variance = rows.Mean(builder.Mul(x, x));
  Value* rstd = builder.Make("rsqrt", {builder.Add(variance, rows.Scalar(op.attrs.Float("eps")))});
  Value* y = builder.Mul(x, rstd);
  if (op.operands.size() > 1) y = builder.Mul(y, op.operands[1]);
  if (op.operands.size() > 2) y = builder.Add(y, op.operands[2]);
  if (!norm.centered) return {y, rows.Drop(rstd)};
  return {y, rows.Drop(mean), rows.Drop(rstd)};
}

std::vector<Value*> ExpandGrad(const Norm& norm, Builder& builder, const Op& op) {
  Rows rows(builder, op.in(1));
  Value *dy = op.operands[0], *xhat = op.operands[1], *g = dy;
  Value* rstd = rows.Keep(op.operands[norm.grad_rstd()]);
  if (norm.centered) xhat = builder.Sub(xhat, rows.Keep(op.operands[norm.grad_mean()]));
  xhat = builder.Mul(xhat, rstd);
  if (op.operands.size() > norm.grad_weight()) {
    g = builder.Mul(dy, op.operands[norm.grad_weight()]);
  }
  Value* dx = g;
  if (norm.centered) dx = builder.Sub(dx, rows.Mean(g));
  dx = builder.Sub(dx, builder.Mul(xhat, rows.Mean(builder.Mul(g, xhat))));
  std::vector<Value*> results = {builder.Mul(dx, rstd)};
  const bool again = op.attrs.Has("y");
  const size_t sums = op.results.size() - (again ? 1 : 0);
  if (sums > 1) results.push_back(rows.SumRows(builder.Mul(dy, xhat)));
  if (sums > 2) results.push_back(rows.SumRows(dy));
  if (again) {
    Value* y = xhat;
    if (op.operands.size() > norm.grad_weight())
      y = builder.Mul(y, op.operands[norm.grad_weight()]);
    if (op.operands.size() > norm.grad_weight() + 1) y = builder.Add(y, op.operands.back());
    results.push_back(builder.Cast(y, op.results.back()->type.dtype));
  }
  return results;
}

// What a gradient of the statistics adds to dx: d mean / dx = 1/h, d rstd / dx = -rstd^3 (x - mean)
// / h.
Value* StatisticsGradient(const Norm& norm, Builder& builder, const GradientArgs& args) {
  Rows rows(builder, args.op.in(0));
  Value *x = args.op.operands[0], *sum = nullptr;
  Value* dmean = norm.centered ? args.result_grads[1] : nullptr;
  Value* drstd = args.result_grads.back();
  if (drstd) {
    Value* rstd = rows.Keep(args.op.results.back());
    if (norm.centered) x = builder.Sub(x, rows.Keep(args.op.results[1]));
    Value* cube = builder.Mul(rstd, builder.Mul(rstd, rstd));
    sum = builder.Mul(x, builder.Neg(builder.Mul(rows.Keep(drstd), cube)));
  }
  if (dmean) {
    Value* each = builder.BroadcastTo(rows.Keep(dmean), args.op.in(0).shape);
    sum = sum ? builder.Add(sum, each) : each;
  }
  if (!sum) return nullptr;
  return builder.Mul(sum, rows.Scalar(1.0 / static_cast<double>(args.op.in(0).shape.back())));
}

std::vector<Value*> Gradient(const Norm& norm, const GradientArgs& args) {
  Builder& builder = args.builder;
  const Op& op = args.op;
  std::vector<Value*> grads(op.operands.size());
  if (Value* dy = args.result_grads[0]) {
    std::vector<Value*> operands = {dy, op.operands[0]};
    operands.insert(operands.end(), op.results.begin() + 1, op.results.end());
    if (op.operands.size() > 1) operands.push_back(op.operands[1]);
    Attributes attrs;
    if (op.operands.size() > 2) attrs.Set("bias", true);
    grads = builder.Create(norm.grad_name, std::move(operands), std::move(attrs))->results;
  }
  Value* more = StatisticsGradient(norm, builder, args);
  if (more) grads[0] = grads[0] ? builder.Add(grads[0], more) : more;
  return grads;
}

// The norm's y, of statistics that are kept as they were computed. It is not linear in dy, of which
// the rest is.
std::optional<MadeAgain> MakesAgain(const Norm& norm, const Op& op) {
  if (op.attrs.Has("y") || IsHalf(op.in(1).dtype) || op.in(0).sharding.partial()) {
    return std::nullopt;
  }
  const Op* forward = op.operands[norm.grad_rstd()]->producer;
  if (!forward || forward->name() != norm.name) return std::nullopt;
  auto is = [](const std::vector<Value*>& all, size_t i, const Value* v) {
    return v == (i < all.size() ? all[i] : nullptr);
  };
  const Value* weight =
      op.operands.size() > norm.grad_weight() ? op.operands[norm.grad_weight()] : nullptr;
  const bool same = op.operands[1] == forward->operands[0] && is(forward->operands, 1, weight) &&
                    op.operands[norm.grad_rstd()] == forward->results.back() &&
                    (!norm.centered || op.operands[norm.grad_mean()] == forward->results[1]);
  if (!same) return std::nullopt;
  MadeAgain again{forward->results[0], op.operands};
  if (forward->operands.size() > 2) again.operands.push_back(forward->operands[2]);
  return again;
}

void RegisterNorm(OpRegistry& registry, const Norm& norm) {
  OpDef def;
  def.name = norm.name;
  def.max_operands = norm.centered ? 3 : 2;
  def.attrs = {{"eps", AttrKind::kFloat, true}, {"out", AttrKind::kString}};
  def.typed_result = 0;
  def.cpu_halves = CpuHalves::kBf16Result;
  def.infer = [&norm](const InferArgs& args) { return Infer(norm, args); };
  def.rule = [&norm](const Op& op) { return Rule(norm, op); };
  def.gradient = [&norm](const GradientArgs& args) { return Gradient(norm, args); };
  def.flops = [](const Op& op) { return 8 * op.in(0).num_elements(); };
  def.reference = [&norm](const KernelCall& call) { Reference(norm, call); };
  def.expand = [&norm](Builder& builder, const Op& op) { return Expand(norm, builder, op); };
  def.cheap = true;
  registry.Add(std::move(def));

  OpDef grad;
  grad.name = norm.grad_name;
  grad.min_operands = static_cast<int>(norm.grad_weight());
  grad.max_operands = grad.min_operands + (norm.centered ? 2 : 1);
  grad.cpu_halves = CpuHalves::kBf16Result;
  grad.narrow_operands = {0};
  grad.attrs = {{"y", AttrKind::kString}};
  if (norm.centered) grad.attrs.push_back({"bias", AttrKind::kBool});
  grad.infer = [&norm](const InferArgs& args) { return InferGrad(norm, args); };
  grad.rule = [&norm](const Op& op) { return GradRule(norm, op); };
  grad.no_gradient = kSecondDerivative;
  grad.flops = [](const Op& op) { return 14 * op.in(0).num_elements(); };
  grad.reference = [&norm](const KernelCall& call) { ReferenceGrad(norm, call); };
  grad.expand = [&norm](Builder& builder, const Op& op) { return ExpandGrad(norm, builder, op); };
  grad.makes_again = [&norm](const Op& op) { return MakesAgain(norm, op); };
  grad.again = "y";
  // dy = 0 makes dx, and what it adds to the weight's gradients, zero.
  grad.keeps_zero_padding = true;
  registry.Add(std::move(grad));
}

}  // namespace

void RegisterSoftmaxOps(OpRegistry& registry);  // softmax.cc

void RegisterNormOps(OpRegistry& registry) {
  RegisterNorm(registry, kLayerNorm);
  RegisterNorm(registry, kRmsNorm);
  RegisterSoftmaxOps(registry);
}

}  // namespace shardc
