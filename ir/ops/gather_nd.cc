// gather_nd, gather_nd_grad: ONNX GatherND, and what it does to gradients: a scatter that adds up.
#include "ir/ops/gather_nd.h"

#include <algorithm>
#include <cstring>

#include "ir/builder.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"
#include "ir/ops/reference_util.h"
#include "ir/place_in_whole.h"

namespace shardc {
namespace {

using reference::Box;

// x[B..., d0.., dk-1, t...], indices[B..., m..., k] <-> y[B..., m..., t...].
struct Dims {
  int batch, k;
  Dims(const Attributes& attrs, const Shape& indices)
      : batch(static_cast<int>(attrs.Int("batch_dims", 0))), k(static_cast<int>(indices.back())) {}
};

std::vector<TensorType> Infer(const InferArgs& args) {
  RequireInteger("gather_nd", args[1], "the index operand");
  CheckOrigin("gather_nd", args.attrs, args[1], "indices");
  const Shape &x = args[0].shape, &indices = args[1].shape;
  int64_t batch = args.attrs.Int("batch_dims", 0);
  int64_t least = std::min<int64_t>(args[0].rank(), args[1].rank());
  if (args[1].rank() < 1 || batch < 0 || batch >= std::max<int64_t>(least, 1)) {
    InferError("gather_nd", StrCat("batch_dims ", batch, " does not fit operands of rank ",
                                   args[0].rank(), " and ", args[1].rank()));
  }
  int64_t k = indices.back();
  if (k < 1 || batch + k > args[0].rank() ||
      !std::equal(x.begin(), x.begin() + batch, indices.begin())) {
    InferError("gather_nd", StrCat("indices of shape ", ShapeToString(indices),
                                   " do not fit an operand of shape ", ShapeToString(x), " with ",
                                   batch, " batch dims"));
  }
  Shape shape(indices.begin(), indices.end() - 1);
  shape.insert(shape.end(), x.begin() + batch + k, x.end());
  return {TensorType(args[0].dtype, std::move(shape))};
}

std::vector<TensorType> InferGrad(const InferArgs& args) {
  constexpr std::string_view op = "gather_nd_grad";
  RequireFloat(op, args[0], "dy");
  RequireInteger(op, args[1], "the index operand");
  CheckOrigin(op, args.attrs, args[1], "indices");
  const Shape &dy = args[0].shape, &indices = args[1].shape;
  const Ints& sizes = args.attrs.IntList("sizes");
  int64_t batch = args.attrs.Int("batch_dims", 0), tuple_dims = args[1].rank() - 1;
  bool fits = args[1].rank() >= 1 && batch >= 0 && batch <= tuple_dims &&
              args[0].rank() >= tuple_dims && !sizes.empty() &&
              indices.back() == static_cast<int64_t>(sizes.size()) &&
              std::equal(indices.begin(), indices.end() - 1, dy.begin());
  if (!fits) {
    InferError(op, StrCat("dy of shape ", ShapeToString(dy), " and indices of shape ",
                          ShapeToString(indices), " do not fit ", sizes.size(),
                          " indexed dims behind ", batch, " batch dims"));
  }
  Shape shape(dy.begin(), dy.begin() + batch);
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  shape.insert(shape.end(), dy.begin() + tuple_dims, dy.end());
  return {TensorType(args[0].dtype, std::move(shape))};
}

struct Factors {
  std::vector<DimFactors> x, indices, y;
};

// The rule of both directions.
Factors AddFactors(ShardingRule& rule, const Shape& x_shape, const Op& op) {
  const Shape& shape = op.in(1).shape;
  Dims g(op.attrs, shape);
  Factors f;
  f.x = AddDims(rule, x_shape);
  f.indices.assign(f.x.begin(), f.x.begin() + g.batch);
  for (DimFactors& d : AddDims(rule, {shape.begin() + g.batch, shape.end()})) {
    f.indices.push_back(std::move(d));
  }
  auto replicate = [&](const DimFactors& d) {
    for (int id : d.factors) rule.factors[id].kind = FactorKind::kReplicated;
  };
  for (int d = g.batch; d < g.batch + g.k; ++d) replicate(f.x[d]);
  replicate(f.indices.back());
  f.y.assign(f.indices.begin(), f.indices.end() - 1);
  f.y.insert(f.y.end(), f.x.begin() + g.batch + g.k, f.x.end());
  return f;
}

ShardingRule Rule(const Op& op) {
  ShardingRule rule;
  Factors f = AddFactors(rule, op.in(0).shape, op);
  rule.operands = {std::move(f.x), std::move(f.indices)};
  rule.results = {std::move(f.y)};
  if (IsFloat(op.out().dtype)) rule.linear = {{0}};
  return rule;
}

// Every rank adds what its own indices picked: cut tuples leave the sum partial.
ShardingRule GradRule(const Op& op) {
  ShardingRule rule;
  Factors f = AddFactors(rule, op.out().shape, op);
  // Messages name the place of an index, and what is summed does not tell it.
  const int batch = Dims(op.attrs, op.in(1).shape).batch;
  for (int d = batch; d < op.in(1).rank(); ++d) {
    for (int id : f.indices[d].factors) rule.factors[id].placed = true;
  }
  rule.operands = {std::move(f.y), std::move(f.indices)};
  rule.results = {std::move(f.x)};
  rule.linear = {{0}};
  return rule;
}

// Calls fn(tuple, offset) for each valid tuple of indices: its place in the view, and where in x
// (a view of shape `x`) the block lies that it picks.
template <typename Fn>
void ForEachTuple(const KernelCall& call, std::string_view op, const Shape& x, Fn fn) {
  const TensorView& indices = call.in[1];
  Dims g(*call.attrs, indices.shape);
  Shape x_strides = DenseStrides(x), i_strides = DenseStrides(indices.shape);
  const int tuple_dims = indices.rank() - 1;
  for (const Box& box : reference::ValidBoxes(call, indices)) {
    Shape size(box.size.begin(), box.size.end() - 1), local = box.local;
    local.back() = 0;
    Shape strides(i_strides.begin(), i_strides.end() - 1);
    Shape batch_strides(tuple_dims, 0);
    int64_t batch_base = 0;
    for (int d = 0; d < g.batch; ++d) {
      batch_strides[d] = x_strides[d];
      batch_base += box.local[d] * x_strides[d];
    }
    reference::ForEach<2>(
        size, {strides, batch_strides},
        [&](const auto& at) {
          int64_t from = at[1];
          for (int j = 0; j < g.k; ++j) {
            int64_t n = x[g.batch + j], v = reference::ReadInt(indices, at[0] + j);
            if (v < -n || v >= n) {
              throw reference::OutOfRange(op, "indices", PlaceInWhole(call, indices, at[0] + j), v,
                                          -n, n);
            }
            from += (v < 0 ? v + n : v) * x_strides[g.batch + j];
          }
          fn(at[0] / g.k, from);
        },
        {reference::Offset(local, i_strides), batch_base});
  }
}

// Elements that one tuple picks.
int64_t BlockSize(const KernelCall& call, const Shape& x) {
  Dims g(*call.attrs, call.in[1].shape);
  return NumElements({x.begin() + g.batch + g.k, x.end()});
}

void Reference(const KernelCall& call) {
  const TensorView &x = call.in[0], &y = call.out[0];
  const int64_t bytes = DTypeSize(x.dtype), block = BlockSize(call, x.shape) * bytes;
  reference::ZeroFill(y);
  ForEachTuple(call, "gather_nd", x.shape, [&](int64_t tuple, int64_t from) {
    std::memcpy(y.data + tuple * block, x.data + from * bytes, static_cast<size_t>(block));
  });
}

void ReferenceGrad(const KernelCall& call) {
  const TensorView &dy = call.in[0], &dx = call.out[0];
  const int64_t block = BlockSize(call, dx.shape);
  const std::vector<double> added = ToDoubles(dy);
  std::vector<double> totals(dx.num_elements());
  ForEachTuple(call, "gather_nd_grad", dx.shape, [&](int64_t tuple, int64_t to) {
    for (int64_t i = 0; i < block; ++i) totals[to + i] += added[tuple * block + i];
  });
  FromDoubles(totals, dx);
}

std::vector<Value*> Gradient(const GradientArgs& args) {
  const Op& op = args.op;
  Dims g(op.attrs, op.in(1).shape);
  const Shape& x = op.in(0).shape;
  Ints sizes(x.begin() + g.batch, x.begin() + g.batch + g.k);
  Attributes attrs =
      WithOriginOf(op, {{"batch_dims", int64_t{g.batch}}, {"sizes", std::move(sizes)}});
  Value* dy = args.result_grads[0];
  return {args.builder.Make("gather_nd_grad", {dy, op.operands[1]}, std::move(attrs)), nullptr};
}

std::vector<Value*> ScatterGradient(const GradientArgs& args) {
  Attributes attrs = WithOriginOf(args.op, {{"batch_dims", args.op.attrs.Int("batch_dims", 0)}});
  Value* dy = args.result_grads[0];
  return {args.builder.Make("gather_nd", {dy, args.op.operands[1]}, std::move(attrs)), nullptr};
}

}  // namespace

void AddGatherNd(OpRegistry& registry) {
  OpDef def;
  def.name = "gather_nd";
  def.min_operands = def.max_operands = 2;
  def.attrs = {{"batch_dims", AttrKind::kInt}, {"origin", AttrKind::kInts}};
  def.resized = [](const Op& op, std::span<const TensorType>, const Shape& origin) {
    Shape tuples(origin.begin(), origin.begin() + op.in(1).rank() - 1);
    tuples.push_back(0);
    return WithOriginMoved(op.attrs, tuples);
  };
  def.infer = Infer;
  def.rule = Rule;
  def.gradient = Gradient;
  def.flops = NoFlops;
  def.picks = true;
  def.cheap = true;
  def.reference = Reference;
  def.ignores_padding = true;
  def.precision = Precision::kFollow;
  registry.Add(std::move(def));

  OpDef grad;
  grad.name = "gather_nd_grad";
  grad.min_operands = grad.max_operands = 2;
  grad.attrs = {{"batch_dims", AttrKind::kInt},
                {"sizes", AttrKind::kInts, true},
                {"origin", AttrKind::kInts}};
  grad.resized = [](const Op& op, std::span<const TensorType>, const Shape& origin) {
    Shape tuples(origin.begin(), origin.begin() + Dims(op.attrs, op.in(1).shape).batch);
    tuples.resize(op.in(1).shape.size(), 0);
    return WithOriginMoved(op.attrs, tuples);
  };
  grad.infer = InferGrad;
  grad.rule = GradRule;
  // A scatter of a model's own is this op, and what it adds up is gathered back.
  grad.gradient = ScatterGradient;
  grad.flops = [](const Op& op) { return op.in(0).num_elements(); };
  grad.reference = ReferenceGrad;
  grad.cpu_halves = CpuHalves::kWidened;
  grad.ignores_padding = true;
  registry.Add(std::move(grad));
}

}  // namespace shardc
