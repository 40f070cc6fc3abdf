// reduce_sum reduce_mean reduce_max reduce_min, sum_squares, cumsum.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/builder.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"
#include "ir/ops/reference_util.h"

namespace shardc {
namespace {

using reference::kIsFloat;
using reference::Wide;

[[noreturn]] void Overflow(std::string_view op) {
  throw Diagnostic("E1102", ExitCode::kBadModel, StrCat("op '", op, "'"),
                   "the sum of integers overflows");
}

template <typename T>
Wide<T> Sum(std::string_view op, Wide<T> a, Wide<T> b) {
  if constexpr (kIsFloat<T>) {
    return a + b;
  } else {
    int64_t y;
    if (__builtin_add_overflow(a, b, &y)) Overflow(op);
    return y;
  }
}

template <typename T>
void StoreSum(std::string_view op, const TensorView& out, int64_t i, Wide<T> value) {
  if constexpr (!kIsFloat<T>) {
    if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
      Overflow(op);
    }
  }
  reference::Store<T>(out, i, value);
}

int64_t OperandElements(const Op& op) { return op.in(0).num_elements(); }

std::vector<int> AxesOf(const Attributes& attrs, int rank) {
  std::vector<bool> mask = AxisMask(attrs.IntList("axes"), rank);
  std::vector<int> axes;
  for (int d = 0; d < rank; ++d) {
    if (mask[d]) axes.push_back(d);
  }
  return axes;
}

// Folds x over the axes with fn, starting at `start`; padding along the axes is left out. Calls
// store(offset in y, value).
template <typename T, typename Fn, typename StoreFn>
void Fold(const KernelCall& call, const std::vector<int>& axes, Wide<T> start, Fn fn,
          StoreFn store) {
  const TensorView &x = call.in[0], &y = call.out[0];
  std::vector<bool> reduced(x.rank());
  for (int a : axes) reduced[a] = true;
  Shape x_strides = DenseStrides(x.shape), kept, y_strides(x.rank(), 0);
  for (int d = 0; d < x.rank(); ++d) kept.push_back(reduced[d] ? 1 : x.shape[d]);
  SHARDC_CHECK(NumElements(kept) == y.num_elements());
  Shape dense = DenseStrides(kept);
  for (int d = 0; d < x.rank(); ++d) {
    if (!reduced[d]) y_strides[d] = dense[d];
  }
  std::vector<Wide<T>> totals(y.num_elements(), start);
  for (const reference::Box& box : reference::ValidBoxes(call, x, axes)) {
    reference::ForEach<2>(
        box.size, {x_strides, y_strides},
        [&](const auto& at) { totals[at[1]] = fn(totals[at[1]], reference::Load<T>(x, at[0])); },
        {reference::Offset(box.local, x_strides), reference::Offset(box.local, y_strides)});
  }
  for (size_t i = 0; i < totals.size(); ++i) store(static_cast<int64_t>(i), totals[i]);
}

template <typename T>
Wide<T> Lowest() {
  if constexpr (kIsFloat<T>) {
    return -std::numeric_limits<double>::infinity();
  } else {
    return std::numeric_limits<T>::min();
  }
}
template <typename T>
Wide<T> Highest() {
  if constexpr (kIsFloat<T>) {
    return std::numeric_limits<double>::infinity();
  } else {
    return std::numeric_limits<T>::max();
  }
}

// Whether a is the extreme of the two; NaN always is.
template <typename W>
bool Wins(W a, W b, bool max) {
  if constexpr (std::is_same_v<W, double>) {
    if (std::isnan(a)) return true;
  }
  return max ? a > b : a < b;
}

// Folds into the result, whose float type may be another than the operand's. Integers go to
// store(offset, value).
template <typename T, typename Fn, typename StoreFn>
void FoldIntoResult(const KernelCall& call, Wide<T> start, Fn fn, StoreFn store) {
  std::vector<double> floats;
  if constexpr (kIsFloat<T>) floats.resize(call.out[0].num_elements());
  Fold<T>(call, AxesOf(*call.attrs, call.in[0].rank()), start, fn, [&](int64_t i, Wide<T> v) {
    if constexpr (kIsFloat<T>) {
      floats[i] = v;
    } else {
      store(i, v);
    }
  });
  if constexpr (kIsFloat<T>) FromDoubles(floats, call.out[0]);
}

void RunSum(const KernelCall& call) {
  reference::DispatchNumeric(call.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    FoldIntoResult<T>(
        call, 0, [](Wide<T> a, Wide<T> b) { return Sum<T>("reduce_sum", a, b); },
        [&](int64_t i, Wide<T> v) { StoreSum<T>("reduce_sum", call.out[0], i, v); });
  });
}

// Divides by the global count, so that the means of the parts add up to the mean.
void RunMean(const KernelCall& call) {
  const TensorView& x = call.in[0];
  std::vector<int> axes = AxesOf(*call.attrs, x.rank());
  double count = 1;
  for (int a : axes) count *= static_cast<double>(call.GlobalDim(x, a));
  reference::DispatchFloat(x.dtype, [&](auto t) {
    using T = decltype(t);
    Fold<T>(
        call, axes, 0.0, [](double a, double b) { return a + b; },
        [&](int64_t i, double v) { reference::Store<T>(call.out[0], i, v / count); });
  });
}

template <bool kMax>
void RunExtreme(const KernelCall& call) {
  reference::DispatchNumeric(call.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    FoldIntoResult<T>(
        call, kMax ? Lowest<T>() : Highest<T>(),
        [](Wide<T> a, Wide<T> b) { return Wins(b, a, kMax) ? b : a; },
        [&](int64_t i, Wide<T> v) { reference::Store<T>(call.out[0], i, v); });
  });
}

void RunSumSquares(const KernelCall& call) {
  std::vector<int> axes;
  for (int d = 0; d < call.in[0].rank(); ++d) axes.push_back(d);
  reference::DispatchFloat(call.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    Fold<T>(
        call, axes, 0.0, [](double a, double b) { return a + b * b; },
        [&](int64_t i, double v) { reference::Store<T>(call.out[0], i, v); });
  });
}

Shape ReducedShape(const Shape& shape, const std::vector<int>& axes, bool keepdims) {
  Shape out;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    bool reduced = std::find(axes.begin(), axes.end(), d) != axes.end();
    if (!reduced) out.push_back(shape[d]);
    if (reduced && keepdims) out.push_back(1);
  }
  return out;
}

// The reduced dims have factors that only the operand has.
ShardingRule ReduceRule(const Op& op, FactorKind kind, ReduceKind reduce, bool linear,
                        bool placed = false) {
  ShardingRule rule;
  if (linear && IsFloat(op.out().dtype)) rule.linear = {{0}};
  std::vector<DimFactors> in = AddDims(rule, op.in(0).shape), out;
  std::vector<bool> reduced = AxisMask(op.attrs.IntList("axes"), op.in(0).rank());
  bool keepdims = op.attrs.Bool("keepdims");
  for (size_t d = 0; d < in.size(); ++d) {
    if (!reduced[d]) {
      out.push_back(in[d]);
      continue;
    }
    if (keepdims) out.emplace_back();
    for (int f : in[d].factors) {
      rule.factors[f].kind = kind;
      rule.factors[f].reduce = reduce;
      rule.factors[f].placed = placed;
    }
  }
  rule.operands = {std::move(in)};
  rule.results = {std::move(out)};
  return rule;
}

// A value of the result's shape as [.., 1, ..] that broadcasts against x.
Value* KeepDims(const GradientArgs& args, Value* v) {
  const Shape& x = args.op.in(0).shape;
  std::vector<int> axes = AxesOf(args.op.attrs, static_cast<int>(x.size()));
  return args.builder.Reshape(v, ReducedShape(x, axes, true));
}

std::vector<Value*> SumGradient(const GradientArgs& args) {
  Value* dy = args.builder.Cast(args.result_grads[0], args.op.in(0).dtype);
  return {args.builder.BroadcastTo(KeepDims(args, dy), args.op.in(0).shape)};
}

std::vector<Value*> MeanGradient(const GradientArgs& args) {
  Value* dy = args.result_grads[0];
  Builder& b = args.builder;
  const TensorType& x = args.op.in(0);
  double count = 1;
  for (int a : AxesOf(args.op.attrs, x.rank())) count *= static_cast<double>(x.shape[a]);
  if (count == 0) return {b.BroadcastTo(b.Scalar(x.dtype, 0), x.shape)};
  return {b.BroadcastTo(b.Mul(KeepDims(args, dy), b.Scalar(x.dtype, 1 / count)), x.shape)};
}

// The elements equal to the extreme share the gradient evenly.
std::vector<Value*> ExtremeGradient(const GradientArgs& args) {
  Value* dy = args.result_grads[0];
  Builder& b = args.builder;
  Value* x = args.op.operands[0];
  Value* equal = b.Make("equal", {x, KeepDims(args, args.op.result())});
  Value* mask = b.Cast(equal, x->type.dtype);
  Value* count = b.ReduceSum(mask, args.op.attrs.IntList("axes"), true);
  return {b.Mul(mask, b.Div(KeepDims(args, dy), count))};
}

OpDef ReduceDef(std::string_view name) {
  OpDef def;
  def.name = name;
  def.attrs = {{"axes", AttrKind::kInts, true}, {"keepdims", AttrKind::kBool}};
  def.infer = [name](const InferArgs& args) {
    if (name == "reduce_mean" || args.attrs.Has("out")) RequireFloat(name, args[0]);
    RequireNumeric(name, args[0]);
    auto axes = NormalizeAxes(name, args.attrs.IntList("axes"), args[0].rank());
    return std::vector<TensorType>{
        TensorType(OutType(name, args.attrs, args[0].dtype),
                   ReducedShape(args[0].shape, axes, args.attrs.Bool("keepdims")))};
  };
  def.flops = OperandElements;
  def.ignores_padding = true;
  return def;
}

void AddSumSquares(OpRegistry& registry) {
  OpDef def;
  def.name = "sum_squares";
  def.infer = [](const InferArgs& args) {
    RequireFloat("sum_squares", args[0]);
    return std::vector<TensorType>{TensorType(args[0].dtype, {})};
  };
  def.rule = [](const Op& op) {
    ShardingRule rule;
    rule.operands = {AddDims(rule, op.in(0).shape)};
    rule.results = {{}};
    return rule;
  };
  def.gradient = [](const GradientArgs& args) {
    Value* dy = args.result_grads[0];
    Builder& b = args.builder;
    Value* twice = b.Mul(dy, b.Scalar(dy->type.dtype, 2));
    return std::vector<Value*>{b.Mul(args.op.operands[0], twice)};
  };
  def.flops = [](const Op& op) { return 2 * OperandElements(op); };
  def.cpu_halves = CpuHalves::kWidened;
  def.reference = RunSumSquares;
  def.keeps_zero_padding = true;
  def.ignores_padding = true;
  registry.Add(std::move(def));
}

void RunCumsum(const KernelCall& call) {
  const TensorView &x = call.in[0], &y = call.out[0];
  const int axis = AxisOf(*call.attrs, x.rank());
  const bool exclusive = call.attrs->Bool("exclusive"), reverse = call.attrs->Bool("reverse");
  const int64_t n = x.shape[axis], stride = DenseStrides(x.shape)[axis];
  Shape lines = x.shape;
  lines[axis] = 1;
  std::vector<int> others;  // padding holds anything: integers would overflow on it
  for (int d = 0; d < x.rank(); ++d) {
    if (d != axis) others.push_back(d);
  }
  TensorView first = x;
  if (n == 0) return;
  reference::DispatchNumeric(x.dtype, [&](auto t) {
    using T = decltype(t);
    std::vector<T> result(x.num_elements(), T());
    for (reference::Box& box : reference::ValidBoxes(call, first, others)) {
      box.size[axis] = 1;
      Shape strides = DenseStrides(x.shape);
      reference::ForEach<1>(box.size, {strides},
                            [&](const auto& at) {
                              Wide<T> total = 0;
                              for (int64_t i = 0; i < n; ++i) {
                                int64_t p = at[0] + (reverse ? n - 1 - i : i) * stride;
                                Wide<T> next = Sum<T>("cumsum", total, reference::Load<T>(x, p));
                                if constexpr (!kIsFloat<T>) {
                                  if (next != static_cast<T>(next)) Overflow("cumsum");
                                }
                                result[p] = static_cast<T>(exclusive ? total : next);
                                total = next;
                              }
                            },
                            {reference::Offset(box.local, strides)});
    }
    std::copy(result.begin(), result.end(), y.as<T>());
  });
}

void AddCumsum(OpRegistry& registry) {
  OpDef def;
  def.name = "cumsum";
  def.attrs = {
      {"axis", AttrKind::kInt, true}, {"exclusive", AttrKind::kBool}, {"reverse", AttrKind::kBool}};
  def.infer = [](const InferArgs& args) {
    RequireNumeric("cumsum", args[0]);
    NormalizeAxis("cumsum", args.attrs.Int("axis"), args[0].rank());
    return std::vector<TensorType>{TensorType(args[0].dtype, args[0].shape)};
  };
  def.rule = [](const Op& op) {
    bool linear = IsFloat(op.out().dtype);
    ShardingRule rule = linear ? ElementwiseRule(op, {{0}}) : ElementwiseRule(op);
    rule.factors[AxisOf(op.attrs, op.out().rank())].kind = FactorKind::kReplicated;
    return rule;
  };
  def.gradient = [](const GradientArgs& args) {
    Value* dy = args.result_grads[0];
    Attributes attrs = args.op.attrs;
    attrs.Set("reverse", !attrs.Bool("reverse"));
    return std::vector<Value*>{args.builder.Make("cumsum", {dy}, std::move(attrs))};
  };
  def.reference = RunCumsum;
  def.keeps_zero_padding = true;
  registry.Add(std::move(def));
}

}  // namespace

void RegisterReduceOps(OpRegistry& registry) {
  OpDef sum = ReduceDef("reduce_sum");
  sum.rule = [](const Op& op) {
    return ReduceRule(op, FactorKind::kPlain, ReduceKind::kSum, true);
  };
  sum.gradient = SumGradient;
  sum.reference = RunSum;
  sum.keeps_zero_padding = true;
  sum.attrs.push_back({"out", AttrKind::kString});
  sum.precision = Precision::kWiden;
  sum.typed_result = 0;
  sum.cpu_halves = CpuHalves::kBf16;
  registry.Add(std::move(sum));

  OpDef mean = ReduceDef("reduce_mean");
  // Divides by the size of the whole.
  mean.rule = [](const Op& op) {
    return ReduceRule(op, FactorKind::kPlain, ReduceKind::kSum, true, true);
  };
  mean.gradient = MeanGradient;
  mean.expand = [](Builder& b, const Op& op) {
    double count = 1;
    for (int a : AxesOf(op.attrs, op.in(0).rank())) {
      count *= static_cast<double>(op.in(0).shape[a]);
    }
    Value* sum = b.ReduceSum(op.operands[0], op.attrs.IntList("axes"), op.attrs.Bool("keepdims"));
    return std::vector<Value*>{b.Mul(sum, b.Scalar(op.out().dtype, 1 / count))};
  };
  mean.cpu_halves = CpuHalves::kWidened;
  mean.reference = RunMean;
  mean.keeps_zero_padding = true;
  registry.Add(std::move(mean));

  // Where a rank's part is empty the result is -inf, also in padding of other dims.
  OpDef max = ReduceDef("reduce_max");
  max.rule = [](const Op& op) {
    return ReduceRule(op, FactorKind::kPlain, ReduceKind::kMax, false);
  };
  max.gradient = ExtremeGradient;
  max.attrs.push_back({"out", AttrKind::kString});
  max.typed_result = 0;
  max.narrow_operands = {0};
  max.cpu_halves = CpuHalves::kBf16Result;
  max.reference = RunExtreme<true>;
  registry.Add(std::move(max));

  // There is no partial minimum.
  OpDef min = ReduceDef("reduce_min");
  min.rule = [](const Op& op) {
    return ReduceRule(op, FactorKind::kReplicated, ReduceKind::kSum, false);
  };
  min.gradient = ExtremeGradient;
  min.reference = RunExtreme<false>;
  registry.Add(std::move(min));

  AddSumSquares(registry);
  AddCumsum(registry);
}

}  // namespace shardc
