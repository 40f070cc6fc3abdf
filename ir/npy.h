// NumPy's .npy files.
#pragma once

#include <string>

#include "ir/host_tensor.h"

namespace shardc {

// Versions 1 to 3, little endian, C order; f2 f4 f8 i4 i8 b1 (other integers are converted to i64).
// Throws Diagnostic E5001 (cannot be opened), E5101 (not .npy, truncated, or of a kind that is not
// read).
HostTensor ReadNpy(const std::string& path);

}  // namespace shardc
