// Memory of the arena that is free while an instruction runs, lent to it.
#pragma once

#include <cstdint>
#include <span>

#include "ir/program.h"
#include "passes/plan_memory.h"

namespace shardc {

// Scratch begins at a multiple of this in the arena, as kernels expect of work memory.
inline constexpr int64_t kScratchAlignment = 256;
// Less is not worth a buffer: a backend has it for all its kernels together anyway.
inline constexpr int64_t kLeastScratch = int64_t{1} << 20;

// Gives each instruction whose op can use memory besides its operands (OpDef::scratch_bytes) the
// largest stretch of the arena in which nothing of `placed` is needed while it runs, and of that no
// more than the op can use. `placed`: all that lies in the arena. Nothing is moved, and the arena
// does not grow.
void LendScratch(Program& program, std::span<const MemoryRequest> placed);

}  // namespace shardc
