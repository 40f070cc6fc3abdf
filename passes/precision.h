// Mixed precision: products and attention in a smaller float type, all else in f32.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace shardc {

struct PrecisionOptions {
  std::string compute = "f32";  // f32: nothing is done; bf16, f16
  std::string reduce_in;        // "f32": sums over ranks travel in f32; empty: as computed
};

// On the serial graph, after differentiation: gives every op the types that its OpDef's policy asks
// for, with one cast per value and type, put before the first op that needs it. Parameters, states,
// inputs and outputs keep their types: a parameter is the f32 master weight, and its gradient is
// f32. Throws Diagnostic E6108 for options that make no sense, E1602 for a model that does not
// compute in f32.
void LowerPrecision(Graph& graph, const PrecisionOptions& options);

// On the lowered graph: the operands of summing collectives are widened to f32, and their results
// narrowed again.
void ReduceInF32(Graph& graph);

// On the lowered graph, after fusion: a cast that is the only reader of a result whose op can
// choose its type (OpDef::typed_result), or of views of it, is done by that op, if kernels give
// that: f32 beside halves of one type, and a product's result in halves only of halves. Pieces that
// are put together to be rounded to a half are rounded one by one. A cast back to the type before
// the last cast is dropped.
void FoldCasts(Graph& graph);

// The value in another float type and the same placement: a cast before `before`, of the phase of
// `like` and belonging with it.
Value* CastBefore(Graph& graph, Value* v, DType to, const Op& like, Op* before);

// Whether the op reads or gives halves of the other type than `half`, beside which it may have
// none.
bool HasOtherHalf(const Op& op, DType half);

}  // namespace shardc
