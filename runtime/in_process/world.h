// What the ranks of an in-process world share: the first failure, and for each group a board, a
// barrier, doorbells and mailboxes. Ranks hold it by shared_ptr, so it outlives a rank that fails.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/in_process/call.h"

namespace shardc::in_process {

inline constexpr size_t kCacheLine = 64;
// Calls whose send bytes per rank fit travel by value on the board, with one barrier instead of
// two.
inline constexpr int64_t kEagerBytes = 4096;

// A word to wait on. The low bits say that waiting may be in vain, the rest counts events; being
// one word, "it happened" and "it never will" are decided once, for all ranks.
class alignas(kCacheLine) Signal {
 public:
  static constexpr uint32_t kFailed = 1;  // the world failed
  static constexpr uint32_t kLeft = 2;    // a rank left the group
  static constexpr uint32_t kFlags = kFailed | kLeft;
  static constexpr uint32_t kStep = 4;

  uint32_t Load() const { return word_.load(std::memory_order_acquire); }
  // Counts one event, whatever the flags.
  void Ring();
  // Counts one event unless a flag is up.
  bool RingUnlessFlagged();
  void Raise(uint32_t flags);
  // Returns the word once it differs from `old`: spins that many times, then sleeps.
  uint32_t WaitChange(uint32_t old, int spins) const;

 private:
  std::atomic<uint32_t> word_{0};
};

struct Group;

class World {
 public:
  explicit World(int num_ranks);

  struct Failure {
    int rank = 0;  // of the world
    std::string message;
    const Group* mismatch = nullptr;  // the group whose calls do not agree, if that is the failure
  };

  // Records the failure unless there is one, and wakes every rank of every group.
  void Fail(Failure failure) noexcept;
  // Throws the recorded failure as a rank of `group` sees it. There must be one.
  [[noreturn]] void ThrowFailure(const Group* group) const;
  // Makes the group wake up on failures, including one that is already there.
  void Register(const std::shared_ptr<Group>& group);

  // How often to look before sleeping: never when the ranks outnumber the cores.
  int spins() const { return spins_; }

 private:
  const int spins_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::vector<std::weak_ptr<Group>> groups_;
};

// One call of one rank. There are two per rank, used in turn: by the time a rank writes one again,
// all ranks have been through the barrier of the call between, so nobody still reads it.
struct alignas(kCacheLine) Post {
  Call call;
  std::shared_ptr<Group> child;  // kSplit: the new group, posted by its first rank
  alignas(kCacheLine) std::array<std::byte, kEagerBytes> eager;
};

// A message under way, the sender's until a receiver takes it from the mailbox, and again when it
// is taken.
struct Letter {
  enum State : uint32_t { kPosted, kCopying, kTaken };
  Transfer transfer;
  std::atomic<uint32_t> state{kPosted};
};

// From one rank to another, the oldest first.
class alignas(kCacheLine) Mailbox {
 public:
  void Post(Letter* letter);
  // Takes the oldest letter out, to be copied, if `agrees` says so; null if there is none. What
  // does not agree stays, so that the sender fails too: its transfer goes to `refused`.
  template <typename Agrees>
  Letter* Take(const Agrees& agrees, std::optional<Transfer>& refused);
  // Whether the letter was there still.
  bool Remove(const Letter* letter);

 private:
  std::mutex mutex_;
  std::deque<Letter*> letters_;
};

template <typename Agrees>
Letter* Mailbox::Take(const Agrees& agrees, std::optional<Transfer>& refused) {
  std::lock_guard lock(mutex_);
  if (letters_.empty()) return nullptr;
  Letter* letter = letters_.front();
  if (!agrees(letter->transfer)) {
    refused = letter->transfer;
    return nullptr;
  }
  letter->state.store(Letter::kCopying, std::memory_order_relaxed);
  letters_.pop_front();
  return letter;
}

struct alignas(kCacheLine) RankState {
  std::array<Post, 2> posts;
  Signal doorbell;                      // a mailbox from or to this rank changed
  std::atomic<uint64_t> collective{0};  // the number of collectives this rank has begun
  std::atomic<bool> left{false};
};

struct Group {
  Group(std::shared_ptr<World> world, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks.size()); }
  Mailbox& mailbox(int from, int to) { return mailboxes[from * world_ranks.size() + to]; }
  const Post& post(int rank, uint64_t collective) const {
    return ranks[rank].posts[collective % 2];
  }

  // Waits until all ranks are here. Throws if the world fails or a rank leaves first: then it
  // throws on all ranks, or on none.
  void OpenBarrier();
  // Waits until all ranks are here, who are sure to come. Never throws: a rank that left early
  // would free buffers that its peers still use.
  void CloseBarrier();

  void Raise(uint32_t flags);
  void Leave(int rank);
  // Throws if flags of the group (as read from a signal) say that a collective is in vain.
  void ThrowIfFlagged(uint32_t flags);
  [[noreturn]] void FailLeft(int rank);
  // Records a mismatch and throws it.
  [[noreturn]] void FailMismatch(int rank, const std::string& message);
  std::string Name() const;  // "the group of ranks [0, 2]"

  const std::shared_ptr<World> world;
  const std::vector<int> world_ranks;
  std::vector<RankState> ranks;
  std::vector<Mailbox> mailboxes;
  alignas(kCacheLine) std::atomic<int> arrived{0};
  Signal epoch;
  alignas(kCacheLine) std::atomic<int> in_exchange{0};  // ranks that wait for a message
};

}  // namespace shardc::in_process
