// Conv as a product of patches and weights for each group: patch embeddings of images, the front of
// an audio encoder. With a group for each channel (short convolutions along the sequence) it is a
// sum of shifted inputs, each times its place in the kernel.
#include <algorithm>
#include <string>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

constexpr int64_t kMaxSlices = 256;

struct Window {
  Ints kernel, stride, dilation, low, high;  // by spatial dim
  Ints out;                                  // positions

  size_t dims() const { return kernel.size(); }
  int64_t Span(size_t d) const { return dilation[d] * (kernel[d] - 1) + 1; }
  int64_t Offsets() const { return NumElements(kernel); }
  bool Adjacent() const {
    return stride == kernel && std::ranges::all_of(dilation, [](int64_t d) { return d == 1; });
  }
};

// Calls f(place) for every place in the kernel, in row-major order.
template <typename F>
void ForEachPlace(const Window& w, F f) {
  Ints place(w.dims(), 0);
  for (int64_t i = 0; i < w.Offsets(); ++i) {
    f(place);
    for (size_t d = w.dims(); d-- > 0 && ++place[d] == w.kernel[d];) place[d] = 0;
  }
}

Ints ListOr(NodeContext& c, std::string_view name, size_t size, int64_t otherwise) {
  Ints list = c.IntList(name).value_or(Ints(size, otherwise));
  if (list.size() != size) {
    c.Fail("E1303", StrCat(name, " of Conv has ", list.size(), " entries instead of ", size));
  }
  return list;
}

Window WindowOf(NodeContext& c, const Shape& x, const Shape& weight) {
  Window w;
  w.kernel.assign(weight.begin() + 2, weight.end());
  const size_t n = w.dims();
  w.stride = ListOr(c, "strides", n, 1);
  w.dilation = ListOr(c, "dilations", n, 1);
  Ints pads = ListOr(c, "pads", 2 * n, 0);
  w.low.assign(pads.begin(), pads.begin() + static_cast<int64_t>(n));
  w.high.assign(pads.begin() + static_cast<int64_t>(n), pads.end());
  std::string automatic = c.String("auto_pad", "NOTSET");
  bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
  if (!same && automatic != "NOTSET" && automatic != "VALID") {
    c.Fail("E1303", StrCat("Conv has no auto_pad \"", automatic, "\""));
  }
  constexpr int64_t kLargest = int64_t{1} << 30;
  for (size_t d = 0; d < n; ++d) {
    auto small = [](int64_t v, int64_t least) { return v >= least && v <= kLargest; };
    if (!small(w.kernel[d], 1) || !small(w.stride[d], 1) || !small(w.dilation[d], 1) ||
        !small(w.low[d], 0) || !small(w.high[d], 0) || w.Span(d) > kLargest) {
      c.Fail("E1303", "the kernel, strides, dilations and pads of Conv do not fit");
    }
    int64_t size = x[d + 2];
    if (same) {
      int64_t wanted = (size + w.stride[d] - 1) / w.stride[d];
      int64_t total = std::max<int64_t>((wanted - 1) * w.stride[d] + w.Span(d) - size, 0);
      w.low[d] = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.high[d] = total - w.low[d];
    }
    int64_t padded = size + w.low[d] + w.high[d];
    if (padded < w.Span(d)) c.Fail("E1303", "the kernel of Conv is larger than its input");
    w.out.push_back((padded - w.Span(d)) / w.stride[d] + 1);
  }
  return w;
}

Value* Padded(NodeContext& c, Value* x, const Window& w) {
  Ints low(2, 0), high(2, 0);
  low.insert(low.end(), w.low.begin(), w.low.end());
  high.insert(high.end(), w.high.begin(), w.high.end());
  Ints none(low.size(), 0);
  if (low == none && high == none) return x;
  return c.Make("pad", {x}, {{"low", low}, {"high", high}, {"value", 0.0}});
}

// Every stride-th element from the offset on, [n, c, out...].
Value* Shifted(NodeContext& c, Value* x, const Window& w, const Ints& offset) {
  Ints starts(2, 0), limits = {x->type.shape[0], x->type.shape[1]}, steps(2, 1);
  for (size_t d = 0; d < w.dims(); ++d) {
    starts.push_back(offset[d] * w.dilation[d]);
    limits.push_back(starts.back() + (w.out[d] - 1) * w.stride[d] + 1);
    steps.push_back(w.stride[d]);
  }
  return c.Make("slice", {x}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
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

// The same for windows that overlap or leave gaps: a slice for each place in the kernel.
Value* SlicedPatches(NodeContext& c, Value* x, const Window& w) {
  std::vector<Value*> slices;
  ForEachPlace(w, [&](const Ints& place) {
    Value* slice = Shifted(c, x, w, place);
    Shape column = slice->type.shape;
    column.push_back(1);
    slices.push_back(c.Reshape(slice, std::move(column)));
  });
  const int64_t rank = static_cast<int64_t>(w.dims()) + 3;
  Value* all = slices.size() == 1 ? slices[0] : c.Make("concat", slices, {{"axis", rank - 1}});
  Ints perm = {0};
  for (int64_t d = 2; d < rank - 1; ++d) perm.push_back(d);
  perm.push_back(1);
  perm.push_back(rank - 1);
  return c.Transpose(all, std::move(perm));
}

// x[n, c, ...], weight[m, c / groups, kernel...] -> [n, positions, m].
Value* Products(NodeContext& c, Value* x, Value* weight, const Window& w, int64_t groups) {
  const int64_t n = x->type.shape[0], positions = NumElements(w.out), m = weight->type.shape[0];
  const int64_t width = weight->type.shape[1] * w.Offsets();
  Value* patches = w.Adjacent() ? AdjacentPatches(c, x, w) : SlicedPatches(c, x, w);
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
  Value* factors = c.Reshape(weight, {channels, w.Offsets()});
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

void Conv(NodeContext& c) {
  Value *x = c.input(0), *weight = c.input(1);
  const Shape xs = x->type.shape, ws = weight->type.shape;
  if (xs.size() < 3 || ws.size() != xs.size()) {
    c.Fail("E1303", "Conv needs an input and a weight with a batch, channels and spatial dims");
  }
  const int64_t groups = c.Int("group", 1);
  if (groups < 1 || xs[1] % groups != 0 || ws[0] % groups != 0) {
    c.Fail("E1303", StrCat("Conv's ", groups, " groups do not divide the ", xs[1],
                           " channels of its input and the ", ws[0], " of its result"));
  }
  if (ws[1] != xs[1] / groups) {
    c.Fail("E1303", StrCat("the weight of Conv takes ", ws[1], " channels, its input has ",
                           xs[1] / groups, groups == 1 ? "" : " in each group"));
  }
  if (c.has_input(2) && c.input(2)->type.shape != Shape{ws[0]}) {
    c.Fail("E1303", StrCat("the bias of Conv has shape ", ShapeToString(c.input(2)->type.shape),
                           ", its result ", ws[0], " channels"));
  }
  const Window w = WindowOf(c, xs, ws);
  const bool depthwise = groups > 1 && groups == xs[1] && groups == ws[0];
  if ((depthwise || !w.Adjacent()) && w.Offsets() > kMaxSlices) {
    c.Fail("E1301",
           StrCat("Conv with a kernel of ", w.Offsets(), " elements ",
                  depthwise ? "for each channel" : "whose windows overlap", " is not supported"));
  }
  x = Padded(c, x, w);
  if (depthwise) {
    Value* y = Depthwise(c, x, weight, w);
    Shape broadcast(w.dims() + 1, 1);
    broadcast[0] = ws[0];
    c.SetOutput(0, c.has_input(2) ? Add(c, y, c.Reshape(c.input(2), broadcast)) : y);
    return;
  }
  Value* y = Products(c, x, weight, w, groups);
  if (c.has_input(2)) y = Add(c, y, c.input(2));
  Shape shape = {xs[0], ws[0]};
  shape.insert(shape.end(), w.out.begin(), w.out.end());
  c.SetOutput(0, c.Reshape(c.Transpose(y, {0, 2, 1}), std::move(shape)));
}

}  // namespace

void AddConvConverter(ConverterTable& table) { table.insert({{"Conv", Conv}}); }

}  // namespace shardc::onnx_import
