// Halves between products and the f32 sums that they go into.
#pragma once

#include "ir/graph.h"

namespace shardc {

// On the lowered graph, after fusion: products of halves whose only readers widen operands as they
// read (OpDef::narrow_operands) are rounded to a half, as they would be in order to travel, and
// such readers take the place of casts; also where ops that only move elements stand between. Half
// the bytes of a branch, of a gradient on its way to a norm, and of logits; the sums that these go
// into stay in f32.
void NarrowReads(Graph& graph);

}  // namespace shardc
