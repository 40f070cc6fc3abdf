// layer_norm_grad_add, rms_norm_grad_add: the gradient through a norm, added to what the residual
// around it brings, with the copies that the next products read.
#include <algorithm>
#include <numeric>

#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

struct Norm {
  std::string_view grad, name;
  bool centered;
  int least_operands() const { return centered ? 5 : 4; }
};
constexpr Norm kLayerNorm{"layer_norm_grad", "layer_norm_grad_add", true};
constexpr Norm kRmsNorm{"rms_norm_grad", "rms_norm_grad_add", false};

// Over all dims but the last, to a result of its own type.
bool SumsRows(const Op& op) {
  if (op.name() != "reduce_sum" || op.out().dtype != op.in(0).dtype) return false;
  std::vector<int> rows(static_cast<size_t>(std::max(op.in(0).rank() - 1, 0)));
  std::iota(rows.begin(), rows.end(), 0);
  return !rows.empty() && !op.attrs.Bool("keepdims") &&
         NormalizeAxes(op.name(), op.attrs.IntList("axes"), op.in(0).rank()) == rows;
}

// The gradient of a norm that `sum` adds to another value, or null.
Op* GradientIn(const Norm& norm, const Graph& graph, const Op& sum, int operand) {
  const Value* dx = sum.operands[operand];
  Op* grad = dx->producer;
  if (!grad || grad->name() != norm.grad || dx->index != 0) return nullptr;
  if (!graph.OnlyUser(dx) || grad->phase != sum.phase) return nullptr;
  if (!grad->RunsWith(sum)) return nullptr;
  // It takes the gradient's place, so that what reads the weights' gradients comes after it.
  const Op* other = sum.operands[1 - operand]->producer;
  for (const Op* o = grad; o != &sum; o = graph.Next(o)) {
    if (o == other) return nullptr;
  }
  return grad;
}

bool Fuse(const Norm& norm, Graph& graph, Op& cast) {
  Value* total = cast.operands[0];
  const Op* sum = total->producer;
  if (!sum || sum->name() != "add" || sum->phase != cast.phase || !IsHalf(cast.out().dtype)) {
    return false;
  }
  if (!sum->RunsWith(cast)) return false;
  if (total->type.dtype != DType::kF32 || total->type.sharding.partial()) return false;
  if (sum->in(0) != total->type || sum->in(1) != total->type) return false;
  int at = 1;
  Op* grad = GradientIn(norm, graph, *sum, at);
  if (!grad) grad = GradientIn(norm, graph, *sum, at = 0);
  if (!grad) return false;
  const Value* again = AgainResult(*grad);
  if (again && again->type.dtype != DType::kF32 && again->type.dtype != cast.out().dtype) {
    return false;
  }
  Op* sums = nullptr;
  for (Op* user : total->users) {
    if (SumsRows(*user) && user->RunsWith(cast) && !HasPadding(total->type, graph.mesh))
      sums = user;
  }
  std::vector<Value*> operands = {sum->operands[1 - at]};
  operands.insert(operands.end(), grad->operands.begin(), grad->operands.end());
  std::vector<Value*> replaced = {total, cast.result()};
  const auto after_sums = grad->results.end() - (again ? 1 : 0);
  replaced.insert(replaced.end(), grad->results.begin() + 1, after_sums);
  if (sums) replaced.push_back(sums->result());
  replaced.insert(replaced.end(), after_sums, grad->results.end());
  std::vector<TensorType> types;
  for (const Value* v : replaced) types.push_back(v->type);
  Attributes attrs = grad->attrs;
  attrs.Set("out", std::string(DTypeName(cast.out().dtype)));
  if (sums) attrs.Set("sums", true);
  Op* fused =
      graph.AddOp(GetOpDef(norm.name), std::move(operands), std::move(types), attrs, grad, *grad);
  for (size_t i = 0; i < replaced.size(); ++i) {
    fused->result(static_cast<int>(i))->name = replaced[i]->name;
    graph.ReplaceAllUses(replaced[i], fused->result(static_cast<int>(i)));
  }
  return true;
}

std::vector<TensorType> Infer(const Norm& norm, const InferArgs& args) {
  const TensorType& residual = args[0];
  RequireTensor(norm.name, residual, args[2].dtype, args[2].shape, "the residual's gradient");
  Attributes attrs;
  if (args.attrs.Bool("bias")) attrs.Set("bias", true);
  const bool again = args.attrs.Has("y");
  if (again) attrs.Set("y", args.attrs.String("y"));
  auto results = GetOpDef(norm.grad).infer({args.operands.subspan(1), attrs});
  TensorType narrow = results[0];
  narrow.dtype = OutType(norm.name, args.attrs, residual.dtype);
  results.insert(results.begin() + 1, narrow);
  if (again && results.back().dtype != narrow.dtype && results.back().dtype != residual.dtype) {
    InferError(norm.name, "gives y in another type than its other results");
  }
  if (args.attrs.Bool("sums")) {
    results.emplace(results.end() - (again ? 1 : 0), residual.dtype, Shape{residual.shape.back()});
  }
  return results;
}

ShardingRule Rule(const Norm& norm, const Op& op) {
  std::string text =
      norm.centered ? "... h!, ... h!, ... h!, ..., ..." : "... h!, ... h!, ... h!, ...";
  for (auto i = static_cast<size_t>(norm.least_operands()); i < op.operands.size(); ++i) {
    text += ", h!";
  }
  const bool again = op.attrs.Has("y");
  text += " -> ... h!, ... h!";
  for (size_t i = again ? 3 : 2; i < op.results.size(); ++i) text += ", h!";
  return again ? EinsumRule(op, text + ", ... h!") : EinsumRule(op, text, {{0, 1}});
}

void Reference(const Norm& norm, const KernelCall& call) {
  const std::vector<double> residual = ToDoubles(call.in[0]);
  const bool sums = call.attrs->Bool("sums"), again = call.attrs->Has("y");
  const auto after_sums = call.out.end() - (again ? 1 : 0);
  std::vector<double> total(residual.size());
  std::vector<TensorView> out = {ViewOf(total, call.out[0])};
  out.insert(out.end(), call.out.begin() + 2, after_sums - (sums ? 1 : 0));
  out.insert(out.end(), after_sums, call.out.end());
  RunPart(norm.grad, call, *call.attrs, {call.in.begin() + 1, call.in.end()}, out);
  for (size_t i = 0; i < total.size(); ++i) total[i] += residual[i];
  FromDoubles(total, call.out[0]);
  // As it is in memory.
  total = ToDoubles(call.out[0]);
  FromDoubles(total, call.out[1]);
  if (!sums) return;
  std::vector<double> columns(static_cast<size_t>(call.out[0].shape.back()));
  for (size_t i = 0; i < total.size(); ++i) columns[i % columns.size()] += total[i];
  FromDoubles(columns, after_sums[-1]);
}

void Register(OpRegistry& registry, const Norm& norm) {
  OpDef def;
  def.name = norm.name;
  def.min_operands = norm.least_operands();
  def.max_operands = def.min_operands + (norm.centered ? 2 : 1);
  def.attrs = {{"out", AttrKind::kString}, {"sums", AttrKind::kBool}, {"y", AttrKind::kString}};
  if (norm.centered) def.attrs.push_back({"bias", AttrKind::kBool});
  def.fuses_at = "cast";
  def.fuse = [&norm](Graph& graph, Op& cast) { return Fuse(norm, graph, cast); };
  def.again = "y";
  def.typed_result = 1;
  def.cpu_halves = CpuHalves::kBf16Result;
  def.narrow_operands = {1};
  def.infer = [&norm](const InferArgs& args) { return Infer(norm, args); };
  def.rule = [&norm](const Op& op) { return Rule(norm, op); };
  def.no_gradient = kMadeByFuse;
  def.flops = [](const Op& op) { return 16 * op.in(0).num_elements(); };
  def.in_place = [](int operand, int result) { return operand <= 1 && result == 0; };
  def.reference = [&norm](const KernelCall& call) { Reference(norm, call); };
  registry.Add(std::move(def));
}

}  // namespace

void RegisterFusedNormGradOps(OpRegistry& registry) {
  Register(registry, kLayerNorm);
  Register(registry, kRmsNorm);
}

}  // namespace shardc
