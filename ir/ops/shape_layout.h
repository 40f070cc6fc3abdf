// Shape ops in two files: those that only rename positions, and those that cut and join.
#pragma once

#include "ir/op_def.h"

namespace shardc {

void RegisterLayoutOps(OpRegistry& registry);  // reshape, transpose, broadcast_to
void RegisterPieceOps(OpRegistry& registry);   // slice, pad, concat, split

// Copies `size` elements from in, starting at `from` in steps of `step` (may be negative), to out,
// starting at `to`. Views have the same dtype.
void CopyStrided(const TensorView& in, const Shape& from, const Shape& step, const TensorView& out,
                 const Shape& to, const Shape& size);

}  // namespace shardc
