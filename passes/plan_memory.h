// Places the arena buffers of a program.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace shardc {

// Memory that is in use from one instruction to another, both included.
struct MemoryRequest {
  int64_t bytes = 0;
  int first = 0, last = 0;
  int64_t offset = -1;  // the answer: a multiple of kBufferAlignment
};

// Gives every request an offset so that no two that live at the same time overlap, and returns the
// bytes in all. Of a few greedy orders (by time, with best and first fit; the largest first) the
// smallest result is taken; which are tried depends on the number of requests and on how much is
// left to be had, so that time grows near linearly with many.
int64_t PlanMemory(std::vector<MemoryRequest>& requests);

}  // namespace shardc
