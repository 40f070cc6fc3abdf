// The ranks of a world as one of them sees it: who they are, and whether it has failed.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/mpi/mesh.h"
#include "runtime/mpi/outbox.h"
#include "runtime/mpi/wire.h"
#include "runtime/processes.h"

namespace shardc::mpi {

struct Failure {
  WorldFailure what;
  int mismatch_group = -1;  // the group whose calls disagree, or -1
  int reporter = 0;         // who found out
};

// Short enough to need no memory of its own.
inline constexpr std::string_view kNoReason = "out of memory";

// The text, or kNoReason where there is no memory for it, or it is empty.
std::string ReasonOf(std::string_view text) noexcept;

class World {
 public:
  // `on_failure` is called once, from any thread, and must not block.
  World(Wire& wire, int rank, std::vector<Socket> peers, std::function<void()> on_failure);
  // Tells the others that this process leaves in peace, or has failed.
  ~World();

  Wire& wire() { return wire_; }
  Outbox& outbox() { return outbox_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // The first failure counts, also one of another rank that has arrived and was not heard of yet;
  // it is told to all others.
  void Fail(Failure failure) noexcept;
  // Returns when all that had arrived from the others is known here, however late the thread that
  // listens gets a processor.
  void CatchUp();
  // When this rank has failed by itself: returns when no lower rank can have done so at the same
  // time without its being known here, or after `patience`.
  void Settle(std::chrono::seconds patience);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::optional<WorldFailure> failure() const;
  // Throws CallMismatch to the ranks of the group that disagrees, Aborted to the others.
  [[noreturn]] void ThrowFailure(int group, const std::vector<int>& members) const;

 private:
  // Watches its own socket and then the others' until told to stop; answers those who wait to catch
  // up.
  void Watch(std::vector<pollfd>& sockets);
  // Returns whether the socket is still of use.
  bool Hear(int peer);
  // Returns whether it was the first.
  bool Note(Failure failure, bool own = false);

  Wire& wire_;
  const int rank_;
  const std::vector<Socket> peers_;
  const std::function<void()> on_failure_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
  bool told_ = false;          // the others hear that this rank has failed by itself
  std::vector<bool> settled_;  // by rank: it has said what it has to say of that
  std::condition_variable settles_;
  std::mutex saying_;  // held while something is written to the others
  std::mutex asking_;  // held from a question to its answer
  Socket to_watcher_, of_watcher_;
  // Last: their threads use the others.
  std::thread watcher_;
  Outbox outbox_;
};

}  // namespace shardc::mpi
