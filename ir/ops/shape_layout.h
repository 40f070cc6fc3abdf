// Shape ops in two files: those that only rename positions, and those that cut and join.
#pragma once

#include "ir/op_def.h"

namespace shardc {

void RegisterLayoutOps(OpRegistry& registry);  // reshape, transpose, broadcast_to
void RegisterPieceOps(OpRegistry& registry);   // slice, pad, concat, split

// The factors of reshaping `from` to `to`, from the left: each step takes the greatest common
// divisor of what is left of the two dims, so [2, 1600] to [2, 25, 64] is (a)(b c) to (a)(b)(c).
// Where nothing is common the rest up to the next common boundary is replicated, each dim for
// itself.
ShardingRule ReshapeRule(const Shape& from, const Shape& to);

// Copies `size` elements from in, starting at `from` in steps of `step` (may be negative), to out,
// starting at `to`. Views have the same dtype.
void CopyBox(const TensorView& in, const Shape& from, const Shape& step, const TensorView& out,
             const Shape& to, const Shape& size);

}  // namespace shardc
