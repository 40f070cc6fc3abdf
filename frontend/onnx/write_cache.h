// Keys and values that are written into a cache of a given length.
#pragma once

#include "frontend/onnx/converter.h"

namespace shardc::onnx_import {

// The cache [batch, ...] with x, of its dims but along `axis`, in the places starts[b], starts[b] +
// 1, ... of that dim of each sequence b. Over the end it goes on in front where it is `circular`;
// else no start may be so late: E1303 for one that is known, E4003 when it runs for another.
// `starts` are integers, one for each sequence. Other dims may be cut, and so may the batch.
Value* WriteCache(NodeContext& c, Value* cache, Value* x, Value* starts, int axis,
                  bool circular = false);

}  // namespace shardc::onnx_import
