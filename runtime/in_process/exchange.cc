// Point to point: the receiver copies from the sender's buffer when it finds it in the mailbox.
#include <algorithm>
#include <cstring>
#include <thread>

#include "ir/diagnostic.h"
#include "runtime/in_process/arguments.h"
#include "runtime/in_process/in_process_communicator.h"

namespace shardc::in_process {
namespace {

// Counts a rank as waiting for messages while in scope.
class WaitingForMessage {
 public:
  explicit WaitingForMessage(std::atomic<int>& count) : count_(count) {
    count_.fetch_add(1, std::memory_order_seq_cst);
  }
  ~WaitingForMessage() { count_.fetch_sub(1, std::memory_order_seq_cst); }
  WaitingForMessage(const WaitingForMessage&) = delete;
  WaitingForMessage& operator=(const WaitingForMessage&) = delete;

 private:
  std::atomic<int>& count_;
};

}  // namespace

void InProcessCommunicator::Exchange(std::span<const Transfer> transfers) {
  Guarded([&] {
    CheckTransfers(transfers, rank_, size());
    Pending pending{transfers, std::vector<Progress>(transfers.size(), Progress::kWaiting)};
    std::vector<uint64_t> begun(size());
    const Signal& doorbell = group_->ranks[rank_].doorbell;
    if (doorbell.Load() & Signal::kFailed) group_->world->ThrowFailure(group_.get());
    const WaitingForMessage waiting(group_->in_exchange);
    try {
      for (;;) {
        // What a peer did before it began a collective or left is visible to the Advance after
        // these two reads: so when that does not help, nothing will.
        const uint32_t word = doorbell.Load();
        for (int r = 0; r < size(); ++r) {
          begun[r] = group_->ranks[r].collective.load(std::memory_order_seq_cst);
        }
        const bool moved = Advance(pending);
        if (std::ranges::all_of(pending.progress,
                                [](Progress p) { return p == Progress::kDone; })) {
          return;
        }
        if (moved) continue;
        ThrowIfHopeless(pending, word & Signal::kFlags, begun);
        doorbell.WaitChange(word, group_->world->spins());
      }
    } catch (...) {
      Withdraw(pending);
      throw;
    }
  });
}

bool InProcessCommunicator::Advance(Pending& pending) {
  bool moved = false;
  for (size_t i = 0; i < pending.transfers.size(); ++i) {
    const Transfer& t = pending.transfers[i];
    if (pending.progress[i] == Progress::kDone) continue;
    bool first = true;  // of those to or from the same peer
    for (size_t j = 0; j < i && first; ++j) {
      const Transfer& earlier = pending.transfers[j];
      first = pending.progress[j] == Progress::kDone || earlier.peer != t.peer ||
              earlier.kind != t.kind;
    }
    if (first && AdvanceOne(t, pending.progress[i])) moved = true;
  }
  return moved;
}

bool InProcessCommunicator::AdvanceOne(const Transfer& t, Progress& progress) {
  RankState& peer = group_->ranks[t.peer];
  if (t.kind == Transfer::Kind::kSend) {
    Mailbox& box = group_->mailbox(rank_, t.peer);
    if (progress == Progress::kWaiting) {
      box.transfer = t;
      box.state.store(Mailbox::kPosted, std::memory_order_release);
      peer.doorbell.Ring();
      progress = Progress::kPosted;
      return true;
    }
    if (box.state.load(std::memory_order_acquire) != Mailbox::kTaken) return false;
    box.state.store(Mailbox::kEmpty, std::memory_order_relaxed);
    progress = Progress::kDone;
    return true;
  }
  Mailbox& box = group_->mailbox(t.peer, rank_);
  // From here to kTaken the sender keeps its buffer, even if the world fails.
  uint32_t posted = Mailbox::kPosted;
  if (!box.state.compare_exchange_strong(posted, Mailbox::kCopying, std::memory_order_acq_rel)) {
    return false;
  }
  const Transfer sent = box.transfer;
  const bool agree = sent.count == t.count && sent.dtype == t.dtype;
  if (agree && t.count > 0) std::memcpy(t.recv, sent.send, t.count * DTypeSize(t.dtype));
  // What does not agree is given back, so that the sender fails too.
  box.state.store(agree ? Mailbox::kTaken : Mailbox::kPosted, std::memory_order_release);
  if (!agree) {
    const int me = group_->world_ranks[rank_], other = group_->world_ranks[t.peer];
    group_->FailMismatch(rank_, StrCat("rank ", me, " calls ", Describe(t, other), ", rank ", other,
                                       " calls ", Describe(sent, me)));
  }
  peer.doorbell.Ring();
  progress = Progress::kDone;
  return true;
}

void InProcessCommunicator::Withdraw(Pending& pending) noexcept {
  for (size_t i = 0; i < pending.transfers.size(); ++i) {
    if (pending.progress[i] != Progress::kPosted) continue;
    Mailbox& box = group_->mailbox(rank_, pending.transfers[i].peer);
    uint32_t state = Mailbox::kPosted;
    if (box.state.compare_exchange_strong(state, Mailbox::kEmpty, std::memory_order_acq_rel)) {
      continue;
    }
    while (box.state.load(std::memory_order_acquire) == Mailbox::kCopying) {
      std::this_thread::yield();
    }
  }
}

void InProcessCommunicator::ThrowIfHopeless(const Pending& pending, uint32_t flags,
                                            const std::vector<uint64_t>& begun) {
  if (flags & Signal::kFailed) group_->world->ThrowFailure(group_.get());
  for (size_t i = 0; i < pending.transfers.size(); ++i) {
    const Transfer& t = pending.transfers[i];
    if (pending.progress[i] == Progress::kDone) continue;
    if ((flags & Signal::kLeft) && group_->ranks[t.peer].left.load(std::memory_order_seq_cst)) {
      group_->FailLeft(t.peer);
    }
    // The peer waits for this rank in a collective, this rank for the peer in a message.
    if (begun[t.peer] > collective_) {
      const int me = group_->world_ranks[rank_], other = group_->world_ranks[t.peer];
      group_->FailMismatch(
          rank_, StrCat("rank ", me, " calls ", Describe(t, other), ", rank ", other, " calls ",
                        Describe(group_->post(t.peer, collective_).call)));
    }
  }
}

}  // namespace shardc::in_process
