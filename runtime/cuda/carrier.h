// What carries bytes between the ranks of the CUDA backend.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/program.h"
#include "runtime/communicator.h"
#include "runtime/cuda/device.h"

namespace shardc::cuda {

// A rank's part in a collective: its buffers (device memory), and the stream on which it is due.
struct Member {
  int64_t rank = 0;
  Stream stream = nullptr;
  std::vector<Buffers> buffers;
};

// Destroyed after the executor that uses it: no graph may hold its collectives any more.
class Carrier {
 public:
  virtual ~Carrier() = default;
  // Device memory, of the current GPU, that collectives reach without copies of their own; or null
  // on all ranks, where the device's own must serve: one collective must not mix the two.
  // Collective; waits. Freed before the carrier, when no graph uses it any more.
  virtual std::byte* Allocate(int64_t /*bytes*/) { return nullptr; }
  virtual void Free(std::byte* /*p*/) noexcept {}
  // Enqueues a collective for the members of one group that this process thread drives, in group
  // order; of a transfer sender, then receiver. It begins after what each member's stream was
  // given, and what these streams are given later begins after it. Never waits.
  virtual void Enqueue(const Collective& c, std::span<const Member> members) = 0;
  // Whether all ranks say so. Collective; waits.
  virtual bool All(bool mine) { return mine; }
  // Gives every rank what rank `root` has. Collective; waits.
  virtual void Share(std::string& /*text*/, int /*root*/) {}
  // Whether what it enqueues waits for other devices, by itself: then Check must be called while
  // the host waits for a step, and no kernel may be loaded beside a collective.
  virtual bool can_fail_later() const { return false; }
  // Throws Aborted or Diagnostic when a collective that was enqueued cannot end.
  virtual void Check() {}
  // Makes the other ranks leave, and this rank's collectives end, before or after; for a rank that
  // failed, or that was told of another's failure. Does not throw.
  virtual void Abort(const std::string& reason) noexcept = 0;
  // After an abort: returns when no collective touches memory any more, or nobody can tell when
  // that will be. No graph may hold any.
  virtual void WaitForAborted() noexcept {}
};

// All ranks on one GPU, for tests and for people with one GPU: copies and reductions that events
// order after the ranks' own work, sums in rank order; no kernel ever waits for another. `device`
// must outlive it. Groups larger than kMaxReductionRanks are Diagnostic E4325.
std::unique_ptr<Carrier> MakeSharedDevice(Device& device);

}  // namespace shardc::cuda
