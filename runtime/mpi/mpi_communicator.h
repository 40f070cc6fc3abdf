// A group of processes over MPI's nonblocking messages. Reductions are made here and in rank order,
// by the in-process communicator's own loops, so that both give the same bits.
//
// A collective begins with an announcement from each rank to each other, which carries small
// buffers along; large ones follow in chunks. A large all_reduce gives each rank a part: it
// collects the others' contributions to it, and sends each reduced chunk on while later ones still
// come in.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/mpi/flow.h"
#include "runtime/mpi/header.h"
#include "runtime/mpi/world.h"

namespace shardc::mpi {

// Group ids are one more than any that a member has used, in any world.
int UnusedGroupId();
void MarkGroupIdUsed(int id);

class MpiCommunicator final : public Communicator {
 public:
  // `members`: ranks of the world, in the group's order. `id` is the same on all members, and two
  // ranks share no other group with that id.
  MpiCommunicator(std::shared_ptr<World> world, int id, std::vector<int> members);
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  void AllReduce(std::span<const Buffers> buffers, ReduceOp op) override;
  void AllGather(std::span<const Buffers> buffers) override;
  void ReduceScatter(std::span<const Buffers> buffers, ReduceOp op) override;
  void AllToAll(std::span<const Buffers> buffers) override;
  void Broadcast(void* buffer, int64_t count, DType dtype, int root) override;
  void Barrier() override;
  void Exchange(std::span<const Transfer> transfers) override;
  int64_t BeginSend(const Transfer& send) override;
  void FinishSend(int64_t ticket) override;
  // Of all groups of a process, one at a time may be split.
  std::unique_ptr<Communicator> Split(int color, int key) override;
  void Poll() override;
  void Abort(const std::string& reason) noexcept override;

 private:
  // What of a group's contents a tag is for.
  enum Contents { kContributions, kResults, kMoved, kMessages, kContentsKinds };

  // Of one Exchange or FinishSend call.
  struct Messages;

  template <typename Body>
  void Guarded(const Body& body);
  // Calls `advance`, which tells whether anything moved, until `done`. Throws when the world has
  // failed.
  template <typename Done, typename Advance>
  void Wait(const Done& done, const Advance& advance);

  int Tag(Contents what) const { return id_ * kContentsKinds + what; }
  int WorldRank(int r) const { return members_[r]; }
  void Post(int peer, Channel channel, Parcel note);
  // The first note on the channel that has come and was not taken, else null.
  const Parcel* Front(Channel channel, int peer);
  Parcel Take(Channel channel, int peer);

  // Announces the call, with the contents that give(p) appends for rank p, and waits for all;
  // throws if they do not agree. Result[r] is what rank r announced; nothing for the own rank.
  struct Announced {
    Parcel parcel;
    Announcement announcement;
    const std::byte* contents() const { return parcel.data() + announcement.payload; }
  };
  template <typename Give>
  std::vector<Announced> Meet(const in_process::Call& call, const Give& give);
  void CheckAgreement(const in_process::Call& mine, const std::vector<Announced>& others);

  // Gives send[p] to each rank p, and receives recv[p] from it.
  void Move(const in_process::Call& call, const std::vector<Strip>& send,
            const std::vector<Strip>& recv);
  // Reduces the range of all ranks into `out`; from[r] is that of rank r, null for the own rank,
  // whose is in `mine`.
  void Reduce(const Strip& mine, const Strip& out, int64_t begin, int64_t end, ReduceOp op,
              const std::vector<const std::byte*>& from);
  void ReduceSmall(const in_process::Call& call, const std::vector<Strip>& send, const Strip& out);
  // Rank p reduces what lies in ranges[p] of everybody's send[p] into that range of its `out`, and
  // gives it to all if `share`.
  struct Range {
    int64_t begin, end;
  };
  void ReduceLarge(const in_process::Call& call, const std::vector<Strip>& send, const Strip& out,
                   const std::vector<Range>& ranges, bool share);

  // Puts a message in the outbox.
  int64_t PostMessage(const Transfer& send);
  // Nothing of the sends that nobody has finished is read any more.
  void ForgetBegun();
  void Await(Messages& messages);
  bool AdvanceSends(Messages& messages, int peer);
  bool AdvanceReceives(Messages& messages, int peer);
  void CheckEnvelope(const Transfer& transfer, const Parcel& parcel);
  // The peer's next call is not this message but the collective that it announces; or, if that is
  // null, it has left.
  [[noreturn]] void FailHopeless(const Transfer& waiting, const Parcel* announcement);

  [[noreturn]] void FailLeft(int r);
  [[noreturn]] void FailMismatch(int r, const std::string& message);
  std::string Name() const;

  const std::shared_ptr<World> world_;
  const int id_;
  const std::vector<int> members_;
  int rank_ = 0;
  std::map<int64_t, Transfer> begun_;  // sends in the outbox that nobody has finished
};

}  // namespace shardc::mpi
