// Whether the arguments of a call are right by themselves, for every communicator. What is wrong
// throws std::invalid_argument.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "runtime/communicator.h"

namespace shardc::in_process {

inline constexpr int64_t kNeverInPlace = std::numeric_limits<int64_t>::min();

// Buffers whose send and recv have these multiples of `count`; recv may be send + in_place_offset *
// count.
void CheckBuffers(std::span<const Buffers> buffers, int64_t send_multiple, int64_t recv_multiple,
                  int64_t in_place_offset);
void CheckReduction(std::span<const Buffers> buffers, ReduceOp op);
void CheckRoot(int root, int size);
void CheckTransfers(std::span<const Transfer> transfers, int rank, int size);
// Of BeginSend.
void CheckSend(const Transfer& send, int rank, int size);

}  // namespace shardc::in_process
