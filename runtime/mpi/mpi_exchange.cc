// Point to point: an envelope announces a message, carrying it if it is small; the receiver accepts
// it when it comes to that receive, and then a large message follows in chunks. As a send waits to
// be accepted, a rank that is in a collective can have no messages of its own under way.
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

int64_t Bytes(const Transfer& t) { return t.count * DTypeSize(t.dtype); }
bool IsSmall(const Transfer& t) { return Bytes(t) <= kSmallBytes; }

}  // namespace

struct MpiCommunicator::Messages {
  // In the order of the call. Large ones of one direction go one after the other.
  struct Peer {
    std::vector<const Transfer*> sends, receives;
    size_t accepted = 0, sent = 0;     // of sends
    size_t matched = 0, received = 0;  // of receives
    Strip out, in;
    std::optional<SendFlow> sending;
    std::optional<RecvFlow> receiving;

    bool done() const { return sent == sends.size() && received == receives.size(); }
    // The first transfer that the peer has not answered yet, or null.
    const Transfer* Unanswered() const {
      if (accepted < sends.size()) return sends[accepted];
      return matched < receives.size() ? receives[matched] : nullptr;
    }
  };
  std::vector<Peer> peers;
};

void MpiCommunicator::Exchange(std::span<const Transfer> transfers) {
  Guarded([&] {
    in_process::CheckTransfers(transfers, rank_, size());
    if (world_->failed()) world_->ThrowFailure(id_, members_);
    Messages messages{std::vector<Messages::Peer>(members_.size())};
    for (const Transfer& t : transfers) {
      Messages::Peer& peer = messages.peers[static_cast<size_t>(t.peer)];
      if (t.kind == Transfer::Kind::kRecv) {
        peer.receives.push_back(&t);
        continue;
      }
      peer.sends.push_back(&t);
      Parcel parcel = Encode(Envelope{t.count, t.dtype});
      if (IsSmall(t)) {
        const auto* data = static_cast<const std::byte*>(t.send);
        parcel.insert(parcel.end(), data, data + Bytes(t));
      }
      Post(t.peer, Channel::kEnvelopes, std::move(parcel));
    }
    auto advance = [&](int p) {
      Messages::Peer& peer = messages.peers[static_cast<size_t>(p)];
      if (peer.done()) return false;
      // What the peer posted before it went on to a collective, or left, has come when the note of
      // that has: so when that does not help, nothing will.
      const Parcel* next = Front(Channel::kCalls, p);
      const bool gone_on = next || Front(Channel::kLeaves, p);
      bool moved = AdvanceSends(messages, p);
      moved |= AdvanceReceives(messages, p);
      if (gone_on && peer.Unanswered()) FailHopeless(*peer.Unanswered(), next);
      return moved;
    };
    Wait([&] { return std::ranges::all_of(messages.peers, &Messages::Peer::done); },
         [&] {
           bool moved = false;
           for (int p = 0; p < size(); ++p) moved |= advance(p);
           return moved;
         });
  });
}

bool MpiCommunicator::AdvanceSends(Messages& messages, int p) {
  Messages::Peer& peer = messages.peers[static_cast<size_t>(p)];
  bool moved = false;
  while (peer.accepted < peer.sends.size() && Front(Channel::kAccepts, p)) {
    Take(Channel::kAccepts, p);
    ++peer.accepted;
    moved = true;
  }
  while (peer.sent < peer.accepted) {
    const Transfer& t = *peer.sends[peer.sent];
    if (!IsSmall(t)) {
      if (!peer.sending) {
        peer.out = Strip();
        peer.out.Add(t.send, Bytes(t), t.dtype);
        peer.sending.emplace(world_->wire(), WorldRank(p), Tag(kMoved), peer.out, 0,
                             peer.out.bytes());
      }
      moved |= peer.sending->Advance();
      if (!peer.sending->done()) return moved;
      peer.sending.reset();
    }
    ++peer.sent;
    moved = true;
  }
  return moved;
}

bool MpiCommunicator::AdvanceReceives(Messages& messages, int p) {
  Messages::Peer& peer = messages.peers[static_cast<size_t>(p)];
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
        peer.in.Add(t.recv, Bytes(t), t.dtype);
        peer.receiving.emplace(world_->wire(), WorldRank(p), Tag(kMoved), peer.in, 0,
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
