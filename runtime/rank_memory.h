// Where the buffers of a rank lie, in the host's memory or a GPU's.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/program.h"
#include "runtime/communicator.h"
#include "runtime/kernel.h"

namespace shardc {

struct RankMemory {
  std::byte* arena = nullptr;
  std::byte* constants = nullptr;
  std::map<std::pair<Space, std::string>, std::byte*> named;  // states and inputs
};

// By buffer of the program.
std::vector<std::byte*> AddressesOf(const Program& program, const RankMemory& memory);

// What a collective instruction hands to its communicator, by pair of operand and result; of a
// transfer, by buffer: either `send` or `recv` is null. `addresses`: by buffer.
std::vector<Buffers> BuffersOf(const Program& program, const Instruction& instruction,
                               std::span<std::byte* const> addresses);

// A buffer as kernels see it.
TensorView ViewOf(const Buffer& buffer, std::byte* data);

}  // namespace shardc
