// For tables of attributes by value.
#pragma once

#include <cstddef>

#include "ir/attributes.h"

namespace shardc {

// The same for equal ones. Reads the data of tensors.
size_t HashOf(const Attributes& attrs);
// Of two, in this order.
size_t CombinedHash(size_t first, size_t second);

}  // namespace shardc
