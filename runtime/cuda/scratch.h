// Memory of the arena that is lent to an instruction while it runs.
#pragma once

#include <cstdint>

#include "ir/program.h"

namespace shardc::cuda {

// Of work memory.
inline constexpr int64_t kWorkspaceAlignment = 256;

// Of the scratch that the instruction has; 0 where it has none that is aligned as work memory is.
inline int64_t ScratchBytes(const Program& program, const Instruction& instruction) {
  if (instruction.scratch < 0) return 0;
  const Buffer& b = program.buffers[instruction.scratch];
  return b.offset % kWorkspaceAlignment == 0 ? b.bytes : 0;
}

}  // namespace shardc::cuda
