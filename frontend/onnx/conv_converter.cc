// Conv and ConvTranspose as a product of patches and weights for each group: patch embeddings of
// images, the front of an audio encoder, the way back up of a decoder. With a group for each
// channel (short convolutions along the sequence) it is a sum of shifted inputs, each times its
// place in the kernel.
#include <algorithm>
#include <string>

#include "frontend/onnx/windows.h"

namespace shardc::onnx_import {
namespace {

constexpr int64_t kMaxSlices = 256;

bool Adjacent(const Window& w) {
  return w.stride == w.kernel && std::ranges::all_of(w.dilation, [](int64_t d) { return d == 1; });
}

// Calls f(place) for every place in the kernel, in row-major order.
template <typename F>
void ForEachPlace(const Window& w, F f) {
  Ints place(w.dims(), 0);
  for (int64_t i = 0; i < NumElements(w.kernel); ++i) {
    f(place);
    for (size_t d = w.dims(); d-- > 0 && ++place[d] == w.kernel[d];) place[d] = 0;
  }
}

// [n, out..., c, kernel...]: windows side by side, which only take the dims apart.
Value* AdjacentPatches(NodeContext& c, Value* x, const Window& w) {
  const int64_t n = static_cast<int64_t>(w.dims());
  Ints starts(x->type.shape.size(), 0), steps(starts.size(), 1);
  Shape used = {x->type.shape[0], x->type.shape[1]}, apart = used;
  Ints perm = {0}, within = {1};
  for (int64_t d = 0; d < n; ++d) {
    used.push_back(w.out[d] * w.kernel[d]);
    apart.insert(apart.end(), {w.out[d], w.kernel[d]});
    perm.push_back(2 + 2 * d);
    within.push_back(3 + 2 * d);
  }
  if (used != x->type.shape) {
    x = c.Make("slice", {x}, {{"starts", starts}, {"limits", used}, {"steps", steps}});
  }
  perm.insert(perm.end(), within.begin(), within.end());
  return c.Transpose(c.Reshape(x, std::move(apart)), std::move(perm));
}

// [n, out..., kernel elements, c], for windows that overlap or leave gaps: a slice for each place
// in the kernel, with the channels last, so that what is copied is not single elements.
Value* SlicedPatches(NodeContext& c, Value* x, const Window& w) {
  Ints channels_last = {0};
  for (size_t d = 0; d < w.dims(); ++d) channels_last.push_back(static_cast<int64_t>(d) + 2);
  channels_last.push_back(1);
  x = c.Transpose(x, std::move(channels_last));
  std::vector<Value*> slices;
  ForEachPlace(w, [&](const Ints& place) {
    Value* slice = Shifted(c, x, w, place, 1);
    Shape shape = slice->type.shape;
    shape.insert(shape.end() - 1, 1);
    slices.push_back(c.Reshape(slice, std::move(shape)));
  });
  return Joined(c, std::move(slices), static_cast<int64_t>(w.dims()) + 1);
}

// x[n, c, ...], weight[m, c / groups, kernel...] -> [n, positions, m].
Value* Products(NodeContext& c, Value* x, Value* weight, const Window& w, int64_t groups) {
  const int64_t n = x->type.shape[0], positions = NumElements(w.out), m = weight->type.shape[0];
  const int64_t channels = weight->type.shape[1], places = NumElements(w.kernel);
  Value* patches = nullptr;
  if (Adjacent(w)) {
    patches = AdjacentPatches(c, x, w);
  } else {
    patches = SlicedPatches(c, x, w);
    weight = c.Transpose(c.Reshape(weight, {m, channels, places}), {0, 2, 1});
    if (groups > 1) {
      patches = c.Reshape(patches, {n, positions, places, groups, channels});
      patches = c.Transpose(patches, {0, 1, 3, 2, 4});
    }
  }
  const int64_t width = channels * places;
  if (groups == 1) {
    return c.Make("matmul_nt",
                  {c.Reshape(patches, {n, positions, width}), c.Reshape(weight, {m, width})});
  }
  patches = c.Transpose(c.Reshape(patches, {n, positions, groups, width}), {0, 2, 1, 3});
  Value* y = c.Make("matmul_nt", {patches, c.Reshape(weight, {groups, m / groups, width})});
  return c.Reshape(c.Transpose(y, {0, 2, 1, 3}), {n, positions, m});
}

// x[n, c, ...], weight[c, 1, kernel...] -> [n, c, out...].
Value* Depthwise(NodeContext& c, Value* x, Value* weight, const Window& w) {
  const int64_t channels = weight->type.shape[0];
  Value* factors = c.Reshape(weight, {channels, NumElements(w.kernel)});
  Shape broadcast(w.dims() + 1, 1);
  broadcast[0] = channels;
  Value* y = nullptr;
  int64_t i = 0;
  ForEachPlace(w, [&](const Ints& place) {
    Value* factor = c.Reshape(SliceDim(c, factors, 1, i, i + 1), broadcast);
    Value* term = Mul(c, Shifted(c, x, w, place), factor);
    y = y ? Add(c, y, term) : term;
    ++i;
  });
  return y;
}

// An operand as it is computed with, where x, of the type of input 0, is of this one. What has
// another type than input 0 keeps it, and does not fit.
Value* Beside(NodeContext& c, Value* v, DType computed) {
  return v->type.dtype == c.input(0)->type.dtype ? c.Cast(v, computed) : v;
}

// Input 2 as the bias of these channels; null without one.
Value* BiasOf(NodeContext& c, int64_t channels, DType dtype) {
  if (!c.has_input(2)) return nullptr;
  if (const Shape& shape = c.input(2)->type.shape; shape != Shape{channels}) {
    c.Fail("E1303", StrCat("the bias of ", c.op_type(), " has shape ", ShapeToString(shape),
                           ", its result ", channels, " channels"));
  }
  return Beside(c, c.input(2), dtype);
}

// x[n, c, ...], with its padding; weight[m, c / groups, kernel...] -> [n, m, out...], with the bias
// of input 2.
Value* Convolve(NodeContext& c, Value* x, Value* weight, const Window& w, int64_t groups) {
  const Shape xs = x->type.shape, ws = weight->type.shape;
  Value* bias = BiasOf(c, ws[0], x->type.dtype);
  const bool depthwise = groups > 1 && groups == xs[1] && groups == ws[0];
  if ((depthwise || !Adjacent(w)) && NumElements(w.kernel) > kMaxSlices) {
    c.Fail("E1301",
           StrCat(c.op_type(), " with a kernel of ", NumElements(w.kernel), " elements ",
                  depthwise ? "for each channel" : "whose windows overlap", " is not supported"));
  }
  if (depthwise) {
    Value* y = Depthwise(c, x, weight, w);
    Shape broadcast(w.dims() + 1, 1);
    broadcast[0] = ws[0];
    return bias ? Add(c, y, c.Reshape(bias, broadcast)) : y;
  }
  Value* y = Products(c, x, weight, w, groups);
  if (bias) y = Add(c, y, bias);
  Shape shape = {xs[0], ws[0]};
  shape.insert(shape.end(), w.out.begin(), w.out.end());
  return c.Reshape(c.Transpose(y, {0, 2, 1}), std::move(shape));
}

// E1303 unless both are [.., channels, spatial dims...].
void CheckRanks(NodeContext& c, const Shape& x, const Shape& weight) {
  if (x.size() >= 3 && weight.size() == x.size()) return;
  c.Fail("E1303", StrCat(c.op_type(),
                         " needs an input and a weight with a batch, channels and spatial dims"));
}

}  // namespace

Value* ConvOf(NodeContext& c) {
  Value *x = c.input(0), *weight = c.input(1);
  const Shape xs = x->type.shape, ws = weight->type.shape;
  CheckRanks(c, xs, ws);
  const int64_t groups = c.Int("group", 1);
  if (groups < 1 || xs[1] % groups != 0 || ws[0] % groups != 0) {
    c.Fail("E1303", StrCat("Conv's ", groups, " groups do not divide the ", xs[1],
                           " channels of its input and the ", ws[0], " of its result"));
  }
  if (ws[1] != xs[1] / groups) {
    c.Fail("E1303", StrCat("the weight of Conv takes ", ws[1], " channels, its input has ",
                           xs[1] / groups, groups == 1 ? "" : " in each group"));
  }
  const Window w = WindowOf(c, xs, Ints(ws.begin() + 2, ws.end()), false);
  return Convolve(c, Padded(c, x, w, 0), weight, w, groups);
}

namespace {

void Conv(NodeContext& c) { c.SetOutput(0, ConvOf(c)); }

// weight[c, m / groups, kernel...], by which a Conv takes m channels to c, -> the weight
// [m, c / groups, kernel...] of one that takes c back to m: mirrored.
Value* Mirrored(NodeContext& c, Value* weight, int64_t groups) {
  Shape shape = weight->type.shape;
  shape.insert(shape.begin(), {groups, shape[0] / groups});
  shape.erase(shape.begin() + 2);
  Ints perm = Count(static_cast<int64_t>(shape.size()));
  std::swap(perm[1], perm[2]);
  weight = c.Transpose(c.Reshape(weight, shape), std::move(perm));
  Shape merged = {groups * shape[2], shape[1]};
  merged.insert(merged.end(), shape.begin() + 3, shape.end());
  weight = c.Reshape(weight, merged);
  for (size_t d = 2; d < merged.size(); ++d) {
    if (merged[d] == 1) continue;
    Ints back = Count(merged[d]);
    std::reverse(back.begin(), back.end());
    Value* positions = c.Constant(HostTensor::Of<int64_t>({merged[d]}, back));
    weight = LookUp(c, weight, positions, static_cast<int64_t>(d));
  }
  return weight;
}

// x[n, c, ...] with stride - 1 zeros behind each element.
Value* Spread(NodeContext& c, Value* x, const Ints& stride) {
  if (std::ranges::all_of(stride, [](int64_t s) { return s == 1; })) return x;
  Shape apart = {x->type.shape[0], x->type.shape[1]}, together = apart;
  Ints high(2, 0);
  for (size_t d = 0; d < stride.size(); ++d) {
    const int64_t n = x->type.shape[d + 2];
    apart.insert(apart.end(), {n, 1});
    together.push_back(n * stride[d]);
    high.insert(high.end(), {0, stride[d] - 1});
  }
  Value* spread = c.Make("pad", {c.Reshape(x, apart)},
                         {{"low", Ints(high.size(), 0)}, {"high", high}, {"value", 0.0}});
  return c.Reshape(spread, together);
}

// The gradient of a Conv of these windows: a Conv by the mirrored weight, of step 1, of the input
// with zeros in between.
void ConvTranspose(NodeContext& c) {
  Value *x = c.input(0), *weight = c.input(1);
  const Shape xs = x->type.shape, ws = weight->type.shape;
  CheckRanks(c, xs, ws);
  const int64_t groups = c.Int("group", 1);
  if (groups < 1 || xs[1] % groups != 0 || ws[0] != xs[1]) {
    c.Fail("E1303", StrCat("the weight of ConvTranspose takes ", ws[0], " channels in ", groups,
                           groups == 1 ? " group" : " groups", ", its input has ", xs[1]));
  }
  Window w = TransposedWindowOf(c, xs, Ints(ws.begin() + 2, ws.end()));
  x = Spread(c, x, w.stride);
  std::ranges::fill(w.stride, 1);
  Ints starts(2, 0), limits = {xs[0], xs[1]};
  for (size_t d = 0; d < w.dims(); ++d) {
    starts.push_back(std::max<int64_t>(-w.low[d], 0));
    limits.push_back(x->type.shape[d + 2] - std::max<int64_t>(-w.high[d], 0));
    w.low[d] = std::max<int64_t>(w.low[d], 0);
    w.high[d] = std::max<int64_t>(w.high[d], 0);
  }
  if (limits != x->type.shape || starts != Ints(starts.size(), 0)) {
    const Ints steps(starts.size(), 1);
    x = c.Make("slice", {x}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
  }
  c.SetOutput(0, Convolve(c, Padded(c, x, w, 0), Mirrored(c, weight, groups), w, groups));
}

// Of ONNX Runtime's CausalConvWithState: activations and states are [b, s, channels...].
bool ChannelsAreLast(NodeContext& c) { return c.Flag("channels_last", false); }

// Input i of CausalConvWithState as [b, channels, s].
Value* ChannelsFirst(NodeContext& c, int i) {
  Value* x = c.input(i);
  const Shape& s = x->type.shape;
  if (s.size() < 3 || (s.size() > 3 && !ChannelsAreLast(c))) {
    c.Fail("E1303", StrCat("input ", i, " of CausalConvWithState has shape ", ShapeToString(s),
                           "; it has to be [batch, channels, length]"));
  }
  if (!ChannelsAreLast(c)) return x;
  const int64_t channels = NumElements(Shape(s.begin() + 2, s.end()));
  return c.Transpose(c.Reshape(x, {s[0], s[1], channels}), {0, 2, 1});
}

// And back, to the channels of input 0.
Value* AsInput(NodeContext& c, Value* x) {
  if (!ChannelsAreLast(c)) return x;
  Shape shape = c.input(0)->type.shape;
  shape[1] = x->type.shape[2];
  return c.Reshape(c.Transpose(x, {0, 2, 1}), shape);
}

// A convolution along the sequence of each channel by itself, also over the elements of the past
// that the first windows reach, which are zeros without one.
void CausalConvWithState(NodeContext& c) {
  Value *x = ChannelsFirst(c, 0), *weight = c.input(1);
  const Shape xs = x->type.shape, ws = weight->type.shape;
  if (c.Int("ndim", 1) != 1 || c.Int("state_window", 0) != 0) {
    c.Fail("E1301",
           "CausalConvWithState along several dims, or with a window of states, is not supported");
  }
  if (ws.size() != 3 || ws[0] != xs[1] || ws[1] != 1 || ws[2] < 1) {
    c.Fail("E1303", StrCat("the weight of CausalConvWithState has shape ", ShapeToString(ws),
                           "; it has to be [", xs[1], ", 1, k]"));
  }
  const int64_t dilation = c.Int("dilation", 1);
  if (dilation < 1) c.Fail("E1303", StrCat("CausalConvWithState has a dilation of ", dilation));
  const int64_t reach = (ws[2] - 1) * dilation;
  Window w{.kernel = {ws[2]},
           .stride = {1},
           .dilation = {dilation},
           .low = {reach},
           .high = {0},
           .out = {xs[2]},
           .beyond = {0}};
  if (c.has_input(3)) {
    Value* past = ChannelsFirst(c, 3);
    if (past->type.shape != Shape{xs[0], xs[1], reach}) {
      c.Fail(
          "E1303",
          StrCat("past_state of CausalConvWithState holds ", ShapeToString(past->type.shape),
                 " [batch, channels, length] instead of ", ShapeToString({xs[0], xs[1], reach})));
    }
    x = Joined(c, {past, x}, 2);
    w.low = {0};
  }
  x = Padded(c, x, w, 0);
  const DType dtype = x->type.dtype, wide = IsHalf(dtype) ? DType::kF32 : dtype;
  Value* y = Convolve(c, c.Cast(x, wide), Beside(c, weight, wide), w, xs[1]);
  const std::string activation = c.String("activation", "none");
  if (activation == "silu" || activation == "swish") {
    y = c.Make("silu", {y});
  } else if (activation != "none") {
    c.Fail("E1303", StrCat("CausalConvWithState has no activation \"", activation, "\""));
  }
  c.SetOutput(0, AsInput(c, c.Cast(y, dtype)));
  const int64_t length = x->type.shape[2];
  c.SetOutput(1, AsInput(c, SliceDim(c, x, 2, length - reach, length)));
}

}  // namespace

void AddConvConverter(ConverterTable& table) {
  table.insert({{"Conv", Conv},
                {"ConvTranspose", ConvTranspose},
                {"CausalConvWithState", CausalConvWithState},
                {"com.microsoft::CausalConvWithState", CausalConvWithState}});
}

}  // namespace shardc::onnx_import
