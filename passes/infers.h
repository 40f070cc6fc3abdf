// Whether an op can be run on other tensors than its own.
#pragma once

#include <span>

#include "ir/op_def.h"

namespace shardc {

// Whether the op takes such operands and makes such results of them, shardings aside.
bool Infers(const OpDef& def, std::span<const TensorType> operands, const Attributes& attrs,
            std::span<const TensorType> results);

}  // namespace shardc
