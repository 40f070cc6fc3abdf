// Memory that cannot be had, however a library says it.
#pragma once

#include <exception>
#include <string>

#include "ir/diagnostic.h"

namespace shardc {

// Whether it is std::bad_alloc, std::length_error (more than a container can hold), or a
// std::system_error for want of memory or threads.
bool IsNoMemory(const std::exception& error);

// Diagnostic E6201 (exit 6).
Diagnostic NoMemory(const std::string& where);

// What is said of it where not even the Diagnostic can be had.
inline constexpr const char* kNoMemory =
    "E6201: out of memory\n  run fewer ranks on this machine, or a smaller batch";

}  // namespace shardc
