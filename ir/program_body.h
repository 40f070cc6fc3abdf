// The steps of ParseProgram; for ir/program_*.cc only.
#pragma once

#include <string>
#include <string_view>

#include "ir/program.h"

namespace shardc {

// A program that does not hold together: Diagnostic E3004.
[[noreturn]] void ProgramBoundsError(const std::string& where, std::string what);

// Fills all of `program` but version, mesh and rank, which are there already. Checks what one must
// know to build the structures: indices into the tables, enum values, axis counts and shapes.
// Throws Diagnostic E3001 or E3004.
void DecodeBody(std::string_view body, const std::string& where, Program& program);

// Checks the decoded program. Throws Diagnostic E3004.
void CheckProgramBounds(const Program& program, const std::string& where);

}  // namespace shardc
