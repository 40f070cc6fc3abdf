// fused_elementwise: a small program over scalars for every element of its broadcast operands.
#include <algorithm>

#include "ir/ops/elementwise.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"
#include "ir/scalar_program.h"

namespace shardc {
namespace {

std::vector<TensorType> Infer(const InferArgs& args) {
  constexpr std::string_view op = "fused_elementwise";
  ScalarProgram program = ScalarProgram::Parse(args.attrs, static_cast<int>(args.size()));
  Shape shape = args[0].shape;
  for (size_t i = 0; i < args.size(); ++i) {
    RequireFloat(op, args[i]);
    shape = BroadcastShapes(op, shape, args[i].shape);
  }
  const Strings types = args.attrs.StringList(
      "types", Strings(program.results.size(), std::string(DTypeName(args[0].dtype))));
  if (types.size() != program.results.size()) InferError(op, "needs one type per result");
  std::vector<TensorType> results;
  for (const std::string& name : types) {
    auto type = ParseDType(name);
    if (!type || !IsFloat(*type)) InferError(op, StrCat("'", name, "' is no float type"));
    results.emplace_back(*type, shape);
  }
  return results;
}

// Step by step by the references of the ops that the steps stand for, in double without rounding.
void Reference(const KernelCall& call) {
  ScalarProgram program = ScalarProgram::Parse(*call.attrs, static_cast<int>(call.in.size()));
  const Shape& shape = call.out[0].shape;
  std::vector<std::vector<double>> values;
  std::vector<Shape> shapes;
  for (const TensorView& v : call.in) {
    values.push_back(ToDoubles(v));
    shapes.push_back(v.shape);
  }
  auto view = [&](int i) {
    return TensorView{reinterpret_cast<std::byte*>(values[i].data()), DType::kF64, shapes[i]};
  };
  // What the ops take and give as bools.
  std::vector<uint8_t> bools;
  auto truth = [&](const Shape& s) {
    return TensorView{reinterpret_cast<std::byte*>(bools.data()), DType::kBool, s};
  };
  for (const ScalarStep& step : program.steps) {
    const ScalarOpInfo& info = InfoOf(step.op);
    values.emplace_back(static_cast<size_t>(NumElements(shape)));
    shapes.push_back(shape);
    std::vector<TensorView> in;
    for (int k = 0; k < info.operands; ++k) in.push_back(view(step.operands[k]));
    TensorView out = view(static_cast<int>(values.size()) - 1);
    if (step.op == ScalarOp::kWhere) {
      bools.clear();
      for (double x : values[step.operands[0]]) bools.push_back(x != 0);
      in[0] = truth(shapes[step.operands[0]]);
    }
    if (IsComparison(step.op)) {
      bools.assign(values.back().size(), 0);
      out = truth(shape);
    }
    Attributes attrs;
    if (!info.approximate.empty()) attrs.Set("approximate", std::string(info.approximate));
    RunPart(info.op, call, attrs, in, {out});
    if (IsComparison(step.op)) std::ranges::copy(bools, values.back().begin());
  }
  for (size_t r = 0; r < program.results.size(); ++r) {
    int value = program.results[r];
    if (shapes[value] == shape) {
      FromDoubles(values[value], call.out[r]);
      continue;
    }
    // An operand that broadcasts and is itself a result.
    std::vector<double> whole(static_cast<size_t>(NumElements(shape)));
    reference::ForEach<2>(shape, {BroadcastStrides(shapes[value], shape), DenseStrides(shape)},
                          [&](const auto& at) { whole[at[1]] = values[value][at[0]]; });
    FromDoubles(whole, call.out[r]);
  }
}

}  // namespace

void RegisterFusedElementwiseOp(OpRegistry& registry) {
  OpDef def;
  def.name = "fused_elementwise";
  def.max_operands = ScalarProgram::kMaxInputs;
  def.attrs = {{"steps", AttrKind::kStrings, true},
               {"results", AttrKind::kInts, true},
               {"types", AttrKind::kStrings}};
  def.elementwise = true;
  def.cpu_halves = CpuHalves::kBf16;
  def.precision = Precision::kFollow;
  def.infer = Infer;
  def.rule = [](const Op& op) { return ElementwiseRule(op); };
  def.no_gradient = "made by a pass that comes after differentiation";
  def.flops = [](const Op& op) {
    return op.out().num_elements() * static_cast<int64_t>(op.attrs.StringList("steps").size());
  };
  def.reference = Reference;
  registry.Add(std::move(def));
}

}  // namespace shardc
