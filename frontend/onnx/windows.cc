#include "frontend/onnx/windows.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace shardc::onnx_import {
namespace {

constexpr int64_t kLargest = int64_t{1} << 30;

Ints ListOr(NodeContext& c, std::string_view name, size_t size, int64_t otherwise) {
  Ints list = c.IntList(name).value_or(Ints(size, otherwise));
  if (list.size() != size) {
    c.Fail("E1303",
           StrCat(name, " of ", c.op_type(), " has ", list.size(), " entries instead of ", size));
  }
  return list;
}

// Positions of dim d of size n: rounded up, if asked for, as long as the last begins in front of
// the padding behind.
void AddPositions(NodeContext& c, Window& w, size_t d, int64_t n, bool round_up) {
  const int64_t padded = n + w.low[d] + w.high[d], left = padded - w.Span(d);
  if (left < 0) {
    c.Fail("E1303", StrCat("the kernel of ", c.op_type(), " is larger than its input"));
  }
  int64_t out = left / w.stride[d] + 1;
  if (round_up && left % w.stride[d] != 0 && out * w.stride[d] < n + w.low[d]) ++out;
  w.out.push_back(out);
  w.beyond.push_back(std::max<int64_t>((out - 1) * w.stride[d] + w.Span(d) - padded, 0));
}

bool IsSame(const std::string& automatic) {
  return automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
}

// The padding that a dim needs in all, in front and behind.
void AddSame(const std::string& automatic, int64_t total, int64_t& low, int64_t& high) {
  low = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
  high = total - low;
}

// As the node gives them: without positions, and without padding where that is automatic.
Window Given(NodeContext& c, Ints kernel, const std::string& automatic) {
  Window w;
  w.kernel = std::move(kernel);
  const size_t n = w.dims();
  w.stride = ListOr(c, "strides", n, 1);
  w.dilation = ListOr(c, "dilations", n, 1);
  Ints pads = ListOr(c, "pads", 2 * n, 0);
  w.low.assign(pads.begin(), pads.begin() + static_cast<int64_t>(n));
  w.high.assign(pads.begin() + static_cast<int64_t>(n), pads.end());
  if (!IsSame(automatic) && automatic != "NOTSET" && automatic != "VALID") {
    c.Fail("E1303", StrCat(c.op_type(), " has no auto_pad \"", automatic, "\""));
  }
  if (automatic == "VALID") w.low = w.high = Ints(n, 0);
  for (size_t d = 0; d < n; ++d) {
    auto small = [](int64_t v, int64_t least) { return v >= least && v <= kLargest; };
    if (!small(w.kernel[d], 1) || !small(w.stride[d], 1) || !small(w.dilation[d], 1) ||
        !small(w.low[d], 0) || !small(w.high[d], 0) || w.Span(d) > kLargest) {
      c.Fail("E1303",
             StrCat("the kernel, strides, dilations and pads of ", c.op_type(), " do not fit"));
    }
  }
  return w;
}

}  // namespace

Window WindowOf(NodeContext& c, const Shape& x, Ints kernel, bool round_up) {
  const std::string automatic = c.String("auto_pad", "NOTSET");
  Window w = Given(c, std::move(kernel), automatic);
  for (size_t d = 0; d < w.dims(); ++d) {
    const int64_t size = x[d + 2];
    if (IsSame(automatic)) {
      int64_t wanted = (size + w.stride[d] - 1) / w.stride[d];
      int64_t total = std::max<int64_t>((wanted - 1) * w.stride[d] + w.Span(d) - size, 0);
      AddSame(automatic, total, w.low[d], w.high[d]);
    }
    AddPositions(c, w, d, size, round_up && !IsSame(automatic));
  }
  return w;
}

Window TransposedWindowOf(NodeContext& c, const Shape& x, Ints kernel) {
  const std::string automatic = c.String("auto_pad", "NOTSET");
  Window w = Given(c, std::move(kernel), automatic);
  const Ints more = ListOr(c, "output_padding", w.dims(), 0);
  std::optional<Ints> wanted;
  if (c.HasAttr("output_shape")) wanted = ListOr(c, "output_shape", w.dims(), 0);
  for (size_t d = 0; d < w.dims(); ++d) {
    if (x[d + 2] < 1 || x[d + 2] > kLargest || more[d] < 0 || more[d] > kLargest) {
      c.Fail("E1303", StrCat("the input and output_padding of ", c.op_type(), " do not fit"));
    }
    const int64_t own = (x[d + 2] - 1) * w.stride[d] + w.Span(d);
    int64_t all = own + more[d];
    if (wanted || IsSame(automatic)) {
      const int64_t out = wanted ? (*wanted)[d] : std::min(x[d + 2] * w.stride[d], all);
      if (out < 1 || out > kLargest) c.Fail("E1303", StrCat("there is no output_shape of ", out));
      all = std::max(all, out);
      AddSame(automatic, all - out, w.low[d], w.high[d]);
    }
    w.out.push_back(all - w.low[d] - w.high[d]);
    if (w.out[d] < 1) {
      c.Fail("E1303", StrCat("the pads of ", c.op_type(), " leave nothing of its result"));
    }
    // Of the input with zeros in between: the last one's are behind it already.
    w.low[d] = w.Span(d) - 1 - w.low[d];
    w.high[d] = w.Span(d) - 1 - w.high[d] + (all - own) - (w.stride[d] - 1);
  }
  w.beyond = Ints(w.dims(), 0);
  return w;
}

Value* Padded(NodeContext& c, Value* x, const Window& w, double value) {
  Ints low(2, 0), high(2, 0);
  low.insert(low.end(), w.low.begin(), w.low.end());
  for (size_t d = 0; d < w.dims(); ++d) high.push_back(w.high[d] + w.beyond[d]);
  Ints none(low.size(), 0);
  if (low == none && high == none) return x;
  return c.Make("pad", {x}, {{"low", low}, {"high", high}, {"value", value}});
}

Value* Shifted(NodeContext& c, Value* x, const Window& w, const Ints& offset, size_t first) {
  Ints starts(x->type.shape.size(), 0), limits = x->type.shape, steps(starts.size(), 1);
  for (size_t d = 0; d < w.dims(); ++d) {
    const size_t dim = first + d;
    starts[dim] = offset[d] * w.dilation[d];
    limits[dim] = starts[dim] + (w.out[d] - 1) * w.stride[d] + 1;
    // As Slice of OpMaker: one window may have a stride beyond the dim.
    steps[dim] = std::min(w.stride[d], x->type.shape[dim]);
  }
  return c.Make("slice", {x}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
}

}  // namespace shardc::onnx_import
