#include "ir/dropout.h"

#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/ops/infer_checks.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"
#include "ir/philox.h"

namespace shardc {
namespace {

std::vector<TensorType> Infer(const InferArgs& args) {
  constexpr std::string_view op = "dropout";
  RequireFloat(op, args[0], "the operand");
  RequireInteger(op, args[1], "the step");
  RequireShape(op, args[1], {}, "the step");
  const double ratio = args.attrs.Float("ratio");
  if (!(ratio >= 0 && ratio <= 1)) InferError(op, StrCat("ratio ", ratio, " is not in [0, 1]"));
  CheckOrigin(op, args.attrs, args[0], "the operand");
  const Shape origin = OriginOf(args.attrs, args[0].rank());
  const Shape whole = WholeOf(args.attrs, args[0].shape);
  bool fits = whole.size() == origin.size();
  for (size_t d = 0; fits && d < whole.size(); ++d) {
    fits = origin[d] + args[0].shape[d] <= whole[d];
  }
  if (!fits) {
    InferError(op, StrCat(ShapeToString(args[0].shape), " at ", ShapeToString(origin),
                          " is no part of ", ShapeToString(whole)));
  }
  return {TensorType(args[0].dtype, args[0].shape)};
}

void Reference(const KernelCall& call) {
  const DropoutMask mask = MaskOf(*call.attrs);
  const DropoutPlaces places = PlacesOf(call);
  const std::vector<double> x = ToDoubles(call.in[0]);
  const auto step = static_cast<uint32_t>(static_cast<int64_t>(ToDoubles(call.in[1])[0]));
  std::vector<double> y(x.size());
  const size_t width = places.rows.empty() ? 0 : x.size() / places.rows.size();
  for (size_t row = 0; row < places.rows.size(); ++row) {
    if (places.rows[row] < 0) continue;
    for (const Run& run : places.columns) {
      for (int64_t j = 0; j < run.size; ++j) {
        const auto i = static_cast<uint64_t>(places.rows[row] + run.global + j);
        const auto words = Philox4x32(
            {static_cast<uint32_t>(i / 4), static_cast<uint32_t>(i >> 34), mask.stream, step},
            {static_cast<uint32_t>(mask.seed), static_cast<uint32_t>(mask.seed >> 32)});
        const size_t at = row * width + static_cast<size_t>(run.local + j);
        y[at] = words[i % 4] >= mask.threshold ? x[at] * mask.scale : 0;
      }
    }
  }
  FromDoubles(y, call.out[0]);
}

}  // namespace

void RegisterDropoutOps(OpRegistry& registry) {
  OpDef def;
  def.name = "dropout";
  def.min_operands = def.max_operands = 2;
  def.attrs = {{"ratio", AttrKind::kFloat, true},
               {"seed", AttrKind::kInt},
               {"stream", AttrKind::kInt},
               {"origin", AttrKind::kInts},
               {"whole", AttrKind::kInts}};
  def.random = true;
  def.infer = Infer;
  def.resized = [](const Op& op, std::span<const TensorType>, const Shape& origin) {
    Attributes attrs = WithOriginMoved(op.attrs, origin);
    attrs.Set("whole", WholeOf(op.attrs, op.in(0).shape));
    return attrs;
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op, {{0}}); };
  // The same elements of the gradient pass.
  def.gradient = [](const GradientArgs& args) {
    std::vector<Value*> grads(2);
    Value* dy = args.result_grads[0];
    if (dy && args.wanted[0]) {
      grads[0] = args.builder.Make("dropout", {dy, args.op.operands[1]}, args.op.attrs);
    }
    return grads;
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
