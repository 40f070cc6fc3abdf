// ScatterND and ScatterElements to places that are known when compiling: x[:, 1:] = y and its kin.
#pragma once

#include "frontend/onnx/converter.h"

namespace shardc::onnx_import {

// The places that `indices` names, as positions along the first dims of the data.
struct Places {
  int dims = 0;
  int64_t count = 0;
  Ints at;  // [count, dims]
};

// Data with updates [count, rest of the data's dims...] in those places, or combined with what is
// there (`reduction`: "none", "add", "mul", "max" or "min"). Of slices and concats where the places
// are a box in its own order, so that dims that it covers whole may be cut; else lookups in data
// and updates. Without a reduction the last of several updates of one place wins.
Value* PutAt(NodeContext& c, Value* data, const Places& places, Value* updates,
             const std::string& reduction);

// The same with those updates alone that `chosen`, bool [count], says; without a reduction one at
// most for each place. Where `term` is not null the updates are what is there in those places and
// this besides.
Value* PutChosen(NodeContext& c, Value* data, const Places& places, Value* updates, Value* term,
                 Value* chosen, const std::string& reduction);

// Whether all elements of the constant behind v are the same; whether they are 0, and not -0, which
// a sum of nothing is not.
bool IsUniform(const NodeContext& c, Value* v);
bool IsZeros(const NodeContext& c, Value* v);

}  // namespace shardc::onnx_import
