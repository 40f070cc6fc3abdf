#include "runtime/in_process/in_process_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "ir/diagnostic.h"
#include "runtime/in_process/arguments.h"
#include "runtime/in_process/reduce.h"

namespace shardc::in_process {
namespace {

const std::byte* At(const void* base, int64_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
std::byte* At(void* base, int64_t bytes) { return static_cast<std::byte*>(base) + bytes; }

void Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

InProcessCommunicator::InProcessCommunicator(std::shared_ptr<Group> group, int rank)
    : group_(std::move(group)), rank_(rank) {
  sources_.reserve(size());  // so that nothing can throw while peers use our buffers
  destinations_.reserve(size());
}

InProcessCommunicator::~InProcessCommunicator() {
  if (std::uncaught_exceptions() > 0) Abort("an exception destroyed its communicator");
  while (!letters_.empty()) TakeBack(letters_.begin()->first);
  group_->Leave(rank_);
}

void InProcessCommunicator::Poll() {
  if (group_->epoch.Load() & Signal::kFailed) group_->world->ThrowFailure(group_.get());
}

void InProcessCommunicator::Abort(const std::string& reason) noexcept {
  const int rank = group_->world_ranks[rank_];
  try {
    group_->world->Fail({rank, reason});
  } catch (const std::bad_alloc&) {
    group_->world->Fail({rank, "out of memory"});  // short enough to need none
  }
}

Post& InProcessCommunicator::StartPost(CallKind kind, ReduceOp op, int root) {
  // Before writing: after a failure a peer may still be reading an old post.
  const uint32_t flags = group_->epoch.Load() & Signal::kFlags;
  if (flags != 0) group_->ThrowIfFlagged(flags);
  Post& post = group_->ranks[rank_].posts[collective_ % 2];
  post.call.kind = kind;
  post.call.op = op;
  post.call.root = root;
  post.call.color = post.call.key = 0;
  post.call.buffers.clear();
  post.child.reset();
  return post;
}

bool InProcessCommunicator::Start(CallKind kind, ReduceOp op, int root,
                                  std::span<const Buffers> buffers, int64_t send_multiple) {
  Post& post = StartPost(kind, op, root);
  post.call.buffers.assign(buffers.begin(), buffers.end());

  int64_t total = 0;
  for (const Buffers& b : buffers) total += RoundUp(send_multiple * b.bytes(), 8);
  const bool eager = total <= kEagerBytes;
  if (eager && (kind != CallKind::kBroadcast || root == rank_)) {
    std::byte* at = post.eager.data();
    for (Buffers& b : post.call.buffers) {
      Copy(at, b.send, send_multiple * b.bytes());
      b.send = at;
      at += RoundUp(send_multiple * b.bytes(), 8);
    }
  }
  Meet();
  return eager;
}

void InProcessCommunicator::Meet() {
  group_->ranks[rank_].collective.store(++collective_, std::memory_order_seq_cst);
  if (group_->in_exchange.load(std::memory_order_seq_cst) > 0) {
    // Ranks that wait for a message from this one have to see that it will never come.
    for (RankState& rank : group_->ranks) rank.doorbell.Ring();
  }
  group_->OpenBarrier();
  const Call& first = group_->post(0, collective_ - 1).call;
  for (int r = 1; r < size(); ++r) {
    const Call& other = group_->post(r, collective_ - 1).call;
    if (!Agree(first, other)) {
      group_->FailMismatch(
          r, DescribeDifference(group_->world_ranks[0], first, group_->world_ranks[r], other));
    }
  }
}

void InProcessCommunicator::Finish(bool eager) {
  if (!eager) group_->CloseBarrier();
}

void InProcessCommunicator::AllReduce(std::span<const Buffers> buffers, ReduceOp op) {
  Guarded([&] {
    CheckBuffers(buffers, 1, 1, 0);
    CheckReduction(buffers, op);
    const bool eager = Start(CallKind::kAllReduce, op, 0, buffers, 1);
    if (eager) {
      // Cheaper than meeting again: every rank reduces everything, in the same order.
      for (size_t i = 0; i < buffers.size(); ++i) ReduceToMe(i, 0, buffers[i], op);
    } else {
      // All buffers in a row are cut evenly; cuts inside a buffer fall on cache lines.
      int64_t total = 0;
      for (const Buffers& b : buffers) total += b.bytes();
      const int64_t low = total / size() * rank_ + total % size() * rank_ / size();
      const int64_t high = total / size() * (rank_ + 1) + total % size() * (rank_ + 1) / size();
      int64_t start = 0;
      for (size_t i = 0; i < buffers.size(); ++i) {
        const int64_t bytes = buffers[i].bytes();
        auto cut = [&](int64_t at) {
          const int64_t inside = std::clamp<int64_t>(at - start, 0, bytes);
          const auto line = static_cast<int64_t>(kCacheLine);
          return (inside == bytes ? bytes : inside / line * line) / DTypeSize(buffers[i].dtype);
        };
        ReduceToAll(i, cut(low), cut(high), op);
        start += bytes;
      }
    }
    Finish(eager);
  });
}

void InProcessCommunicator::ReduceToAll(size_t i, int64_t begin, int64_t end, ReduceOp op) {
  if (begin == end) return;
  sources_.clear();
  destinations_.clear();
  for (int r = 0; r < size(); ++r) {
    sources_.push_back(Posted(r, i).send);
    destinations_.push_back(Posted(r, i).recv);
  }
  Reduce(sources_, destinations_, begin, end, Posted(0, i).dtype, op);
}

void InProcessCommunicator::ReduceToMe(size_t i, int64_t offset, const Buffers& mine, ReduceOp op) {
  if (mine.count == 0) return;
  sources_.clear();
  for (int r = 0; r < size(); ++r) {
    sources_.push_back(At(Posted(r, i).send, offset * DTypeSize(mine.dtype)));
  }
  Reduce(sources_, {&mine.recv, 1}, 0, mine.count, mine.dtype, op);
}

void InProcessCommunicator::ReduceScatter(std::span<const Buffers> buffers, ReduceOp op) {
  Guarded([&] {
    CheckBuffers(buffers, size(), 1, rank_);
    CheckReduction(buffers, op);
    const bool eager = Start(CallKind::kReduceScatter, op, 0, buffers, size());
    for (size_t i = 0; i < buffers.size(); ++i) {
      ReduceToMe(i, rank_ * buffers[i].count, buffers[i], op);
    }
    Finish(eager);
  });
}

void InProcessCommunicator::AllGather(std::span<const Buffers> buffers) {
  Guarded([&] {
    CheckBuffers(buffers, 1, size(), -rank_);
    const bool eager = Start(CallKind::kAllGather, ReduceOp::kSum, 0, buffers, 1);
    for (size_t i = 0; i < buffers.size(); ++i) {
      const int64_t bytes = buffers[i].bytes();
      // Each begins with its own, so that not all read from the same rank at a time.
      for (int k = 0; k < size(); ++k) {
        const int from = (rank_ + k) % size();
        if (bytes > 0) Copy(At(buffers[i].recv, from * bytes), Posted(from, i).send, bytes);
      }
    }
    Finish(eager);
  });
}

void InProcessCommunicator::AllToAll(std::span<const Buffers> buffers) {
  Guarded([&] {
    CheckBuffers(buffers, size(), size(), kNeverInPlace);
    const bool eager = Start(CallKind::kAllToAll, ReduceOp::kSum, 0, buffers, size());
    for (size_t i = 0; i < buffers.size(); ++i) {
      const int64_t bytes = buffers[i].bytes();
      for (int k = 0; k < size(); ++k) {
        const int from = (rank_ + k) % size();
        if (bytes == 0) continue;
        Copy(At(buffers[i].recv, from * bytes), At(Posted(from, i).send, rank_ * bytes), bytes);
      }
    }
    Finish(eager);
  });
}

void InProcessCommunicator::Broadcast(void* buffer, int64_t count, DType dtype, int root) {
  Guarded([&] {
    const Buffers one{buffer, buffer, count, dtype};
    CheckBuffers({&one, 1}, 1, 1, 0);
    CheckRoot(root, size());
    const bool eager = Start(CallKind::kBroadcast, ReduceOp::kSum, root, {&one, 1}, 1);
    if (rank_ != root) Copy(buffer, Posted(root, 0).send, one.bytes());
    Finish(eager);
  });
}

void InProcessCommunicator::Barrier() {
  Guarded([&] { Finish(Start(CallKind::kBarrier, ReduceOp::kSum, 0, {}, 0)); });
}

std::unique_ptr<Communicator> InProcessCommunicator::Split(int color, int key) {
  std::unique_ptr<Communicator> out;
  Guarded([&] {
    Post& mine = StartPost(CallKind::kSplit, ReduceOp::kSum, 0);
    mine.call.color = color;
    mine.call.key = key;
    Meet();
    std::vector<std::pair<int, int>> members;  // (key, rank)
    for (int r = 0; r < size(); ++r) {
      const Call& call = group_->post(r, collective_ - 1).call;
      if (call.color == color) members.emplace_back(call.key, r);
    }
    std::sort(members.begin(), members.end());

    Post& result = StartPost(CallKind::kSplit, ReduceOp::kSum, 0);
    if (color >= 0 && members[0].second == rank_) {
      std::vector<int> world_ranks;
      for (auto [_, r] : members) world_ranks.push_back(group_->world_ranks[r]);
      result.child = std::make_shared<Group>(group_->world, std::move(world_ranks));
      group_->world->Register(result.child);
    }
    Meet();
    if (color < 0) return;
    const auto me = std::find(members.begin(), members.end(), std::pair(key, rank_));
    out = std::make_unique<InProcessCommunicator>(
        group_->post(members[0].second, collective_ - 1).child,
        static_cast<int>(me - members.begin()));
  });
  return out;
}

}  // namespace shardc::in_process
