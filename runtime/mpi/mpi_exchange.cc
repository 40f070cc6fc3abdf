// Point to point: the receiver accepts a message of the other's outbox when it comes to that
// receive.
#include <algorithm>
#include <optional>
#include <utility>

#include "ir/diagnostic.h"
#include "runtime/in_process/arguments.h"
#include "runtime/mpi/mpi_communicator.h"
#include "runtime/mpi/waiting.h"

namespace shardc::mpi {
namespace {

using in_process::Describe;

bool IsSmall(const Transfer& t) { return t.bytes() <= kSmallBytes; }

}  // namespace

struct MpiCommunicator::Messages {
  struct Send {
    const Transfer* transfer;
    int64_t message;  // of the outbox
  };
  // In the order of the call. Large ones that are received go one after the other.
  struct Peer {
    std::vector<Send> sends;  // not done
    std::vector<const Transfer*> receives;
    size_t matched = 0, received = 0;  // of receives
    Strip in;
    std::optional<RecvFlow> receiving;

    bool done() const { return sends.empty() && received == receives.size(); }
  };
  std::vector<Peer> peers;
};

void MpiCommunicator::Exchange(std::span<const Transfer> transfers) {
  Guarded([&] {
    in_process::CheckTransfers(transfers, rank_, size());
    if (world_->failed()) world_->ThrowFailure(id_, members_);
    Messages messages{std::vector<Messages::Peer>(members_.size())};
    std::vector<int64_t> posted;
    for (const Transfer& t : transfers) {
      Messages::Peer& peer = messages.peers[t.peer];
      if (t.kind == Transfer::Kind::kRecv) {
        peer.receives.push_back(&t);
        continue;
      }
      posted.push_back(PostMessage(t));
      peer.sends.push_back({&t, posted.back()});
    }
    Await(messages);
    for (int64_t message : posted) begun_.erase(message);
  });
}

int64_t MpiCommunicator::BeginSend(const Transfer& send) {
  int64_t message = 0;
  Guarded([&] {
    in_process::CheckSend(send, rank_, size());
    if (world_->failed()) world_->ThrowFailure(id_, members_);
    world_->outbox().MoveInBackground();
    message = PostMessage(send);
  });
  return message;
}

void MpiCommunicator::FinishSend(int64_t ticket) {
  Guarded([&] {
    if (world_->failed()) world_->ThrowFailure(id_, members_);
    auto it = begun_.find(ticket);
    SHARDC_CHECK(it != begun_.end(), "no such send is under way");
    const Transfer send = it->second;
    Messages messages{std::vector<Messages::Peer>(members_.size())};
    messages.peers[send.peer].sends.push_back({&send, ticket});
    Await(messages);
    begun_.erase(ticket);
  });
}

int64_t MpiCommunicator::PostMessage(const Transfer& send) {
  const int64_t message = world_->outbox().Post({WorldRank(send.peer), id_, Tag(kMessages)}, send);
  begun_.emplace(message, send);
  return message;
}

void MpiCommunicator::ForgetBegun() {
  for (const auto& [message, send] : begun_) world_->outbox().Forget(message);
  begun_.clear();
}

void MpiCommunicator::Await(Messages& messages) {
  auto advance = [&](int p) {
    Messages::Peer& peer = messages.peers[p];
    if (peer.done()) return false;
    // What the peer posted before it went on to a collective, or left, has come when the note of
    // that has: so when that does not help, nothing will.
    const Parcel* next = Front(Channel::kCalls, p);
    const bool gone_on = next || Front(Channel::kLeaves, p);
    bool moved = AdvanceSends(messages, p);
    moved |= AdvanceReceives(messages, p);
    if (!gone_on) return moved;
    for (const Messages::Send& send : peer.sends) {
      if (!world_->outbox().IsAccepted(send.message)) FailHopeless(*send.transfer, next);
    }
    if (peer.matched < peer.receives.size()) FailHopeless(*peer.receives[peer.matched], next);
    return moved;
  };
  Wait([&] { return std::ranges::all_of(messages.peers, &Messages::Peer::done); },
       [&] {
         bool moved = false;
         for (int p = 0; p < size(); ++p) moved |= advance(p);
         return moved;
       });
}

bool MpiCommunicator::AdvanceSends(Messages& messages, int p) {
  Messages::Peer& peer = messages.peers[p];
  if (peer.sends.empty()) return false;
  const bool moved = world_->outbox().Advance();
  std::erase_if(peer.sends,
                [&](const Messages::Send& send) { return world_->outbox().IsDone(send.message); });
  return moved;
}

bool MpiCommunicator::AdvanceReceives(Messages& messages, int p) {
  Messages::Peer& peer = messages.peers[p];
  bool moved = false;
  while (peer.matched < peer.receives.size() && Front(Channel::kEnvelopes, p)) {
    const Transfer& t = *peer.receives[peer.matched];
    CheckEnvelope(t, *Front(Channel::kEnvelopes, p));
    const Parcel parcel = Take(Channel::kEnvelopes, p);
    if (IsSmall(t)) {
      std::copy(parcel.begin() + kEnvelopeBytes, parcel.end(), static_cast<std::byte*>(t.recv));
    }
    Post(p, Channel::kAccepts, {});
    ++peer.matched;
    moved = true;
  }
  while (peer.received < peer.matched) {
    const Transfer& t = *peer.receives[peer.received];
    if (!IsSmall(t)) {
      if (!peer.receiving) {
        peer.in = Strip();
        peer.in.Add(t.recv, t.bytes(), t.dtype);
        peer.receiving.emplace(world_->wire(), WorldRank(p), Tag(kMessages), peer.in, 0,
                               peer.in.bytes());
      }
      moved |= peer.receiving->Advance();
      if (!peer.receiving->done()) return moved;
      peer.receiving.reset();
    }
    ++peer.received;
    moved = true;
  }
  return moved;
}

void MpiCommunicator::CheckEnvelope(const Transfer& t, const Parcel& parcel) {
  const Envelope envelope = DecodeEnvelope(parcel);
  if (envelope.count == t.count && envelope.dtype == t.dtype) return;
  const int me = WorldRank(rank_), other = WorldRank(t.peer);
  const Transfer sent{Transfer::Kind::kSend, rank_,         nullptr, nullptr,
                      envelope.count,        envelope.dtype};
  FailMismatch(rank_, StrCat("rank ", me, " calls ", Describe(t, other), ", rank ", other,
                             " calls ", Describe(sent, me)));
}

void MpiCommunicator::FailHopeless(const Transfer& waiting, const Parcel* announcement) {
  if (!announcement) FailLeft(waiting.peer);
  const Announcement next = DecodeAnnouncement(*announcement);
  const int me = WorldRank(rank_), other = WorldRank(waiting.peer);
  FailMismatch(rank_, StrCat("rank ", me, " calls ", Describe(waiting, other), ", rank ", other,
                             " calls ", Describe(next.call)));
}

}  // namespace shardc::mpi
