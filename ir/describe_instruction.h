// How messages name an instruction.
#pragma once

#include <string>

#include "ir/program.h"

namespace shardc {

// "rank 1, instruction 37 (matmul at transformer.h.0.mlp.c_fc, backward)". `program` need not be
// checked.
std::string DescribeInstruction(const Program& program, size_t instruction);
// Of another rank, which runs the same body.
std::string DescribeInstruction(const Program& program, size_t instruction, int64_t rank);

}  // namespace shardc
