// reshape, transpose, broadcast_to.
#include "ir/ops/shape_layout.h"

#include <cstring>
#include <numeric>

#include "ir/builder.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_util.h"

namespace shardc {

namespace {

// The factors of reshaping `from` to `to`, from the left: each step takes the greatest common
// divisor of what is left of the two dims, so [2, 1600] to [2, 25, 64] is (a)(b c) to (a)(b)(c).
// Where nothing is common the rest up to the next common boundary is replicated, each dim for
// itself.
ShardingRule ReshapeRule(const Shape& from, const Shape& to) {
  ShardingRule rule;
  std::vector<DimFactors> in(from.size()), out(to.size());
  if (NumElements(from) == 0) {
    rule.operands = {AddDims(rule, from, FactorKind::kReplicated)};
    rule.results = {AddDims(rule, to, FactorKind::kReplicated)};
    return rule;
  }
  size_t i = 0, j = 0;
  int64_t a = 1, b = 1;         // what is left of from[i - 1] and to[j - 1]
  bool stuck = false;           // nothing more in common before the next boundary
  int64_t left = 1, right = 1;  // products of all dims taken so far
  for (;;) {
    if (stuck) {
      if (a > 1) in[i - 1].factors.push_back(rule.AddFactor(a, FactorKind::kReplicated));
      if (b > 1) out[j - 1].factors.push_back(rule.AddFactor(b, FactorKind::kReplicated));
      a = b = 1;
      stuck = left != right;
    }
    if (a == 1 && i < from.size() && left <= right) {
      a = from[i++];
      left *= a;
    } else if (b == 1 && j < to.size() && right <= left) {
      b = to[j++];
      right *= b;
    } else if (a == 1 && b == 1) {
      break;
    } else if (int64_t g = std::gcd(a, b); g > 1 && !stuck) {
      int f = rule.AddFactor(g);
      in[i - 1].factors.push_back(f);
      out[j - 1].factors.push_back(f);
      a /= g;
      b /= g;
    } else {
      stuck = true;
    }
  }
  rule.operands = {std::move(in)};
  rule.results = {std::move(out)};
  return rule;
}

std::vector<TensorType> InferReshape(const InferArgs& args) {
  const Ints& shape = args.attrs.IntList("shape");
  CheckShape("reshape", args[0].dtype, shape);
  if (NumElements(shape) != args[0].num_elements()) {
    InferError("reshape", StrCat(ShapeToString(args[0].shape), " has ", args[0].num_elements(),
                                 " elements, ", ShapeToString(shape), " has ", NumElements(shape)));
  }
  return {TensorType(args[0].dtype, shape)};
}

void RunReshape(const KernelCall& call) {
  const TensorView &x = call.in[0], &y = call.out[0];
  SHARDC_CHECK(x.num_elements() == y.num_elements());
  int64_t bytes = x.num_elements() * DTypeSize(x.dtype);
  if (bytes > 0 && x.data != y.data) std::memcpy(y.data, x.data, static_cast<size_t>(bytes));
}

std::vector<TensorType> InferTranspose(const InferArgs& args) {
  const Ints& perm = args.attrs.IntList("perm");
  int rank = args[0].rank();
  std::vector<bool> seen(rank);
  bool valid = static_cast<int>(perm.size()) == rank;
  for (int64_t p : perm) {
    valid = valid && p >= 0 && p < rank && !seen[p];
    if (!valid) break;
    seen[p] = true;
  }
  if (!valid) {
    InferError("transpose", StrCat("perm ", ShapeToString(perm), " is not a permutation of the ",
                                   rank, " dims of the operand"));
  }
  Shape shape;
  for (int64_t p : perm) shape.push_back(args[0].shape[p]);
  return {TensorType(args[0].dtype, std::move(shape))};
}

ShardingRule TransposeRule(const Op& op) {
  ShardingRule rule;
  rule.linear = {{0}};
  rule.operands = {AddDims(rule, op.in(0).shape)};
  rule.results.emplace_back();
  for (int64_t p : op.attrs.IntList("perm")) rule.results[0].push_back(rule.operands[0][p]);
  return rule;
}

std::vector<Value*> TransposeGradient(const GradientArgs& args) {
  Value* dy = args.result_grads[0];
  const Ints& perm = args.op.attrs.IntList("perm");
  Ints inverse(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) inverse[perm[d]] = static_cast<int64_t>(d);
  return {args.builder.Transpose(dy, std::move(inverse))};
}

void RunTranspose(const KernelCall& call) {
  const TensorView &x = call.in[0], &y = call.out[0];
  Shape own = DenseStrides(x.shape), strides;
  for (int64_t p : call.attrs->IntList("perm")) strides.push_back(own[p]);
  const int64_t bytes = DTypeSize(x.dtype);
  reference::ForEach<2>(y.shape, {strides, DenseStrides(y.shape)}, [&](const auto& at) {
    std::memcpy(y.data + at[1] * bytes, x.data + at[0] * bytes, static_cast<size_t>(bytes));
  });
}

std::vector<TensorType> InferBroadcastTo(const InferArgs& args) {
  const Ints& shape = args.attrs.IntList("shape");
  CheckShape("broadcast_to", args[0].dtype, shape);
  if (args[0].shape.size() > shape.size() ||
      BroadcastShapes("broadcast_to", args[0].shape, shape) != shape) {
    InferError("broadcast_to", StrCat(ShapeToString(args[0].shape), " does not broadcast to ",
                                      ShapeToString(shape)));
  }
  return {TensorType(args[0].dtype, shape)};
}

void RunBroadcastTo(const KernelCall& call) {
  const TensorView &x = call.in[0], &y = call.out[0];
  const int64_t bytes = DTypeSize(x.dtype);
  reference::ForEach<2>(
      y.shape, {BroadcastStrides(x.shape, y.shape), DenseStrides(y.shape)}, [&](const auto& at) {
        std::memcpy(y.data + at[1] * bytes, x.data + at[0] * bytes, static_cast<size_t>(bytes));
      });
}

Attributes ResizedShape(const Op&, std::span<const TensorType> results, const Shape&) {
  return {{"shape", results[0].shape}};
}

// reshape(reshape(x)) is one reshape.
Value* SimplifyReshape(Builder& b, const Op& op) {
  if (Value* same = OperandIfSame(b, op)) return same;
  const Op* inner = op.operands[0]->producer;
  if (!inner || inner->def != op.def) return nullptr;
  return b.Make("reshape", {inner->operands[0]}, op.attrs);
}

Value* SimplifyTranspose(Builder& b, const Op& op) {
  Ints perm = op.attrs.IntList("perm");
  bool identity = true;
  for (size_t i = 0; i < perm.size(); ++i) identity &= perm[i] == static_cast<int64_t>(i);
  if (identity) return op.operands[0];
  const Op* inner = op.operands[0]->producer;
  if (!inner || inner->def != op.def) return nullptr;
  for (int64_t& p : perm) p = inner->attrs.IntList("perm")[p];
  return b.Transpose(inner->operands[0], std::move(perm));
}

}  // namespace

void RegisterLayoutOps(OpRegistry& registry) {
  OpDef reshape;
  reshape.name = "reshape";
  reshape.attrs = {{"shape", AttrKind::kInts, true}};
  reshape.resized = ResizedShape;
  reshape.infer = InferReshape;
  reshape.rule = [](const Op& op) {
    ShardingRule rule = ReshapeRule(op.in(0).shape, op.out().shape);
    rule.linear = {{0}};
    return rule;
  };
  reshape.gradient = [](const GradientArgs& args) {
    Value* dy = args.result_grads[0];
    return std::vector<Value*>{args.builder.Reshape(dy, args.op.in(0).shape)};
  };
  reshape.simplify = SimplifyReshape;
  reshape.flops = NoFlops;
  reshape.reference = RunReshape;
  reshape.cheap = true;
  reshape.view = true;
  reshape.keeps_zero_padding = true;
  reshape.precision = Precision::kFollow;
  registry.Add(std::move(reshape));

  OpDef transpose;
  transpose.name = "transpose";
  transpose.attrs = {{"perm", AttrKind::kInts, true}};
  transpose.infer = InferTranspose;
  transpose.rule = TransposeRule;
  transpose.gradient = TransposeGradient;
  transpose.simplify = SimplifyTranspose;
  transpose.flops = NoFlops;
  transpose.reference = RunTranspose;
  transpose.cheap = true;
  transpose.keeps_zero_padding = true;
  transpose.precision = Precision::kFollow;
  registry.Add(std::move(transpose));

  // Padding of a dim that it stretches holds copies: not zero.
  OpDef broadcast;
  broadcast.name = "broadcast_to";
  broadcast.attrs = {{"shape", AttrKind::kInts, true}};
  broadcast.resized = ResizedShape;
  broadcast.infer = InferBroadcastTo;
  broadcast.rule = [](const Op& op) { return ElementwiseRule(op, {{0}}); };
  broadcast.gradient = [](const GradientArgs& args) {
    Value* dy = args.result_grads[0];
    return std::vector<Value*>{args.builder.SumTo(dy, args.op.in(0).shape)};
  };
  broadcast.simplify = OperandIfSame;
  broadcast.flops = NoFlops;
  broadcast.reference = RunBroadcastTo;
  broadcast.cheap = true;
  broadcast.precision = Precision::kFollow;
  registry.Add(std::move(broadcast));
}

}  // namespace shardc
