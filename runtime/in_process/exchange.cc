// Point to point: the receiver copies from the sender's buffer when it finds the letter in the
// mailbox.
#include <algorithm>
#include <cstring>
#include <optional>
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
    Pending pending;
    try {
      for (const Transfer& t : transfers) {
        if (t.kind == Transfer::Kind::kSend) {
          pending.sends.push_back(PostLetter(t));
        } else {
          pending.receives.push_back(&t);
        }
      }
      Await(pending);
    } catch (...) {
      for (int64_t letter : pending.sends) TakeBack(letter);
      throw;
    }
  });
}

int64_t InProcessCommunicator::BeginSend(const Transfer& send) {
  int64_t letter = 0;
  Guarded([&] {
    CheckSend(send, rank_, size());
    if (group_->ranks[rank_].doorbell.Load() & Signal::kFailed) {
      group_->world->ThrowFailure(group_.get());
    }
    letter = PostLetter(send);
  });
  return letter;
}

void InProcessCommunicator::FinishSend(int64_t ticket) {
  Guarded([&] {
    SHARDC_CHECK(letters_.contains(ticket), "no such send is under way");
    Pending pending{{ticket}, {}};
    try {
      Await(pending);
    } catch (...) {
      TakeBack(ticket);
      throw;
    }
  });
}

int64_t InProcessCommunicator::PostLetter(const Transfer& send) {
  const int64_t number = posted_++;
  auto& letter = letters_[number] = std::make_unique<Letter>();
  letter->transfer = send;
  group_->mailbox(rank_, send.peer).Post(letter.get());
  group_->ranks[send.peer].doorbell.Ring();
  return number;
}

void InProcessCommunicator::Await(Pending& pending) {
  const Signal& doorbell = group_->ranks[rank_].doorbell;
  std::vector<uint64_t> begun(size());
  const WaitingForMessage waiting(group_->in_exchange);
  if (doorbell.Load() & Signal::kFailed) group_->world->ThrowFailure(group_.get());
  for (;;) {
    // What a peer did before it began a collective or left is visible to the Advance after these
    // two reads: so when that does not help, nothing will.
    const uint32_t word = doorbell.Load();
    for (int r = 0; r < size(); ++r) {
      begun[r] = group_->ranks[r].collective.load(std::memory_order_seq_cst);
    }
    const bool moved = Advance(pending);
    if (pending.done()) return;
    if (moved) continue;
    ThrowIfHopeless(pending, word & Signal::kFlags, begun);
    doorbell.WaitChange(word, group_->world->spins());
  }
}

bool InProcessCommunicator::Advance(Pending& pending) {
  const size_t before = pending.sends.size() + pending.receives.size();
  std::vector<int> waits;  // peers from whom the next message is not there
  std::erase_if(pending.receives, [&](const Transfer* t) {
    if (std::ranges::find(waits, t->peer) != waits.end()) return false;
    if (Receive(*t)) return true;
    waits.push_back(t->peer);
    return false;
  });
  std::erase_if(pending.sends, [&](int64_t letter) {
    if (!IsTaken(letter)) return false;
    letters_.erase(letter);
    return true;
  });
  return pending.sends.size() + pending.receives.size() != before;
}

bool InProcessCommunicator::Receive(const Transfer& t) {
  std::optional<Transfer> refused;
  // From here to kTaken the sender keeps its buffer, even if the world fails.
  Letter* letter =
      group_->mailbox(t.peer, rank_)
          .Take(
              [&](const Transfer& sent) { return sent.count == t.count && sent.dtype == t.dtype; },
              refused);
  if (refused) {
    const int me = group_->world_ranks[rank_], other = group_->world_ranks[t.peer];
    group_->FailMismatch(rank_, StrCat("rank ", me, " calls ", Describe(t, other), ", rank ", other,
                                       " calls ", Describe(*refused, me)));
  }
  if (!letter) return false;
  if (t.count > 0) std::memcpy(t.recv, letter->transfer.send, t.bytes());
  letter->state.store(Letter::kTaken, std::memory_order_release);
  group_->ranks[t.peer].doorbell.Ring();
  return true;
}

bool InProcessCommunicator::IsTaken(int64_t letter) const {
  return letters_.at(letter)->state.load(std::memory_order_acquire) == Letter::kTaken;
}

void InProcessCommunicator::TakeBack(int64_t number) noexcept {
  auto it = letters_.find(number);
  if (it == letters_.end()) return;
  Letter& letter = *it->second;
  if (!group_->mailbox(rank_, letter.transfer.peer).Remove(&letter)) {
    while (letter.state.load(std::memory_order_acquire) != Letter::kTaken) {
      std::this_thread::yield();
    }
  }
  letters_.erase(it);
}

void InProcessCommunicator::ThrowIfHopeless(const Pending& pending, uint32_t flags,
                                            const std::vector<uint64_t>& begun) {
  if (flags & Signal::kFailed) group_->world->ThrowFailure(group_.get());
  for (int64_t letter : pending.sends) {
    const Transfer& t = letters_.at(letter)->transfer;
    ThrowIfHopeless(t, flags, begun[t.peer]);
  }
  for (const Transfer* t : pending.receives) ThrowIfHopeless(*t, flags, begun[t->peer]);
}

void InProcessCommunicator::ThrowIfHopeless(const Transfer& t, uint32_t flags, uint64_t begun) {
  if ((flags & Signal::kLeft) && group_->ranks[t.peer].left.load(std::memory_order_seq_cst)) {
    group_->FailLeft(t.peer);
  }
  // The peer waits for this rank in a collective, this rank for the peer in a message.
  if (begun > collective_) {
    const int me = group_->world_ranks[rank_], other = group_->world_ranks[t.peer];
    group_->FailMismatch(
        rank_, StrCat("rank ", me, " calls ", Describe(t, other), ", rank ", other, " calls ",
                      Describe(group_->post(t.peer, collective_).call)));
  }
}

}  // namespace shardc::in_process
