// Tensors of one type or layout as tensors of another.
#pragma once

#include "ir/host_tensor.h"

namespace shardc {

// The numbers of `t`, by way of doubles, rounded to the type where it has not all of them.
HostTensor Converted(const HostTensor& t, DType to);

// The matrix [n, m] of one [m, n].
HostTensor Transposed(const HostTensor& matrix);

}  // namespace shardc
