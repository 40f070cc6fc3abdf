#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/ops/draws.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

std::vector<TensorType> Infer(const InferArgs& args) {
  RequireFloat("dropout", args[0], "the operand");
  CheckDraws("dropout", args, args[0].shape);
  return {TensorType(args[0].dtype, args[0].shape)};
}

void Reference(const KernelCall& call) {
  const Draws draws(call);
  const std::vector<double> x = ToDoubles(call.in[0]);
  std::vector<double> y(x.size());
  ForEachPlace(call, [&](int64_t at, int64_t place) {
    const double factor = draws.Factor(place);
    y[at] = factor == 0 ? 0 : x[at] * factor;
  });
  FromDoubles(y, call.out[0]);
}

}  // namespace

void RegisterDropoutOps(OpRegistry& registry) {
  OpDef def;
  def.name = "dropout";
  def.min_operands = def.max_operands = 2;
  AddDropAttrs(def, true);
  def.undropped = [](Builder&, const Op& op) { return std::vector<Value*>{op.operands[0]}; };
  def.infer = Infer;
  def.resized = [](const Op& op, std::span<const TensorType>, const Shape& origin) {
    return AttributesOfDrawnPart(op, op.in(0).shape, origin);
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op, {{0}}); };
  // The same elements of the gradient pass.
  def.gradient = [](const GradientArgs& args) {
    Value* dy = args.result_grads[0];
    return std::vector<Value*>{
        args.builder.Make("dropout", {dy, args.op.operands[1]}, args.op.attrs), nullptr};
  };
  def.simplify = [](Builder&, const Op& op) {
    return op.attrs.Float("ratio") == 0 ? op.operands[0] : nullptr;
  };
  def.flops = [](const Op& op) { return 2 * op.in(0).num_elements(); };
  def.reference = Reference;
  def.in_place = [](int operand, int) { return operand == 0; };
  def.precision = Precision::kFollow;
  def.cpu_halves = CpuHalves::kWidened;
  def.cheap = true;
  def.keeps_zero_padding = true;
  registry.Add(std::move(def));
}

}  // namespace shardc
