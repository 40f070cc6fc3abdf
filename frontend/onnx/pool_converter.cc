// Pools: along one dim after the other, since a maximum or a sum over a window is one of those over
// its lines. BatchNormalization, which vision models have between them.
#include <algorithm>
#include <limits>
#include <utility>

#include "frontend/onnx/windows.h"
#include "ir/contains.h"

namespace shardc::onnx_import {
namespace {

constexpr int64_t kMaxSlices = 256;
constexpr int64_t kMostCompared = 8;  // of longer windows side by side the largest is looked up

const Shape& ImageOf(NodeContext& c) {
  const TensorType& x = c.input(0)->type;
  if (x.rank() < 3 || !IsFloat(x.dtype)) {
    c.Fail("E1303", StrCat(c.op_type(), " needs floats with a batch, channels and spatial dims"));
  }
  return x.shape;
}

// Of equals the first, to which alone PyTorch gives the gradient; NaN is larger than all others.
Value* Larger(NodeContext& c, Value* first, Value* next) {
  Value* takes = c.Make("or", {c.Make("greater", {next, first}), c.Make("is_nan", {next})});
  return c.Make("where", {takes, next, first});
}
Value* Largest(NodeContext& c, Value* x, int axis) {
  Value* where = c.Make("top_k", {x}, {{"axis", int64_t{axis}}, {"k", int64_t{1}}});
  const Positions at = PositionsAlong(c, x->type.shape, where, axis);
  return c.Make("gather_nd", {x, at.tuples}, {{"batch_dims", int64_t{at.batch_dims}}});
}

// The windows of dim d of x, which is padded, as one element each.
Value* PoolDim(NodeContext& c, Value* x, const Window& w, size_t d, bool max) {
  const int axis = static_cast<int>(d) + 2;
  const int64_t k = w.kernel[d], n = w.out[d], step = w.dilation[d];
  auto reduced = [&](Value* v, int of) {
    return max ? Largest(c, v, of) : Reduce(c, "reduce_sum", v, {of}, true);
  };
  const bool whole = !max || k > kMostCompared;
  if (whole && n == 1) return reduced(c.Slice(x, axis, 0, w.Span(d), step), axis);
  if (whole && w.stride[d] == k && step == 1) {  // side by side
    x = c.Slice(x, axis, 0, n * k);
    Shape pooled = x->type.shape;
    pooled[axis] = n;
    Shape apart = pooled;
    apart.insert(apart.begin() + axis + 1, k);
    return c.Reshape(reduced(c.Reshape(x, std::move(apart)), axis + 1), std::move(pooled));
  }
  if (k > kMaxSlices) {
    c.Fail("E1301", StrCat(c.op_type(), " with windows of ", k, " that overlap is not supported"));
  }
  Value* y = nullptr;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t from = i * step;
    Value* one = c.Slice(x, axis, from, from + (n - 1) * w.stride[d] + 1, w.stride[d]);
    if (y) one = max ? Larger(c, y, one) : Add(c, y, one);
    y = one;
  }
  return y;
}

Value* Pooled(NodeContext& c, const Window& w, bool max) {
  const double outside = max ? -std::numeric_limits<double>::infinity() : 0;
  Value* y = Padded(c, c.input(0), w, outside);
  // The last dim first: so the first of the largest is the first of the whole window.
  for (size_t d = w.dims(); d-- > 0;) y = PoolDim(c, y, w, d, max);
  return y;
}

Window PoolWindow(NodeContext& c) {
  const Shape& x = ImageOf(c);
  std::optional<Ints> kernel = c.IntList("kernel_shape");
  if (!kernel || kernel->size() + 2 != x.size()) {
    c.Fail("E1303", StrCat("the kernel_shape of ", c.op_type(), " does not fit its input"));
  }
  return WindowOf(c, x, *kernel, c.Flag("ceil_mode", false));
}

void MaxPool(NodeContext& c) { c.SetOutput(0, Pooled(c, PoolWindow(c), true)); }

// How many elements of dim d each window has, padding with them or not.
Ints CountsOf(const Window& w, size_t d, int64_t size, bool padding) {
  const int64_t from = padding ? 0 : w.low[d];
  const int64_t to = w.low[d] + size + (padding ? w.high[d] : 0);
  Ints counts(w.out[d], 0);
  for (int64_t o = 0; o < w.out[d]; ++o) {
    for (int64_t i = 0; i < w.kernel[d]; ++i) {
      const int64_t at = o * w.stride[d] + i * w.dilation[d];
      counts[o] += at >= from && at < to;
    }
  }
  return counts;
}

void AveragePool(NodeContext& c) {
  const Window w = PoolWindow(c);
  const bool padding = c.Flag("count_include_pad", false);
  Value* y = Pooled(c, w, false);
  HostTensor counts(y->type.dtype, w.out);
  for (int64_t i = 0; i < counts.num_elements(); ++i) counts.SetDouble(i, 1);
  for (size_t d = 0, inner = counts.num_elements(); d < w.dims(); ++d) {
    const Ints of_dim = CountsOf(w, d, c.input(0)->type.shape[d + 2], padding);
    inner /= of_dim.size();
    for (int64_t i = 0; i < counts.num_elements(); ++i) {
      const size_t at = static_cast<size_t>(i) / inner % of_dim.size();
      counts.SetDouble(i, counts.AsDouble(i) * static_cast<double>(of_dim[at]));
    }
  }
  c.SetOutput(0, Div(c, y, c.Constant(std::move(counts))));
}

void GlobalPool(NodeContext& c) {
  Value* x = c.input(0);
  Shape pooled = ImageOf(c);
  std::fill(pooled.begin() + 2, pooled.end(), 1);
  if (c.op_type() == "GlobalMaxPool") {
    const Shape lines = {pooled[0], pooled[1],
                         NumElements(Shape(x->type.shape.begin() + 2, x->type.shape.end()))};
    c.SetOutput(0, c.Reshape(Largest(c, c.Reshape(x, lines), 2), std::move(pooled)));
    return;
  }
  Ints axes = Count(x->type.rank());
  axes.erase(axes.begin(), axes.begin() + 2);
  c.SetOutput(0, Reduce(c, "reduce_mean", x, std::move(axes), true));
}

struct Moments {
  Value *mean, *variance;  // of each channel
};

// As ONNX has it, and PyTorch normalises: the variance of these numbers, not of what they are drawn
// from. In f32 of halves.
Moments MomentsOfBatch(NodeContext& c) {
  Value* x = c.input(0);
  if (IsHalf(x->type.dtype)) x = c.Cast(x, DType::kF32);
  Ints axes = Count(x->type.rank());
  if (axes.size() > 1) axes.erase(axes.begin() + 1);
  Value* mean = Reduce(c, "reduce_mean", x, axes, true);
  Value* centred = Sub(c, x, mean);
  Value* variance = Reduce(c, "reduce_mean", Mul(c, centred, centred), axes, false);
  return {c.Reshape(mean, variance->type.shape), variance};
}

// What would be kept for the evaluation.
void SetRunning(NodeContext& c, int output, Value* kept, Value* of_batch) {
  if (output >= c.num_outputs() || !c.OutputWanted(output)) return;
  const double momentum = c.Float("momentum", 0.9);
  of_batch = c.Cast(of_batch, kept->type.dtype);
  c.SetOutput(output, Add(c, Times(c, kept, momentum), Times(c, of_batch, 1 - momentum)));
}

void NoteRunning(NodeContext& c) {
  const std::string note =
      "batch norms in training normalise by the batch; running means and variances that modules "
      "keep for evaluation stay as they are in the file";
  std::vector<std::string>& notes = c.builder().graph().notes;
  if (!Contains(notes, note)) notes.push_back(note);
}

// By the statistics that the model was trained with, inputs 3 and 4, or those of the batch.
void BatchNormalization(NodeContext& c) {
  constexpr int kHasTrainingMode = 14;  // the outputs say it before
  const bool trains_by_outputs = c.num_outputs() > 1;
  const bool by_batch =
      c.opset() < kHasTrainingMode ? trains_by_outputs : c.Flag("training_mode", false);
  if (!by_batch && trains_by_outputs) {
    c.Fail("E1301", "has the outputs of training, but not its training_mode",
           "export the model in evaluation mode");
  }
  Value* x = c.input(0);
  const Shape& shape = x->type.shape;
  const int64_t channels = shape.size() < 2 ? 1 : shape[1];
  Shape broadcast(shape.size() < 2 ? 1 : shape.size() - 1, 1);
  broadcast[0] = channels;
  auto of_channels = [&](int i) {
    Value* v = c.input(i);
    if (v->type.shape != Shape{channels}) {
      c.Fail("E1303", StrCat("its input ", i, " has shape ", ShapeToString(v->type.shape),
                             ", but there are ", channels, " channels"));
    }
    return v;
  };
  Moments by = {of_channels(3), of_channels(4)};
  if (by_batch) {
    const Moments kept = std::exchange(by, MomentsOfBatch(c));
    SetRunning(c, 1, kept.mean, by.mean);
    SetRunning(c, 2, kept.variance, by.variance);
    NoteRunning(c);
  }
  Value* variance = Plus(c, by.variance, c.Float("epsilon", 1e-5f));
  Value* scale = Div(c, c.Cast(of_channels(1), variance->type.dtype), c.Make("sqrt", {variance}));
  Value* y = Sub(c, x, c.Reshape(c.Cast(by.mean, x->type.dtype), broadcast));
  y = Mul(c, y, c.Reshape(c.Cast(scale, x->type.dtype), broadcast));
  c.SetOutput(0, Add(c, y, c.Reshape(c.Cast(of_channels(2), x->type.dtype), broadcast)));
}

}  // namespace

void AddPoolConverters(ConverterTable& table) {
  table.insert({{"MaxPool", MaxPool},
                {"AveragePool", AveragePool},
                {"GlobalAveragePool", GlobalPool},
                {"GlobalMaxPool", GlobalPool},
                {"BatchNormalization", BatchNormalization}});
}

}  // namespace shardc::onnx_import
