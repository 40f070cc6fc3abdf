// Whole files in and out, with diagnostics.
#pragma once

#include <string>

namespace shardc {

// Throws Diagnostic E5001 when the file cannot be read.
std::string ReadFile(const std::string& path);
// Throws Diagnostic E5003 or E5004 when it cannot be written in full.
void WriteFile(const std::string& path, const std::string& bytes);

}  // namespace shardc
