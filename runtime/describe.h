// How errors of a run name what failed.
#pragma once

#include <string>

#include "ir/describe_instruction.h"
#include "ir/diagnostic.h"
#include "ir/program.h"

namespace shardc {

// Runs a step, counted from 1, whose errors name it.
template <typename Body>
void NameStep(int64_t step, const Body& body) {
  try {
    body();
  } catch (const Diagnostic& d) {
    throw d.In(StrCat("step ", step));
  }
}

// The first NaN among n elements of a floating dtype; -1 when there is none.
int64_t FindNan(const std::byte* data, DType dtype, int64_t n);

// E4005, for a NaN that an instruction made at that element of that result.
[[noreturn]] void ThrowNan(const Program& program, size_t instruction, int result, int64_t at);

}  // namespace shardc
