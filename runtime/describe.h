// How errors of a run name what failed.
#pragma once

#include <string>

#include "ir/program.h"

namespace shardc {

// "rank 1, instruction 37 (matmul at transformer.h.0.mlp.c_fc)"
std::string DescribeInstruction(const Program& program, size_t instruction);

// The first NaN among n elements of a floating dtype; -1 when there is none.
int64_t FindNan(const std::byte* data, DType dtype, int64_t n);

// E4005, for a NaN that an instruction made at that element of that result.
[[noreturn]] void ThrowNan(const Program& program, size_t instruction, int result, int64_t at);

}  // namespace shardc
