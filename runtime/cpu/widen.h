// Half types where only f32 has a kernel.
#pragma once

#include <memory>

#include "runtime/cpu/bind.h"

namespace shardc::cpu {

// The kernel that `make` has for the instruction in f32, on operands that are widened to it first
// where they are f16 or bf16; such results are rounded once. The copies are in memory that all
// these kernels of a thread share. Null where no operand or result is of such a type, or f32 has no
// kernel either.
std::unique_ptr<Kernel> MakeWidened(const KernelRequest& r, Factory make);

}  // namespace shardc::cpu
