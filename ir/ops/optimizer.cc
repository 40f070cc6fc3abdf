// Updates of one parameter, as torch.optim.AdamW and torch.optim.SGD define them.
#include <cmath>

#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

constexpr std::string_view kNotDifferentiable = "an optimizer's step has no gradient";

void RequireScalar(std::string_view op, const TensorType& type, std::string_view operand) {
  if (type.rank() != 0 || type.dtype == DType::kBool) {
    InferError(op, StrCat(operand, " must be a scalar number, not ", DTypeName(type.dtype), " ",
                          ShapeToString(type.shape)));
  }
}

void RequireLike(std::string_view op, const TensorType& type, const TensorType& weight,
                 std::string_view operand) {
  RequireFloat(op, type, operand);
  RequireShape(op, type, weight.shape, operand);
}

std::vector<TensorType> InferAdamW(const InferArgs& args) {
  RequireFloat("adamw", args[0], "weight");
  RequireLike("adamw", args[1], args[0], "gradient");
  RequireLike("adamw", args[2], args[0], "first moment");
  RequireLike("adamw", args[3], args[0], "second moment");
  RequireScalar("adamw", args[4], "step");
  RequireScalar("adamw", args[5], "scale");
  RequireScalar("adamw", args[6], "learning rate");
  auto whole = [&](int i) { return TensorType(args[i].dtype, args[i].shape); };
  return {whole(0), whole(2), whole(3)};
}

void ReferenceAdamW(const KernelCall& call) {
  const Attributes& attrs = *call.attrs;
  double beta1 = attrs.Float("beta1"), beta2 = attrs.Float("beta2");
  double eps = attrs.Float("eps"), decay = attrs.Float("weight_decay");
  std::vector<double> w = ToDoubles(call.in[0]), g = ToDoubles(call.in[1]);
  std::vector<double> m = ToDoubles(call.in[2]), v = ToDoubles(call.in[3]);
  double step = ToDoubles(call.in[4])[0], scale = ToDoubles(call.in[5])[0];
  double lr = ToDoubles(call.in[6])[0];
  double step_size = lr / (1 - std::pow(beta1, step));
  double root_correction = std::sqrt(1 - std::pow(beta2, step));
  for (size_t i = 0; i < w.size() && !std::isnan(scale); ++i) {
    double gradient = g[i] * scale;
    m[i] = beta1 * m[i] + (1 - beta1) * gradient;
    v[i] = beta2 * v[i] + (1 - beta2) * gradient * gradient;
    w[i] -= lr * decay * w[i];
    w[i] -= step_size * m[i] / (std::sqrt(v[i]) / root_correction + eps);
  }
  FromDoubles(w, call.out[0]);
  FromDoubles(m, call.out[1]);
  FromDoubles(v, call.out[2]);
}

std::vector<TensorType> InferSgd(const InferArgs& args) {
  RequireFloat("sgd", args[0], "weight");
  RequireLike("sgd", args[1], args[0], "gradient");
  RequireScalar("sgd", args[2], "scale");
  RequireScalar("sgd", args[3], "learning rate");
  bool buffered = args.size() == 6;
  if (args.size() == 5) InferError("sgd", "a momentum buffer needs the step too");
  if (!buffered && args.attrs.Float("momentum", 0) != 0) {
    InferError("sgd", "momentum needs the operands buffer and step");
  }
  if (args.attrs.Bool("nesterov") &&
      (args.attrs.Float("momentum", 0) <= 0 || args.attrs.Float("dampening", 0) != 0)) {
    InferError("sgd", "nesterov needs a momentum above 0 and a dampening of 0");
  }
  std::vector<TensorType> results = {TensorType(args[0].dtype, args[0].shape)};
  if (buffered) {
    RequireLike("sgd", args[4], args[0], "momentum buffer");
    RequireScalar("sgd", args[5], "step");
    results.emplace_back(args[4].dtype, args[4].shape);
  }
  return results;
}

void ReferenceSgd(const KernelCall& call) {
  const Attributes& attrs = *call.attrs;
  double momentum = attrs.Float("momentum", 0);
  double dampening = attrs.Float("dampening", 0), decay = attrs.Float("weight_decay", 0);
  bool nesterov = attrs.Bool("nesterov"), buffered = call.in.size() == 6;
  std::vector<double> w = ToDoubles(call.in[0]), g = ToDoubles(call.in[1]), buffer;
  double scale = ToDoubles(call.in[2])[0], lr = ToDoubles(call.in[3])[0];
  bool first = buffered && ToDoubles(call.in[5])[0] <= 1;
  if (buffered) buffer = ToDoubles(call.in[4]);
  for (size_t i = 0; i < w.size() && !std::isnan(scale); ++i) {
    double gradient = g[i] * scale + decay * w[i];
    if (buffered) {
      buffer[i] = first ? gradient : momentum * buffer[i] + (1 - dampening) * gradient;
      gradient = nesterov ? gradient + momentum * buffer[i] : buffer[i];
    }
    w[i] -= lr * gradient;
  }
  FromDoubles(w, call.out[0]);
  if (buffered) FromDoubles(buffer, call.out[1]);
}

OpDef UpdateDef(std::string_view name) {
  OpDef def;
  def.name = name;
  def.rule = [](const Op& op) { return ElementwiseRule(op); };
  def.no_gradient = kNotDifferentiable;
  def.elementwise = true;
  def.cpu_halves = CpuHalves::kWidened;
  def.keeps_zero_padding = true;
  return def;
}

}  // namespace

void RegisterOptimizerOps(OpRegistry& registry) {
  OpDef adamw = UpdateDef("adamw");
  adamw.min_operands = adamw.max_operands = 7;
  adamw.attrs = {{"beta1", AttrKind::kFloat, true},
                 {"beta2", AttrKind::kFloat, true},
                 {"eps", AttrKind::kFloat, true},
                 {"weight_decay", AttrKind::kFloat, true}};
  adamw.infer = InferAdamW;
  adamw.flops = [](const Op& op) { return 15 * op.in(0).num_elements(); };
  adamw.reference = ReferenceAdamW;
  adamw.in_place = [](int operand, int result) {
    return operand == (result == 0 ? 0 : result + 1);
  };
  registry.Add(std::move(adamw));

  OpDef sgd = UpdateDef("sgd");
  sgd.min_operands = 4;
  sgd.max_operands = 6;
  sgd.attrs = {{"momentum", AttrKind::kFloat},
               {"dampening", AttrKind::kFloat},
               {"nesterov", AttrKind::kBool},
               {"weight_decay", AttrKind::kFloat}};
  sgd.infer = InferSgd;
  sgd.flops = [](const Op& op) { return 6 * op.in(0).num_elements(); };
  sgd.reference = ReferenceSgd;
  sgd.in_place = [](int operand, int result) { return operand == (result == 0 ? 0 : 4); };
  registry.Add(std::move(sgd));
}

}  // namespace shardc
