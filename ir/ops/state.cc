// param, state, update, constant.
#include <cstring>

#include "ir/ops/infer_util.h"
#include "ir/ops/reference_util.h"

namespace shardc {
namespace {

std::vector<TensorType> InferState(const InferArgs& args) {
  auto dtype = ParseDType(args.attrs.String("dtype"));
  if (!dtype) InferError("state", StrCat("there is no type '", args.attrs.String("dtype"), "'"));
  return {TensorType(*dtype, args.attrs.IntList("shape"))};
}

std::vector<TensorType> InferConstant(const InferArgs& args) {
  const HostTensor& value = args.attrs.Tensor("value");
  return {TensorType(value.dtype(), value.shape())};
}

// The data is whole on every rank: a reshard takes the local part where one is wanted.
ShardingRule ConstantRule(const Op& op) {
  ShardingRule rule;
  rule.results = {std::vector<DimFactors>(op.out().rank())};
  return rule;
}

void RunConstant(const KernelCall& call) {
  const HostTensor& value = call.attrs->Tensor("value");
  const TensorView& out = call.out[0];
  SHARDC_CHECK(out.shape == value.shape(), "constant ", ShapeToString(value.shape()));
  if (value.bytes() > 0) std::memcpy(out.data, value.raw(), static_cast<size_t>(value.bytes()));
}

}  // namespace

void RegisterStateOps(OpRegistry& registry) {
  OpDef param;
  param.name = "param";
  param.min_operands = param.max_operands = 0;
  const std::vector<AttrSpec> piece = {{"piece_of", AttrKind::kString},
                                       {"piece_dim", AttrKind::kInt},
                                       {"piece_start", AttrKind::kInt},
                                       {"whole_size", AttrKind::kInt}};
  param.attrs = {{"name", AttrKind::kString, true},
                 {"role", AttrKind::kString},
                 {"part", AttrKind::kString},
                 // of a weight or a bias with a role, the dims that stand for the rows and the
                 // columns of a matrix, major to minor; without them the last two, and the last
                 {"rows", AttrKind::kInts},
                 {"columns", AttrKind::kInts},
                 // of such a one, a dim in which so many matrices, or vectors, of experts lie one
                 // behind the other: the dim and their number
                 {"stacked", AttrKind::kInts},
                 {"aliases", AttrKind::kStrings},
                 {"decay", AttrKind::kBool},
                 {"whole", AttrKind::kBool},  // as a rule of the spec has it, which cuts nothing
                 {"trained", AttrKind::kBool},
                 // until patterns are recovered: all uses are of this one
                 {"single", AttrKind::kBool},
                 // those of `aliases` under which the file has the matrix transposed
                 {"transposed_aliases", AttrKind::kStrings},
                 // those that name what the exporter made the tensor of
                 {"source_aliases", AttrKind::kStrings},
                 // the one of them whose transpose the tensor is
                 {"transpose_of", AttrKind::kString},
                 // the module's tensors that the exporter computed into this one
                 {"merged", AttrKind::kStrings}};
  param.attrs.insert(param.attrs.end(), piece.begin(), piece.end());
  param.no_gradient = "a parameter has no operands";
  param.flops = NoFlops;
  param.is_state = true;
  registry.Add(std::move(param));

  OpDef state;
  state.name = "state";
  state.min_operands = state.max_operands = 0;
  state.attrs = {{"name", AttrKind::kString, true},
                 {"dtype", AttrKind::kString, true},
                 {"shape", AttrKind::kInts, true},
                 {"init", AttrKind::kFloat, true},
                 {"transpose_of", AttrKind::kString}};
  state.attrs.insert(state.attrs.end(), piece.begin(), piece.end());
  state.infer = InferState;
  state.no_gradient = "a state has no operands";
  state.flops = NoFlops;
  state.is_state = true;
  registry.Add(std::move(state));

  OpDef update;
  update.name = "update";
  update.attrs = {{"name", AttrKind::kString, true}};
  update.infer = [](const InferArgs&) { return std::vector<TensorType>(); };
  update.no_gradient = "it has no result";
  update.flops = NoFlops;
  update.side_effect = true;
  registry.Add(std::move(update));

  OpDef constant;
  constant.name = "constant";
  constant.min_operands = constant.max_operands = 0;
  constant.attrs = {{"value", AttrKind::kTensor, true}};
  constant.infer = InferConstant;
  constant.rule = ConstantRule;
  constant.no_gradient = "a constant has no operands";
  constant.gradient_is_zero = true;
  constant.flops = NoFlops;
  constant.reference = RunConstant;
  registry.Add(std::move(constant));
}

}  // namespace shardc
