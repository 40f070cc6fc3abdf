// The windows that convolutions and pools move over the spatial dims of x[n, c, ...].
#pragma once

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {

struct Window {
  Ints kernel, stride, dilation, low, high;  // by spatial dim
  Ints out;                                  // positions
  Ints beyond;                               // places behind the padding that the last ones reach

  size_t dims() const { return kernel.size(); }
  int64_t Span(size_t d) const { return dilation[d] * (kernel[d] - 1) + 1; }
};

// From the node's strides, dilations, pads and auto_pad; E1303 where they do not fit. `round_up`:
// ceil_mode, which pools have.
Window WindowOf(NodeContext& c, const Shape& x, Ints kernel, bool round_up);
// Those of the Conv by which a ConvTranspose is written, over x with stride - 1 zeros behind each
// element: of step 1, whatever `stride` says. low and high are negative where x is to lose
// elements.
Window TransposedWindowOf(NodeContext& c, const Shape& x, Ints kernel);
// x with its padding, and what the windows reach beyond it.
Value* Padded(NodeContext& c, Value* x, const Window& w, double value);
// Every stride-th element from the offset on: in the place of the spatial dims of x, of which dim
// `first` is the first one, out.
Value* Shifted(NodeContext& c, Value* x, const Window& w, const Ints& offset, size_t first = 2);

}  // namespace shardc::onnx_import
