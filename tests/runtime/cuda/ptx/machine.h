// A GPU that executes PTX: blocks one after the other, of a block warp after warp up to the next
// barrier, of a warp the lanes that are furthest behind. It is stricter than a GPU: each access
// must lie in what was allocated, aligned to its size; lanes that exchange something must all come
// to the same instruction; shared and local memory are NaNs when a block begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/runtime/cuda/ptx/memory.h"
#include "tests/runtime/cuda/ptx/module.h"

namespace shardc::ptx {

struct Grid {
  int64_t blocks = 1, threads = 1, shared_bytes = 0;  // shared: dynamic
};

class TrafficMeter;

// `params` as the kernel finds them in its parameter memory. `meter`: counts what is executed
// (traffic.h); may be null. Throws std::runtime_error with the kernel, the line and the instruction
// for what a GPU does not do or what is undefined there.
void Execute(const Kernel& kernel, const Grid& grid, std::span<std::byte> params,
             DeviceMemory& memory, TrafficMeter* meter = nullptr);

}  // namespace shardc::ptx
