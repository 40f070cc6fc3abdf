#include "ir/op_def.h"
#include "ir/ops/draws.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

// like, step -> for each place of `like`, whose elements do not count, a number in [0, 1), which
// the type may round up.
void Reference(const KernelCall& call) {
  const Draws draws(call);
  std::vector<double> y(static_cast<size_t>(call.out[0].num_elements()));
  ForEachPlace(call, [&](int64_t at, int64_t place) { y[at] = draws.Uniform(place); });
  FromDoubles(y, call.out[0]);
}

}  // namespace

void RegisterRandomOps(OpRegistry& registry) {
  OpDef def;
  def.name = "random_uniform";
  def.min_operands = def.max_operands = 2;
  AddDrawAttrs(def);
  def.random = true;
  def.infer = [](const InferArgs& args) {
    RequireFloat("random_uniform", args[0], "the operand");
    CheckDraws("random_uniform", args, args[0].shape);
    return std::vector<TensorType>{TensorType(args[0].dtype, args[0].shape)};
  };
  def.resized = [](const Op& op, std::span<const TensorType>, const Shape& origin) {
    return AttributesOfDrawnPart(op, op.in(0).shape, origin);
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op); };
  def.no_gradient = "no operand's elements count";
  def.gradient_is_zero = true;
  def.flops = NoFlops;
  def.reference = Reference;
  def.cpu_halves = CpuHalves::kWidened;
  def.cheap = true;
  def.keeps_zero_padding = true;
  registry.Add(std::move(def));
}

}  // namespace shardc
