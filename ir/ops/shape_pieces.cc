// slice, pad, concat, split.
#include <algorithm>

#include "ir/builder.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_util.h"
#include "ir/ops/shape_layout.h"

namespace shardc {
namespace {

Value* Zeros(Builder& b, const TensorType& type) {
  return b.BroadcastTo(b.Scalar(type.dtype, 0), type.shape);
}

void CheckPerDim(std::string_view op, const Ints& list, int rank, std::string_view name) {
  if (static_cast<int>(list.size()) != rank) {
    InferError(op, StrCat(name, " has ", list.size(), " entries for ", rank, " dims"));
  }
}

// Dims of size > 1 that are equal on both sides by `same` are plain; the others replicated.
template <typename Same>
ShardingRule PartlyPlainRule(const Op& op, Same same, bool linear) {
  ShardingRule rule;
  if (linear) rule.linear = {{0}};
  const Shape &x = op.in(0).shape, &y = op.out().shape;
  std::vector<DimFactors> in(x.size()), out(x.size());
  for (size_t d = 0; d < x.size(); ++d) {
    if (same(d)) {
      if (x[d] != 1) in[d].factors = out[d].factors = {rule.AddFactor(x[d])};
      continue;
    }
    if (x[d] != 1) in[d].factors = {rule.AddFactor(x[d], FactorKind::kReplicated)};
    if (y[d] != 1) out[d].factors = {rule.AddFactor(y[d], FactorKind::kReplicated)};
  }
  rule.operands = {std::move(in)};
  rule.results = {std::move(out)};
  return rule;
}

// Elements start, start + step, ... before (beyond, for a negative step) limit.
std::vector<TensorType> InferSlice(const InferArgs& args) {
  const Ints &starts = args.attrs.IntList("starts"), &limits = args.attrs.IntList("limits"),
             &steps = args.attrs.IntList("steps");
  int rank = args[0].rank();
  CheckPerDim("slice", starts, rank, "starts");
  CheckPerDim("slice", limits, rank, "limits");
  CheckPerDim("slice", steps, rank, "steps");
  Shape shape(rank);
  for (int d = 0; d < rank; ++d) {
    int64_t n = args[0].shape[d], start = starts[d], limit = limits[d], step = steps[d];
    bool ok = step > 0 ? 0 <= start && start <= limit && limit <= n
                       : step < 0 && -1 <= limit && limit <= start && start < n;
    // Steps beyond the dim mean nothing more, and could overflow.
    if (!ok || step > std::max<int64_t>(n, 1) || step < -std::max<int64_t>(n, 1)) {
      InferError("slice", StrCat("[", start, ":", limit, ":", step, "] does not fit dim ", d,
                                 " of size ", n));
    }
    shape[d] = step > 0 ? (limit - start + step - 1) / step : (start - limit - step - 1) / -step;
  }
  return {TensorType(args[0].dtype, std::move(shape))};
}

ShardingRule SliceRule(const Op& op) {
  const Ints &starts = op.attrs.IntList("starts"), &steps = op.attrs.IntList("steps");
  auto whole = [&](size_t d) {
    return op.in(0).shape[d] == op.out().shape[d] && starts[d] == 0 && steps[d] == 1;
  };
  return PartlyPlainRule(op, whole, true);
}

// A dim of dy with step s > 1 is spread to s times its size by zeros between its elements, one with
// a negative step reversed first; then padding puts it in place.
std::vector<Value*> SliceGradient(const GradientArgs& args) {
  Value* dy = args.result_grads[0];
  Builder& b = args.builder;
  const Shape& x = args.op.in(0).shape;
  Ints starts = args.op.attrs.IntList("starts"), steps = args.op.attrs.IntList("steps");
  if (dy->type.num_elements() == 0) return {Zeros(b, args.op.in(0))};
  size_t rank = x.size();
  Ints from(rank, 0), limits = dy->type.shape, by(rank, 1);
  bool reverse = false;
  for (size_t d = 0; d < rank; ++d) {
    if (steps[d] > 0) continue;
    int64_t n = dy->type.shape[d];
    reverse = true;
    from[d] = n - 1;
    limits[d] = by[d] = -1;
    starts[d] += (n - 1) * steps[d];
    steps[d] = -steps[d];
  }
  if (reverse) dy = b.Make("slice", {dy}, {{"starts", from}, {"limits", limits}, {"steps", by}});
  for (size_t d = 0; d < rank; ++d) {
    int64_t n = dy->type.shape[d];
    if (steps[d] == 1 || n == 1) continue;
    Shape spread = dy->type.shape;
    spread.insert(spread.begin() + static_cast<int64_t>(d) + 1, 1);
    Ints none(rank + 1, 0), high = none;
    high[d + 1] = steps[d] - 1;
    dy = b.Make("pad", {b.Reshape(dy, spread)}, {{"low", none}, {"high", high}, {"value", 0.0}});
    Shape merged = dy->type.shape;
    merged[d] = n * steps[d];
    merged.erase(merged.begin() + static_cast<int64_t>(d) + 1);
    dy = b.Reshape(dy, merged);
    // The zeros after the last element may reach beyond x.
    dy = b.Slice(dy, static_cast<int>(d), 0, (n - 1) * steps[d] + 1);
  }
  if (dy->type.shape == x) return {dy};
  Ints high(rank);
  for (size_t d = 0; d < rank; ++d) high[d] = x[d] - starts[d] - dy->type.shape[d];
  return {b.Make("pad", {dy}, {{"low", starts}, {"high", high}, {"value", 0.0}})};
}

void RunSlice(const KernelCall& call) {
  const TensorView &x = call.in[0], &y = call.out[0];
  Shape to(x.rank(), 0), from = call.attrs->IntList("starts");
  if (y.num_elements() == 0) return;
  CopyStrided(x, from, call.attrs->IntList("steps"), y, to, y.shape);
}

std::vector<TensorType> InferPad(const InferArgs& args) {
  const Ints &low = args.attrs.IntList("low"), &high = args.attrs.IntList("high");
  int rank = args[0].rank();
  CheckPerDim("pad", low, rank, "low");
  CheckPerDim("pad", high, rank, "high");
  Shape shape = args[0].shape;
  for (int d = 0; d < rank; ++d) {
    bool fits = low[d] >= 0 && high[d] >= 0 &&
                !__builtin_add_overflow(shape[d], low[d], &shape[d]) &&
                !__builtin_add_overflow(shape[d], high[d], &shape[d]);
    if (!fits)
      InferError("pad", StrCat("dim ", d, " cannot be padded by ", low[d], " and ", high[d]));
  }
  return {TensorType(args[0].dtype, std::move(shape))};
}

ShardingRule PadRule(const Op& op) {
  auto whole = [&](size_t d) { return op.in(0).shape[d] == op.out().shape[d]; };
  return PartlyPlainRule(op, whole, op.attrs.Float("value") == 0);
}

std::vector<Value*> PadGradient(const GradientArgs& args) {
  Value* dy = args.result_grads[0];
  Ints starts = args.op.attrs.IntList("low"), limits = starts, steps(starts.size(), 1);
  for (size_t d = 0; d < limits.size(); ++d) limits[d] += args.op.in(0).shape[d];
  return {
      args.builder.Make("slice", {dy}, {{"starts", starts}, {"limits", limits}, {"steps", steps}})};
}

void RunPad(const KernelCall& call) {
  const TensorView &x = call.in[0], &y = call.out[0];
  HostTensor value(y.dtype, {1});
  value.SetDouble(0, call.attrs->Float("value"));
  const int64_t bytes = DTypeSize(y.dtype);
  for (int64_t i = 0, n = y.num_elements(); i < n; ++i) {
    std::copy_n(value.raw(), bytes, y.data + i * bytes);
  }
  Shape zero(x.rank(), 0), one(x.rank(), 1);
  CopyStrided(x, zero, one, y, call.attrs->IntList("low"), x.shape);
}

// concat and split: `whole` is the tensor of all pieces. Along the axis one factor stands for all
// pieces, cut alike, where each can be cut at all.
struct PiecesFactors {
  std::vector<DimFactors> whole;
  std::vector<std::vector<DimFactors>> pieces;
};
PiecesFactors MapPieces(ShardingRule& rule, const Shape& whole, int axis, const Ints& sizes) {
  PiecesFactors out;
  out.whole = AddDims(rule, whole);
  int64_t least = *std::min_element(sizes.begin(), sizes.end());
  bool together = least > 1;
  std::vector<DimFactors> other = out.whole;
  other[axis] = {};
  if (whole[axis] != 1) {
    Factor& f = rule.factors[out.whole[axis].factors[0]];
    // A piece smaller than the number of parts leaves some part without any of it: the least
    // counts.
    f.size = together ? least : f.size;
    if (!together && sizes.size() > 1) f.kind = FactorKind::kReplicated;
    if (together && sizes.size() > 1) out.whole[axis].segments = sizes;
  }
  int shared =
      together || sizes.size() == 1 ? (whole[axis] != 1 ? out.whole[axis].factors[0] : -1) : -1;
  for (int64_t n : sizes) {
    out.pieces.push_back(other);
    if (n == 1) continue;
    int f = shared >= 0 ? shared : rule.AddFactor(n, FactorKind::kReplicated);
    out.pieces.back()[axis].factors = {f};
  }
  return out;
}

// Copies between a whole tensor and its pieces along the axis; the views give the (local) sizes.
void CopyPieces(const TensorView& whole, std::span<const TensorView> pieces, int axis, bool join) {
  Shape at(whole.rank(), 0), zero = at, one(whole.rank(), 1);
  for (const TensorView& piece : pieces) {
    if (join) {
      CopyStrided(piece, zero, one, whole, at, piece.shape);
    } else {
      CopyStrided(whole, at, one, piece, zero, piece.shape);
    }
    at[axis] += piece.shape[axis];
  }
  SHARDC_CHECK(at[axis] == whole.shape[axis]);
}

std::vector<TensorType> InferConcat(const InferArgs& args) {
  RequireSameDType("concat", args, 0, args.size());
  int axis = NormalizeAxis("concat", args.attrs.Int("axis"), args[0].rank());
  Shape shape = args[0].shape;
  for (size_t i = 1; i < args.size(); ++i) {
    Shape other = args[i].shape;
    bool fits = other.size() == shape.size();
    for (size_t d = 0; fits && d < shape.size(); ++d) {
      fits = static_cast<int>(d) == axis || other[d] == shape[d];
    }
    if (!fits) {
      InferError("concat",
                 StrCat("operand ", i, " of shape ", ShapeToString(other), " does not fit ",
                        ShapeToString(args[0].shape), " along axis ", axis));
    }
    if (__builtin_add_overflow(shape[axis], other[axis], &shape[axis])) {
      InferError("concat", "the result is too large");
    }
  }
  return {TensorType(args[0].dtype, std::move(shape))};
}

Ints SizesAlong(const std::vector<Value*>& values, int axis) {
  Ints sizes;
  for (const Value* v : values) sizes.push_back(v->type.shape[axis]);
  return sizes;
}

ShardingRule ConcatRule(const Op& op) {
  ShardingRule rule;
  int axis = AxisOf(op.attrs, op.out().rank());
  rule.linear = {{}};
  for (size_t i = 0; i < op.operands.size(); ++i) rule.linear[0].push_back(static_cast<int>(i));
  PiecesFactors f = MapPieces(rule, op.out().shape, axis, SizesAlong(op.operands, axis));
  rule.operands = std::move(f.pieces);
  rule.results = {std::move(f.whole)};
  return rule;
}

std::vector<Value*> ConcatGradient(const GradientArgs& args) {
  std::vector<Value*> grads(args.op.operands.size());
  Value* dy = args.result_grads[0];
  int axis = AxisOf(args.op.attrs, dy->type.rank());
  Op* split = args.builder.Create(
      "split", {dy}, {{"axis", int64_t{axis}}, {"sizes", SizesAlong(args.op.operands, axis)}});
  for (size_t i = 0; i < grads.size(); ++i) {
    if (args.wanted[i]) grads[i] = split->result(static_cast<int>(i));
  }
  return grads;
}

std::vector<TensorType> InferSplit(const InferArgs& args) {
  int axis = NormalizeAxis("split", args.attrs.Int("axis"), args[0].rank());
  const Ints& sizes = args.attrs.IntList("sizes");
  int64_t left = args[0].shape[axis];
  std::vector<TensorType> types;
  for (int64_t n : sizes) {
    if (n < 0 || n > left) left = -1;
    if (left < 0) break;
    left -= n;
    Shape shape = args[0].shape;
    shape[axis] = n;
    types.emplace_back(args[0].dtype, std::move(shape));
  }
  if (left != 0 || sizes.empty()) {
    InferError("split", StrCat("sizes ", ShapeToString(sizes), " do not add up to dim ", axis,
                               " of size ", args[0].shape[axis]));
  }
  return types;
}

ShardingRule SplitRule(const Op& op) {
  ShardingRule rule;
  rule.linear = {{0}};
  int axis = AxisOf(op.attrs, op.in(0).rank());
  PiecesFactors f = MapPieces(rule, op.in(0).shape, axis, op.attrs.IntList("sizes"));
  rule.operands = {std::move(f.whole)};
  rule.results = std::move(f.pieces);
  return rule;
}

std::vector<Value*> SplitGradient(const GradientArgs& args) {
  std::vector<Value*> pieces;
  for (size_t i = 0; i < args.op.results.size(); ++i) {
    Value* dy = args.result_grads[i];
    pieces.push_back(dy ? dy : Zeros(args.builder, args.op.out(static_cast<int>(i))));
  }
  return {args.builder.Make("concat", std::move(pieces),
                            {{"axis", int64_t{AxisOf(args.op.attrs, args.op.in(0).rank())}}})};
}

// Dims that shrink are those that the slice leaves whole.
Attributes ResizedSlice(const Op& op, std::span<const TensorType> results, const Shape&) {
  Attributes attrs = op.attrs;
  Ints limits = attrs.IntList("limits");
  for (size_t d = 0; d < limits.size(); ++d) {
    if (results[0].shape[d] != op.out().shape[d]) limits[d] = results[0].shape[d];
  }
  attrs.Set("limits", std::move(limits));
  return attrs;
}

// Of full size, and not run backwards.
Value* SimplifySlice(Builder& b, const Op& op) {
  const Ints& steps = op.attrs.IntList("steps");
  bool forward = std::all_of(steps.begin(), steps.end(), [](int64_t s) { return s > 0; });
  return forward ? OperandIfSame(b, op) : nullptr;
}

// Of a concat of one operand, or a split into one result.
Value* OnlyPiece(Builder& b, const Op& op) {
  return op.operands.size() == 1 && op.results.size() == 1 ? OperandIfSame(b, op) : nullptr;
}

}  // namespace

void RegisterPieceOps(OpRegistry& registry) {
  OpDef slice;
  slice.name = "slice";
  slice.attrs = {{"starts", AttrKind::kInts, true},
                 {"limits", AttrKind::kInts, true},
                 {"steps", AttrKind::kInts, true}};
  slice.resized = ResizedSlice;
  slice.infer = InferSlice;
  slice.rule = SliceRule;
  slice.gradient = SliceGradient;
  slice.simplify = SimplifySlice;
  slice.flops = NoFlops;
  slice.picks = true;
  slice.reference = RunSlice;
  slice.cheap = true;
  slice.keeps_zero_padding = true;
  slice.precision = Precision::kFollow;
  registry.Add(std::move(slice));

  // Its value also fills the padding of other dims.
  OpDef pad;
  pad.name = "pad";
  pad.attrs = {{"low", AttrKind::kInts, true},
               {"high", AttrKind::kInts, true},
               {"value", AttrKind::kFloat, true}};
  pad.infer = InferPad;
  pad.rule = PadRule;
  pad.gradient = PadGradient;
  pad.flops = NoFlops;
  pad.reference = RunPad;
  pad.cheap = true;
  pad.precision = Precision::kFollow;
  registry.Add(std::move(pad));

  OpDef concat;
  concat.name = "concat";
  concat.max_operands = -1;
  concat.attrs = {{"axis", AttrKind::kInt, true}};
  concat.infer = InferConcat;
  concat.rule = ConcatRule;
  concat.gradient = ConcatGradient;
  concat.simplify = OnlyPiece;
  concat.flops = NoFlops;
  concat.reference = [](const KernelCall& call) {
    CopyPieces(call.out[0], call.in, AxisOf(*call.attrs, call.out[0].rank()), true);
  };
  concat.cheap = true;
  concat.keeps_zero_padding = true;
  concat.precision = Precision::kFollow;
  registry.Add(std::move(concat));

  OpDef split;
  split.name = "split";
  split.attrs = {{"axis", AttrKind::kInt, true}, {"sizes", AttrKind::kInts, true}};
  split.infer = InferSplit;
  split.rule = SplitRule;
  split.gradient = SplitGradient;
  split.simplify = OnlyPiece;
  split.flops = NoFlops;
  split.reference = [](const KernelCall& call) {
    CopyPieces(call.in[0], call.out, AxisOf(*call.attrs, call.in[0].rank()), false);
  };
  split.cheap = true;
  split.keeps_zero_padding = true;
  split.precision = Precision::kFollow;
  registry.Add(std::move(split));
}

}  // namespace shardc
