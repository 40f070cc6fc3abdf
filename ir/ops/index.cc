// embedding, embedding_grad, gather, gather_grad.
#include <algorithm>
#include <cstring>

#include "ir/builder.h"
#include "ir/ops/gather_nd.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"
#include "ir/ops/reference_util.h"
#include "ir/ops/top_k.h"

namespace shardc {
namespace {

using reference::Box;

// Where each global index of a dim lies in the view, or -1.
std::vector<int64_t> LocalPositions(const KernelCall& call, const TensorView& view, int dim) {
  std::vector<int64_t> at(call.GlobalDim(view, dim), -1);
  for (const Run& run : call.Runs(view, dim)) {
    for (int64_t i = 0; i < run.size; ++i) at[run.global + i] = run.local + i;
  }
  return at;
}

// Calls fn(offset in the view, value) for each valid element of an index tensor, checked against
// [low, high).
template <typename Fn>
void ForEachIndex(const KernelCall& call, const TensorView& indices, std::string_view op,
                  std::string_view operand, int64_t low, int64_t high, Fn fn) {
  reference::CheckRange(call, indices, op, operand, low, high);
  reference::ForEachValid(call, indices,
                          [&](int64_t at) { fn(at, reference::ReadInt(indices, at)); });
}

// A gather or its gradient as [outer, n, inner] and [outer, indices, inner].
struct Blocks {
  int64_t outer, n, inner;
  Blocks(const Shape& shape, int axis)
      : outer(NumElements({shape.begin(), shape.begin() + axis})),
        n(shape[axis]),
        inner(NumElements({shape.begin() + axis + 1, shape.end()})) {}
};

// y[o, i, :] = x[o, indices[i], :]; 0 where the row is another rank's and in padding of the
// indices.
void Lookup(const KernelCall& call, std::string_view op, std::string_view operand, int axis,
            bool negative) {
  const TensorView &x = call.in[0], &indices = call.in[1], &y = call.out[0];
  Blocks b(x.shape, axis);
  const int64_t size = call.GlobalDim(x, axis), count = indices.num_elements();
  const int64_t bytes = b.inner * DTypeSize(x.dtype);
  std::vector<int64_t> local = LocalPositions(call, x, axis);
  reference::ZeroFill(y);
  ForEachIndex(call, indices, op, operand, negative ? -size : 0, size, [&](int64_t i, int64_t v) {
    int64_t row = local[v < 0 ? v + size : v];
    if (row < 0) return;
    for (int64_t o = 0; o < b.outer; ++o) {
      std::memcpy(y.data + (o * count + i) * bytes, x.data + (o * b.n + row) * bytes,
                  static_cast<size_t>(bytes));
    }
  });
}

// dx[o, indices[i], :] += dy[o, i, :] for the rows that this rank has; to zero, or to operand 2.
void ScatterAdd(const KernelCall& call, std::string_view op, std::string_view operand, int axis,
                bool negative) {
  const TensorView &dy = call.in[0], &indices = call.in[1], &dx = call.out[0];
  Blocks b(dx.shape, axis);
  const int64_t size = call.GlobalDim(dx, axis), count = indices.num_elements();
  std::vector<int64_t> local = LocalPositions(call, dx, axis);
  const std::vector<double> added = ToDoubles(dy);
  std::vector<double> totals(dx.num_elements());
  if (call.in.size() > 2) totals = ToDoubles(call.in[2]);
  ForEachIndex(call, indices, op, operand, negative ? -size : 0, size, [&](int64_t i, int64_t v) {
    int64_t row = local[v < 0 ? v + size : v];
    if (row < 0) return;
    for (int64_t o = 0; o < b.outer; ++o) {
      const double* from = added.data() + (o * count + i) * b.inner;
      double* to = totals.data() + (o * b.n + row) * b.inner;
      for (int64_t k = 0; k < b.inner; ++k) to[k] += from[k];
    }
  });
  FromDoubles(totals, dx);
}

// x's shape with the indexed dim replaced by the indices' dims.
Shape Replace(const Shape& x, int axis, const Shape& indices) {
  Shape out(x.begin(), x.begin() + axis);
  out.insert(out.end(), indices.begin(), indices.end());
  out.insert(out.end(), x.begin() + axis + 1, x.end());
  return out;
}

// The rule of both directions: `x` has the indexed dim with a factor of the given kind, `y` the
// indices' dims in its place.
struct LookupFactors {
  std::vector<DimFactors> x, indices, y;
};
LookupFactors MapLookup(ShardingRule& rule, const Shape& x, const Shape& indices, int axis,
                        FactorKind kind) {
  LookupFactors f;
  f.x = AddDims(rule, x);
  f.indices = AddDims(rule, indices);
  for (int id : f.x[axis].factors) {
    rule.factors[id].kind = kind;
    rule.factors[id].placed = true;
  }
  f.y.assign(f.x.begin(), f.x.begin() + axis);
  f.y.insert(f.y.end(), f.indices.begin(), f.indices.end());
  f.y.insert(f.y.end(), f.x.begin() + axis + 1, f.x.end());
  return f;
}

ShardingRule LookupRule(const Op& op, int axis, FactorKind kind) {
  ShardingRule rule;
  LookupFactors f = MapLookup(rule, op.in(0).shape, op.in(1).shape, axis, kind);
  rule.operands = {std::move(f.x), std::move(f.indices)};
  rule.results = {std::move(f.y)};
  if (IsFloat(op.out().dtype)) rule.linear = {{0}};
  return rule;
}

ShardingRule ScatterRule(const Op& op, int axis, FactorKind kind) {
  ShardingRule rule;
  LookupFactors f = MapLookup(rule, op.out().shape, op.in(1).shape, axis, kind);
  rule.linear = {{0}};
  // Messages name the place of an index, and what is summed does not tell it.
  for (const DimFactors& dim : f.indices) {
    for (int id : dim.factors) rule.factors[id].placed = true;
  }
  if (op.operands.size() > 2) {
    // A sum over some of the indices would have to be complete before it is added.
    for (const DimFactors& dim : f.indices) {
      for (int id : dim.factors) rule.factors[id].kind = FactorKind::kReplicated;
    }
    rule.linear = {{0, 2}};
    rule.operands = {std::move(f.y), std::move(f.indices), f.x};
  } else {
    rule.operands = {std::move(f.y), std::move(f.indices)};
  }
  rule.results = {std::move(f.x)};
  return rule;
}

// Of a lookup in a part of the indices. A gradient takes its origin with it.
Attributes ResizedLookup(const Op& op, const Shape& origin, int axis) {
  const auto from = origin.begin() + axis;
  return WithOriginMoved(op.attrs, Shape(from, from + op.in(1).rank()));
}

// The row that a lookup does not train, as PyTorch's padding_idx; without it all are trained.
constexpr std::string_view kPadding = "padding_idx";

void CheckPaddingIdx(std::string_view op, const InferArgs& args, int axis) {
  if (!args.attrs.Has(kPadding)) return;
  const int64_t size = args[0].shape[axis], row = args.attrs.Int(kPadding);
  if (row < 0 || row >= size) {
    InferError(op, StrCat("padding_idx ", row, " is no position of a dim of size ", size));
  }
}

// dy of a lookup along the axis, with zeros for the row that it does not train.
Value* WithoutPaddingRow(const GradientArgs& args, int axis) {
  Value *dy = args.result_grads[0], *indices = args.op.operands[1];
  const int64_t row = args.op.attrs.Int(kPadding, -1);
  if (row < 0) return dy;
  Builder& b = args.builder;
  Shape along(dy->type.rank(), 1);
  std::ranges::copy(indices->type.shape, along.begin() + axis);
  const DType type = indices->type.dtype;
  auto is = [&](int64_t index) {
    return b.Make("equal", {indices, b.Scalar(type, static_cast<double>(index))});
  };
  Value* padding = is(row);
  // Of an embedding no index counts from the end.
  if (args.op.name() == "gather") {
    padding = b.Make("or", {padding, is(row - args.op.in(0).shape[axis])});
  }
  return b.Make("where", {b.Reshape(padding, along), b.Scalar(dy->type.dtype, 0), dy});
}

// The result type of a scatter: dy with the indices' dims from `axis` on replaced by `size`.
std::vector<TensorType> InferScatter(std::string_view op, const InferArgs& args, int64_t axis,
                                     int64_t size) {
  RequireFloat(op, args[0], "dy");
  RequireInteger(op, args[1], "the index operand");
  const Shape &dy = args[0].shape, &indices = args[1].shape;
  int rank = args[0].rank() - args[1].rank() + 1;
  int at = rank > 0 ? NormalizeAxis(op, axis, rank) : 0;
  if (rank <= 0 || !std::equal(indices.begin(), indices.end(), dy.begin() + at)) {
    InferError(op, StrCat("dy of shape ", ShapeToString(dy), " does not hold the index dims ",
                          ShapeToString(indices), " at axis ", axis));
  }
  Shape shape(dy.begin(), dy.begin() + at);
  shape.push_back(size);
  shape.insert(shape.end(), dy.begin() + at + args[1].rank(), dy.end());
  return {TensorType(args[0].dtype, std::move(shape))};
}

// With the rows of the table cut each rank looks up its own; the sum is the lookup.
void AddEmbedding(OpRegistry& registry) {
  OpDef def;
  def.name = "embedding";
  def.min_operands = def.max_operands = 2;
  def.attrs = {{kPadding, AttrKind::kInt}, {"origin", AttrKind::kInts}};
  def.resized = [](const Op& op, std::span<const TensorType>, const Shape& origin) {
    return ResizedLookup(op, origin, 0);
  };
  def.infer = [](const InferArgs& args) {
    RequireFloat("embedding", args[0], "the table");
    RequireInteger("embedding", args[1], "the ids");
    CheckOrigin("embedding", args.attrs, args[1], "ids");
    if (args[0].rank() < 1) InferError("embedding", "the table has no dims");
    CheckPaddingIdx("embedding", args, 0);
    Shape shape = Replace(args[0].shape, 0, args[1].shape);
    return std::vector<TensorType>{TensorType(args[0].dtype, std::move(shape))};
  };
  def.index_limit = [](int operand, const InferArgs& args) {
    return operand == 1 ? args[0].shape[0] : 0;
  };
  def.rule = [](const Op& op) { return LookupRule(op, 0, FactorKind::kPlain); };
  def.gradient = [](const GradientArgs& args) {
    Value* dy = WithoutPaddingRow(args, 0);
    Attributes attrs = WithOriginOf(args.op, {{"rows", args.op.in(0).shape[0]}});
    return std::vector<Value*>{
        args.builder.Make("embedding_grad", {dy, args.op.operands[1]}, std::move(attrs)), nullptr};
  };
  def.flops = NoFlops;
  def.picks = true;
  def.cpu_halves = CpuHalves::kWidened;
  def.cheap = true;
  def.reference = [](const KernelCall& call) { Lookup(call, "embedding", "ids", 0, false); };
  def.ignores_padding = true;
  registry.Add(std::move(def));

  OpDef grad;
  grad.name = "embedding_grad";
  grad.min_operands = 2;
  grad.max_operands = 3;
  grad.adds_to = 2;
  grad.cpu_halves = CpuHalves::kWidened;
  grad.in_place = [](int operand, int) { return operand == 2; };
  grad.attrs = {{"rows", AttrKind::kInt, true}, {"origin", AttrKind::kInts}};
  grad.infer = [](const InferArgs& args) {
    CheckOrigin("embedding_grad", args.attrs, args[1], "ids");
    auto types = InferScatter("embedding_grad", args, 0, args.attrs.Int("rows"));
    if (args.size() > 2) {
      RequireTensor("embedding_grad", args[2], types[0].dtype, types[0].shape,
                    "what the sum is added to");
    }
    return types;
  };
  grad.rule = [](const Op& op) { return ScatterRule(op, 0, FactorKind::kPlain); };
  grad.no_gradient = kSecondDerivative;
  grad.flops = [](const Op& op) { return op.in(0).num_elements(); };
  grad.reference = [](const KernelCall& call) {
    ScatterAdd(call, "embedding_grad", "ids", 0, false);
  };
  grad.ignores_padding = true;
  registry.Add(std::move(grad));
}

void AddGather(OpRegistry& registry) {
  OpDef def;
  def.name = "gather";
  def.min_operands = def.max_operands = 2;
  def.attrs = {
      {"axis", AttrKind::kInt, true}, {kPadding, AttrKind::kInt}, {"origin", AttrKind::kInts}};
  def.resized = [](const Op& op, std::span<const TensorType>, const Shape& origin) {
    return ResizedLookup(op, origin, AxisOf(op.attrs, op.in(0).rank()));
  };
  def.infer = [](const InferArgs& args) {
    RequireInteger("gather", args[1], "the index operand");
    CheckOrigin("gather", args.attrs, args[1], "indices");
    int axis = NormalizeAxis("gather", args.attrs.Int("axis"), args[0].rank());
    CheckPaddingIdx("gather", args, axis);
    Shape shape = Replace(args[0].shape, axis, args[1].shape);
    return std::vector<TensorType>{TensorType(args[0].dtype, std::move(shape))};
  };
  def.index_limit = [](int operand, const InferArgs& args) {
    return operand == 1 ? args[0].shape[AxisOf(args.attrs, args[0].rank())] : 0;
  };
  def.rule = [](const Op& op) {
    return LookupRule(op, AxisOf(op.attrs, op.in(0).rank()), FactorKind::kReplicated);
  };
  def.gradient = [](const GradientArgs& args) {
    int axis = AxisOf(args.op.attrs, args.op.in(0).rank());
    Value* dy = WithoutPaddingRow(args, axis);
    Attributes attrs =
        WithOriginOf(args.op, {{"axis", int64_t{axis}}, {"size", args.op.in(0).shape[axis]}});
    return std::vector<Value*>{
        args.builder.Make("gather_grad", {dy, args.op.operands[1]}, std::move(attrs)), nullptr};
  };
  def.flops = NoFlops;
  def.picks = true;
  def.cheap = true;
  def.reference = [](const KernelCall& call) {
    Lookup(call, "gather", "indices", AxisOf(*call.attrs, call.in[0].rank()), true);
  };
  def.ignores_padding = true;
  def.precision = Precision::kFollow;
  registry.Add(std::move(def));

  OpDef grad;
  grad.name = "gather_grad";
  grad.min_operands = grad.max_operands = 2;
  grad.attrs = {
      {"axis", AttrKind::kInt, true}, {"size", AttrKind::kInt, true}, {"origin", AttrKind::kInts}};
  grad.infer = [](const InferArgs& args) {
    CheckOrigin("gather_grad", args.attrs, args[1], "indices");
    return InferScatter("gather_grad", args, args.attrs.Int("axis"), args.attrs.Int("size"));
  };
  grad.rule = [](const Op& op) {
    return ScatterRule(op, AxisOf(op.attrs, op.out().rank()), FactorKind::kReplicated);
  };
  grad.no_gradient = kSecondDerivative;
  grad.flops = [](const Op& op) { return op.in(0).num_elements(); };
  grad.reference = [](const KernelCall& call) {
    ScatterAdd(call, "gather_grad", "indices", AxisOf(*call.attrs, call.out[0].rank()), true);
  };
  grad.ignores_padding = true;
  registry.Add(std::move(grad));
}

}  // namespace

void RegisterIndexOps(OpRegistry& registry) {
  AddEmbedding(registry);
  AddGather(registry);
  AddGatherNd(registry);
  AddTopK(registry);
}

}  // namespace shardc
