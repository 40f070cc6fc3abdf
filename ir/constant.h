// Values that are known.
#pragma once

#include "ir/graph.h"

namespace shardc {

// The data of the `constant` op that makes the value; null where none does.
const HostTensor* ConstantOf(const Value* value);

}  // namespace shardc
