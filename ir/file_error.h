// Files that the system does not let us read or write.
#pragma once

#include <string>

#include "ir/diagnostic.h"

namespace shardc {

// Diagnostics E5001 and E5003 (E5004: no space is left) for errno `error`.
Diagnostic CannotRead(const std::string& path, int error);
Diagnostic CannotWrite(const std::string& shown, int error);

}  // namespace shardc
