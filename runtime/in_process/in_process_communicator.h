// The in-process communicator: a call posts its pointers on the group's board, meets the others at
// a barrier, and then reads the peers' buffers directly.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/abort.h"
#include "runtime/communicator.h"
#include "runtime/in_process/world.h"

namespace shardc::in_process {

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Group> group, int rank);
  ~InProcessCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void AllReduce(std::span<const Buffers> buffers, ReduceOp op) override;
  void AllGather(std::span<const Buffers> buffers) override;
  void ReduceScatter(std::span<const Buffers> buffers, ReduceOp op) override;
  void AllToAll(std::span<const Buffers> buffers) override;
  void Broadcast(void* buffer, int64_t count, DType dtype, int root) override;
  void Barrier() override;
  void Exchange(std::span<const Transfer> transfers) override;
  int64_t BeginSend(const Transfer& send) override;
  void FinishSend(int64_t ticket) override;
  std::unique_ptr<Communicator> Split(int color, int key) override;
  void Poll() override;
  void Abort(const std::string& reason) noexcept override;

 private:
  // What a call waits for.
  struct Pending {
    std::vector<int64_t> sends;             // of letters_
    std::vector<const Transfer*> receives;  // those from one peer in their order
    bool done() const { return sends.empty() && receives.empty(); }
  };

  // Runs `body`; whatever it throws aborts the world, so that nobody waits for this rank.
  template <typename Body>
  void Guarded(const Body& body);
  // Posts the call, meets the others, checks that all made the same call. Small sends are posted by
  // value: `send_multiple` * count elements each, 0 if this rank sends nothing. Returns whether
  // they were, in which case nobody reads this rank's buffers and Finish need not wait.
  bool Start(CallKind kind, ReduceOp op, int root, std::span<const Buffers> buffers,
             int64_t send_multiple);
  void Finish(bool eager);
  // This rank's next post, without buffers; Meet makes it count.
  Post& StartPost(CallKind kind, ReduceOp op, int root);
  // Makes the post visible, waits for everybody's, checks that they agree.
  void Meet();
  // What `rank` posted for buffer `i` of the current collective.
  const Buffers& Posted(int rank, size_t i) const {
    return group_->post(rank, collective_ - 1).call.buffers[i];
  }
  // Reduces the elements [begin, end) of buffer i of all ranks into all ranks' recv.
  void ReduceToAll(size_t i, int64_t begin, int64_t end, ReduceOp op);
  // Reduces buffer i of all ranks, from element `offset` on, into mine.recv.
  void ReduceToMe(size_t i, int64_t offset, const Buffers& mine, ReduceOp op);

  // Puts a letter in the mailbox; returns its number.
  int64_t PostLetter(const Transfer& send);
  // Waits until all is done.
  void Await(Pending& pending);
  // Moves each transfer on as far as it goes now; returns whether any moved.
  bool Advance(Pending& pending);
  bool Receive(const Transfer& transfer);
  bool IsTaken(int64_t letter) const;
  // After this no peer touches what the letter holds.
  void TakeBack(int64_t letter) noexcept;
  // Throws if what is pending never can be done. `begun[p]`: collectives begun by rank p.
  void ThrowIfHopeless(const Pending& pending, uint32_t flags, const std::vector<uint64_t>& begun);
  void ThrowIfHopeless(const Transfer& transfer, uint32_t flags, uint64_t begun);

  const std::shared_ptr<Group> group_;
  const int rank_;
  uint64_t collective_ = 0;                             // collectives begun by this rank
  std::map<int64_t, std::unique_ptr<Letter>> letters_;  // under way
  int64_t posted_ = 0;

  // Scratch, kept to spare allocations.
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

template <typename Body>
void InProcessCommunicator::Guarded(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    AbortFor(*this, error);  // changes nothing if the world has failed already
    throw;
  }
}

}  // namespace shardc::in_process
