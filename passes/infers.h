// Ops on other tensors than their own.
#pragma once

#include <span>

#include "ir/op_def.h"

namespace shardc {

// Whether the op takes such operands and makes such results of them, shardings aside.
bool Infers(const OpDef& def, std::span<const TensorType> operands, const Attributes& attrs,
            std::span<const TensorType> results);

// The attributes of the op on parts of its operands: its results have these types, and the first of
// them begins at `start` of its dim `dim` (-1: it is no part).
Attributes AttributesOfPart(const Op& op, std::span<const TensorType> results, int dim,
                            int64_t start);

}  // namespace shardc
