// What a rank puts on the group's board when it calls: enough to see whether the ranks agree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/communicator.h"

namespace shardc::in_process {

enum class CallKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kBarrier,
  kSplit,
};

struct Call {
  CallKind kind = CallKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;  // kSum where there is none
  int root = 0;                  // 0 where there is none
  std::vector<Buffers> buffers;
  int color = 0, key = 0;  // kSplit; may differ between ranks
};

// Whether two ranks may make these calls together: equal but for pointers, color and key.
bool Agree(const Call& a, const Call& b);

// "all_reduce(sum) of 1024 f32".
std::string Describe(const Call& call);
// Names two calls that do not agree; of long lists of buffers only where they begin to differ.
std::string DescribeDifference(int rank_a, const Call& a, int rank_b, const Call& b);
std::string Describe(const Transfer& transfer, int group_rank_of_peer);

}  // namespace shardc::in_process
