// The seam between the executor and what carries bytes between ranks (in_process, mpi, nccl, ...).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "ir/dtype.h"

namespace shardc {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

// One buffer pair of a collective. `count` is in elements and means, for
//   AllReduce      the elements of send and of recv;
//   AllGather      the elements each rank gives: recv has size() * count, in rank order;
//   ReduceScatter  the elements each rank gets: send has size() * count, in rank order;
//   AllToAll       the elements each pair exchanges: send and recv have size() * count each.
// Pointers are aligned to their element, and may be null when count is 0.
struct Buffers {
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;
  DType dtype = DType::kF32;
  int64_t bytes() const { return count * DTypeSize(dtype); }  // of `count` elements
};

// One message of an Exchange: a send reads `send`, a receive fills `recv`.
struct Transfer {
  enum class Kind : uint8_t { kSend, kRecv };
  Kind kind = Kind::kSend;
  int peer = 0;
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;
  DType dtype = DType::kF32;
  int64_t bytes() const { return count * DTypeSize(dtype); }
};

// Another rank failed or left, so this call will never complete.
class Aborted : public std::runtime_error {
 public:
  Aborted(int rank, const std::string& reason)
      : std::runtime_error("rank " + std::to_string(rank) + " aborted: " + reason),
        rank_(rank),
        reason_(reason) {}
  // The rank at fault, as a rank of the world.
  int rank() const { return rank_; }
  const std::string& reason() const { return reason_; }

 private:
  int rank_;
  std::string reason_;
};

// The ranks of a group do not make the same call; what() names two of the calls that differ.
class CallMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One rank's end of a group.
//
// Who calls: each rank has its own object and uses it from one thread at a time; only Abort
// and Poll may come from any thread at any time. Calls block until this rank's buffers are its own
// again, but for BeginSend.
//
// Order: every rank of a group makes the same collective calls (kind, reduction, counts, dtypes,
// root) in the same order. Calls on different groups are independent, but the program must order
// them so that no ranks wait for each other in a circle.
//
// Aliasing: buffers of one call do not overlap, but for the in-place forms: AllReduce with send ==
// recv, AllGather with send == recv + rank() * count, ReduceScatter with recv == send + rank() *
// count. No other thread writes a buffer, or reads a receive buffer, during the call.
//
// Determinism: reductions combine in rank order 0 .. size()-1, one element at a time; f16 and bf16
// accumulate in f32 and round once. A result has the same bits on every rank and in every run, and
// does not depend on how buffers are grouped into calls. Integer sums wrap around. kMax and kMin
// yield NaN if any operand is NaN. bool has kMax (or) and kMin (and), no kSum. (nccl promises less:
// the same bits on all ranks of one run.)
//
// Errors: an argument that is wrong by itself (negative count, unknown peer, null buffer, ...)
// throws std::invalid_argument; calls that do not agree throw CallMismatch on all ranks of the
// group. Both abort the world. After any rank calls Abort, or destroys a communicator of the world
// while an exception unwinds it, the pending and all later calls of all ranks throw Aborted at
// once, in every group that was split from the same world. A rank that destroys its communicator in
// peace has left that group: calls that need it throw Aborted. After any error the contents of
// receive buffers are unspecified, but no peer touches a buffer once the call has returned or
// thrown (of BeginSend: its FinishSend), or the communicator is destroyed.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Collectives over several buffers cost one synchronisation. An empty list is legal: a barrier.
  virtual void AllReduce(std::span<const Buffers> buffers, ReduceOp op) = 0;
  virtual void AllGather(std::span<const Buffers> buffers) = 0;
  virtual void ReduceScatter(std::span<const Buffers> buffers, ReduceOp op) = 0;
  virtual void AllToAll(std::span<const Buffers> buffers) = 0;
  // `buffer` is read on `root` and filled on the others.
  virtual void Broadcast(void* buffer, int64_t count, DType dtype, int root) = 0;
  virtual void Barrier() = 0;

  // Runs several sends and receives together; none waits for another of the same call, except that
  // messages of one rank to one peer keep their order: its i-th send meets the peer's i-th receive
  // from it, and must agree in count and dtype. A send may block until it is received: programs
  // must not count on buffering. The peer is another rank.
  virtual void Exchange(std::span<const Transfer> transfers) = 0;

  // As Exchange with this one send, in its place among the messages to the peer, but comes back
  // without waiting for the receiver. The message moves on whatever this rank does then; its buffer
  // must stay as it is until FinishSend, to be called once with what this returned, has waited for
  // it.
  virtual int64_t BeginSend(const Transfer& send) = 0;
  virtual void FinishSend(int64_t ticket) = 0;

  // Collective: ranks with the same color form a group, ordered by (key, rank). A negative color
  // joins none and returns null.
  virtual std::unique_ptr<Communicator> Split(int color, int key) = 0;

  // Returns at once; throws what a call would throw when the world has failed. For a rank that
  // waits for something else than its communicator.
  virtual void Poll() = 0;
  // Makes all ranks of the world leave; the first reason wins. Does not throw.
  virtual void Abort(const std::string& reason) noexcept = 0;

  // The one-buffer forms.
  void AllReduce(const void* send, void* recv, int64_t count, DType dtype, ReduceOp op) {
    const Buffers one{send, recv, count, dtype};
    AllReduce({&one, 1}, op);
  }
  void AllGather(const void* send, void* recv, int64_t count, DType dtype) {
    const Buffers one{send, recv, count, dtype};
    AllGather({&one, 1});
  }
  void ReduceScatter(const void* send, void* recv, int64_t count, DType dtype, ReduceOp op) {
    const Buffers one{send, recv, count, dtype};
    ReduceScatter({&one, 1}, op);
  }
  void AllToAll(const void* send, void* recv, int64_t count, DType dtype) {
    const Buffers one{send, recv, count, dtype};
    AllToAll({&one, 1});
  }
  void Send(const void* data, int64_t count, DType dtype, int peer) {
    const Transfer one{Transfer::Kind::kSend, peer, data, nullptr, count, dtype};
    Exchange({&one, 1});
  }
  void Recv(void* data, int64_t count, DType dtype, int peer) {
    const Transfer one{Transfer::Kind::kRecv, peer, nullptr, data, count, dtype};
    Exchange({&one, 1});
  }
};

}  // namespace shardc
