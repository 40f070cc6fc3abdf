// What each PTX instruction does, after the PTX ISA manual of CUDA 13 (sections 9.7.*). Those that
// nvcc makes of our kernels; others are refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/runtime/cuda/ptx/module.h"

namespace shardc::ptx {

class DeviceMemory;

inline constexpr int kLanes = 32;

struct Block {
  DeviceMemory* memory = nullptr;
  std::byte* shared = nullptr;
  int64_t shared_bytes = 0;
  std::byte* params = nullptr;
  int64_t param_bytes = 0;
};

// A lane's copy to shared memory that it has not waited for.
struct BackgroundCopy {
  int lane;
  int64_t group;
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};

struct Warp {
  Block* block = nullptr;
  uint64_t* registers = nullptr;  // slot * kLanes + lane
  std::byte* local = nullptr;     // lane * local_bytes
  int64_t local_bytes = 0;
  uint32_t mask = 0;   // lanes that execute
  uint32_t live = 0;   // lanes that have not returned
  uint32_t carry = 0;  // by lane
  std::vector<BackgroundCopy> copies;
  int64_t committed[kLanes] = {};  // groups of them
  uint64_t* At(int slot) const { return registers + static_cast<int64_t>(slot) * kLanes; }
};

// Sets what is executed. Throws std::runtime_error for an unknown opcode. Branches, returns and
// barriers have no step: the machine does them.
void Decode(Instruction& i);

}  // namespace shardc::ptx
