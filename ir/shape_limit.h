// How large a tensor may be.
#pragma once

#include <cstdint>

#include "ir/sharding.h"

namespace shardc {

// Far above any tensor, and far below what overflows when sizes are padded, rounded and added up.
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 51;

// Whether a tensor of this shape, whose dims are not negative, would have more. A dim of 0 does not
// hide the others: strides are products of them.
bool TooLarge(DType dtype, const Shape& shape);

}  // namespace shardc
