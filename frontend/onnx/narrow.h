// Integers of ONNX types that are held in wider ones (HeldAs): int2 to int16, uint2 to uint64.
#pragma once

#include <string_view>

#include "frontend/onnx/converter.h"

namespace shardc::onnx_import {

bool IsNarrow(int64_t onnx_type);

// The largest or the least number of the narrow type. E1306 for one that its holder has not.
double ExtremeOf(const NodeContext& c, int64_t narrow_type, bool largest);

// The input of whose type result i of the op is; -1: of another's.
int TypedLike(std::string_view op, int i);

// What the node has made of its inputs in the wider type, as of this one: what leaves its range
// wraps, as two's complement does. What leaves the wider type too, as a product of uint16 may, is
// an error when it is run (E1102). E1306 for a constant uint64 that its holder has not, E1301 for
// one that is computed from input data.
Value* Wrapped(NodeContext& c, Value* v, int64_t onnx_type);

}  // namespace shardc::onnx_import
