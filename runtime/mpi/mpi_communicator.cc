#include "runtime/mpi/mpi_communicator.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <stdexcept>
#include <utility>

#include "ir/diagnostic.h"
#include "runtime/abort.h"
#include "runtime/in_process/arguments.h"
#include "runtime/in_process/reduce.h"
#include "runtime/mpi/waiting.h"

namespace shardc::mpi {
namespace {

using in_process::Call;
using in_process::CallKind;

std::atomic<int> next_group_id{0};

Call MakeCall(CallKind kind, ReduceOp op, int root, std::span<const Buffers> buffers) {
  return {kind, op, root, {buffers.begin(), buffers.end()}};
}

// result[p]: from `base` of each buffer, p times (if `by_rank`) its bytes onward.
template <typename Pointer>
std::vector<Strip> Strips(std::span<const Buffers> buffers, int n, Pointer Buffers::*base,
                          bool by_rank) {
  std::vector<Strip> strips(static_cast<size_t>(n));
  for (int p = 0; p < n; ++p) {
    for (const Buffers& b : buffers) {
      const auto* data = static_cast<const std::byte*>(b.*base);
      if (b.count > 0 && by_rank) data += p * b.bytes();
      strips[p].Add(data, b.bytes(), b.dtype);
    }
  }
  return strips;
}

std::vector<Strip> SendStrips(std::span<const Buffers> buffers, int n, bool by_rank) {
  return Strips(buffers, n, &Buffers::send, by_rank);
}

std::vector<Strip> RecvStrips(std::span<const Buffers> buffers, int n) {
  return Strips(buffers, n, &Buffers::recv, true);
}

void Append(Parcel& parcel, const Strip& strip) {
  const size_t at = parcel.size();
  parcel.resize(at + static_cast<size_t>(strip.bytes()));
  strip.CopyOut(0, strip.bytes(), parcel.data() + at);
}

}  // namespace

int UnusedGroupId() { return next_group_id.load(); }

void MarkGroupIdUsed(int id) {
  int next = next_group_id.load();
  while (next <= id && !next_group_id.compare_exchange_weak(next, id + 1)) {
  }
}

MpiCommunicator::MpiCommunicator(std::shared_ptr<World> world, int id, std::vector<int> members)
    : world_(std::move(world)), id_(id), members_(std::move(members)) {
  while (WorldRank(rank_) != world_->rank()) ++rank_;
}

MpiCommunicator::~MpiCommunicator() {
  if (std::uncaught_exceptions() > 0) Abort("an exception destroyed its communicator");
  for (const auto& [message, send] : begun_) world_->outbox().Forget(message);
  std::vector<int> others = members_;
  std::erase(others, world_->rank());
  world_->wire().Retire(id_, others);
  if (world_->failed()) return;
  try {
    for (int p = 0; p < size(); ++p) {
      if (p != rank_) Post(p, Channel::kLeaves, {});
    }
  } catch (const std::exception& error) {
    AbortFor(*this, error);
  }
}

void MpiCommunicator::Poll() {
  if (world_->failed()) world_->ThrowFailure(id_, members_);
}

void MpiCommunicator::Abort(const std::string& reason) noexcept {
  world_->Fail({{world_->rank(), ReasonOf(reason), false}, -1, world_->rank()});
}

void MpiCommunicator::Post(int peer, Channel channel, Parcel note) {
  world_->wire().Post(WorldRank(peer), id_, channel, std::move(note));
}

const Parcel* MpiCommunicator::Front(Channel channel, int peer) {
  return world_->wire().Front(WorldRank(peer), id_, channel);
}

Parcel MpiCommunicator::Take(Channel channel, int peer) {
  return world_->wire().Take(WorldRank(peer), id_, channel);
}

template <typename Give>
std::vector<MpiCommunicator::Announced> MpiCommunicator::Meet(const Call& call, const Give& give) {
  if (world_->failed()) world_->ThrowFailure(id_, members_);
  Announcement mine;
  mine.call = call;
  mine.next_id = UnusedGroupId();
  for (int k = 1; k < size(); ++k) {
    const int p = (rank_ + k) % size();
    Parcel parcel = Encode(mine);
    give(p, parcel);
    Post(p, Channel::kCalls, std::move(parcel));
  }
  std::vector<Announced> others(members_.size());
  int missing = size() - 1;
  Wait([&] { return missing == 0; },
       [&] {
         const int before = missing;
         for (int p = 0; p < size(); ++p) {
           Announced& other = others[p];
           if (p == rank_ || !other.parcel.empty()) continue;
           // In this order: what a peer said before it left has come when its leave has.
           const bool left = Front(Channel::kLeaves, p);
           if (!Front(Channel::kCalls, p)) {
             if (left) FailLeft(p);
             continue;
           }
           other.parcel = Take(Channel::kCalls, p);
           other.announcement = DecodeAnnouncement(other.parcel);
           --missing;
         }
         return missing != before;
       });
  others[rank_].announcement = std::move(mine);
  CheckAgreement(call, others);
  return others;
}

void MpiCommunicator::CheckAgreement(const Call& mine, const std::vector<Announced>& others) {
  const Call& first = others[0].announcement.call;
  for (int r = 1; r < size(); ++r) {
    const Call& other = others[r].announcement.call;
    if (Agree(first, other)) continue;
    FailMismatch(r, DescribeDifference(WorldRank(0), first, WorldRank(r), other));
  }
  SHARDC_CHECK(Agree(first, mine));
}

void MpiCommunicator::Move(const Call& call, const std::vector<Strip>& send,
                           const std::vector<Strip>& recv) {
  Wire& wire = world_->wire();
  const auto others = Meet(call, [&](int p, Parcel& parcel) {
    const Strip& strip = send[p];
    if (strip.bytes() <= kSmallBytes) Append(parcel, strip);
  });
  std::vector<SendFlow> sends;
  std::vector<RecvFlow> receives;
  for (int k = 1; k < size(); ++k) {
    // Each begins with its right neighbour, so that not all send to the same rank at a time.
    const auto to = static_cast<size_t>((rank_ + k) % size());
    const auto from = static_cast<size_t>((rank_ + size() - k) % size());
    if (send[to].bytes() > kSmallBytes) {
      sends.emplace_back(wire, members_[to], Tag(kMoved), send[to], 0, send[to].bytes());
    }
    if (recv[from].bytes() > kSmallBytes) {
      receives.emplace_back(wire, members_[from], Tag(kMoved), recv[from], 0, recv[from].bytes());
    } else {
      recv[from].CopyIn(0, recv[from].bytes(), others[from].contents());
    }
  }
  Wait(
      [&] {
        return std::ranges::all_of(sends, &SendFlow::done) &&
               std::ranges::all_of(receives, &RecvFlow::done);
      },
      [&] {
        bool moved = false;
        for (SendFlow& s : sends) moved |= s.Advance();
        for (RecvFlow& r : receives) moved |= r.Advance();
        return moved;
      });
}

void MpiCommunicator::Reduce(const Strip& mine, const Strip& out, int64_t begin, int64_t end,
                             ReduceOp op, const std::vector<const std::byte*>& from) {
  std::vector<const std::byte*> own;
  mine.ForEach(begin, end, [&](const Strip::Piece& p, int64_t inside, int64_t, int64_t) {
    own.push_back(p.data + inside);
  });
  std::vector<const void*> sources(from.size());
  size_t piece = 0;
  out.ForEach(begin, end, [&](const Strip::Piece& p, int64_t inside, int64_t at, int64_t n) {
    for (size_t r = 0; r < from.size(); ++r) sources[r] = from[r] ? from[r] + at : own[piece];
    void* destination = p.data + inside;
    in_process::Reduce(sources, {&destination, 1}, 0, n / DTypeSize(p.dtype), p.dtype, op);
    ++piece;
  });
}

void MpiCommunicator::ReduceSmall(const Call& call, const std::vector<Strip>& send,
                                  const Strip& out) {
  const auto others = Meet(call, [&](int p, Parcel& parcel) { Append(parcel, send[p]); });
  std::vector<const std::byte*> from(members_.size());
  for (size_t r = 0; r < from.size(); ++r) {
    if (static_cast<int>(r) != rank_) from[r] = others[r].contents();
  }
  Reduce(send[rank_], out, 0, out.bytes(), call.op, from);
}

void MpiCommunicator::ReduceLarge(const Call& call, const std::vector<Strip>& send,
                                  const Strip& out, const std::vector<Range>& ranges, bool share) {
  Meet(call, [](int, Parcel&) {});
  Wire& wire = world_->wire();
  const auto me = static_cast<size_t>(rank_);
  const int64_t begin = ranges[me].begin, end = ranges[me].end;
  std::vector<SendFlow> contributions, results;
  std::vector<RecvFlow> to_reduce, reduced;
  for (int k = 1; k < size(); ++k) {
    const auto to = static_cast<size_t>((rank_ + k) % size());
    contributions.emplace_back(wire, members_[to], Tag(kContributions), send[to], ranges[to].begin,
                               ranges[to].end);
    if (!share) continue;
    results.emplace_back(wire, members_[to], Tag(kResults), out, begin, end);
    reduced.emplace_back(wire, members_[to], Tag(kResults), out, ranges[to].begin, ranges[to].end);
  }
  for (size_t r = 0; r < members_.size(); ++r) {
    // In rank order; the own entry is never asked for anything.
    to_reduce.emplace_back(wire, members_[r], Tag(kContributions), out, begin,
                           r == me ? begin : end);
  }
  int64_t ready = begin;
  std::vector<const std::byte*> from(members_.size());
  auto reduce_chunk = [&] {
    if (ready == end) return false;
    for (size_t r = 0; r < from.size(); ++r) {
      if (r == me) continue;
      from[r] = to_reduce[r].Chunk();
    }
    for (size_t r = 0; r < from.size(); ++r) {
      if (r != me && !from[r]) return false;
    }
    const int64_t next = std::min(ready + kChunkBytes, end);
    Reduce(send[me], out, ready, next, call.op, from);
    for (size_t r = 0; r < from.size(); ++r) {
      if (r != me) to_reduce[r].Release();
    }
    ready = next;
    return true;
  };
  Wait(
      [&] {
        return ready == end && std::ranges::all_of(contributions, &SendFlow::done) &&
               std::ranges::all_of(results, &SendFlow::done) &&
               std::ranges::all_of(reduced, &RecvFlow::done);
      },
      [&] {
        bool moved = false;
        for (SendFlow& s : contributions) moved |= s.Advance();
        moved |= reduce_chunk();
        for (SendFlow& s : results) moved |= s.Advance(ready);
        for (RecvFlow& r : reduced) moved |= r.Advance();
        return moved;
      });
}

void MpiCommunicator::AllReduce(std::span<const Buffers> buffers, ReduceOp op) {
  Guarded([&] {
    in_process::CheckBuffers(buffers, 1, 1, 0);
    in_process::CheckReduction(buffers, op);
    const Call call = MakeCall(CallKind::kAllReduce, op, 0, buffers);
    const std::vector<Strip> send = SendStrips(buffers, size(), false);
    const Strip out = Strips(buffers, 1, &Buffers::recv, false)[0];
    if (out.bytes() <= kSmallBytes) return ReduceSmall(call, send, out);
    const int64_t words = out.bytes() / 8;
    auto cut = [&](int r) { return 8 * (words / size() * r + words % size() * r / size()); };
    std::vector<Range> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({cut(r), cut(r + 1)});
    ReduceLarge(call, send, out, parts, true);
  });
}

void MpiCommunicator::ReduceScatter(std::span<const Buffers> buffers, ReduceOp op) {
  Guarded([&] {
    in_process::CheckBuffers(buffers, size(), 1, rank_);
    in_process::CheckReduction(buffers, op);
    const Call call = MakeCall(CallKind::kReduceScatter, op, 0, buffers);
    const std::vector<Strip> send = SendStrips(buffers, size(), true);
    const Strip out = Strips(buffers, 1, &Buffers::recv, false)[0];
    if (out.bytes() <= kSmallBytes) return ReduceSmall(call, send, out);
    ReduceLarge(call, send, out, std::vector<Range>(members_.size(), {0, out.bytes()}), false);
  });
}

void MpiCommunicator::AllGather(std::span<const Buffers> buffers) {
  Guarded([&] {
    in_process::CheckBuffers(buffers, 1, size(), -rank_);
    const std::vector<Strip> recv = RecvStrips(buffers, size());
    for (const Buffers& b : buffers) {
      if (b.count == 0) continue;
      auto* own = static_cast<std::byte*>(b.recv) + rank_ * b.bytes();
      if (own != b.send) std::memcpy(own, b.send, static_cast<size_t>(b.bytes()));
    }
    Move(MakeCall(CallKind::kAllGather, ReduceOp::kSum, 0, buffers),
         SendStrips(buffers, size(), false), recv);
  });
}

void MpiCommunicator::AllToAll(std::span<const Buffers> buffers) {
  Guarded([&] {
    in_process::CheckBuffers(buffers, size(), size(), in_process::kNeverInPlace);
    for (const Buffers& b : buffers) {
      if (b.count == 0) continue;
      const int64_t at = rank_ * b.bytes();
      std::memcpy(static_cast<std::byte*>(b.recv) + at, static_cast<const std::byte*>(b.send) + at,
                  static_cast<size_t>(b.bytes()));
    }
    Move(MakeCall(CallKind::kAllToAll, ReduceOp::kSum, 0, buffers),
         SendStrips(buffers, size(), true), RecvStrips(buffers, size()));
  });
}

void MpiCommunicator::Broadcast(void* buffer, int64_t count, DType dtype, int root) {
  Guarded([&] {
    const Buffers one{buffer, buffer, count, dtype};
    in_process::CheckBuffers({&one, 1}, 1, 1, 0);
    in_process::CheckRoot(root, size());
    std::vector<Strip> send(members_.size()), recv(members_.size());
    if (rank_ == root) send = SendStrips({&one, 1}, size(), false);
    if (rank_ != root) recv[root].Add(buffer, one.bytes(), dtype);
    Move(MakeCall(CallKind::kBroadcast, ReduceOp::kSum, root, {&one, 1}), send, recv);
  });
}

void MpiCommunicator::Barrier() {
  Guarded([&] { Meet(MakeCall(CallKind::kBarrier, ReduceOp::kSum, 0, {}), [](int, Parcel&) {}); });
}

std::unique_ptr<Communicator> MpiCommunicator::Split(int color, int key) {
  std::unique_ptr<Communicator> out;
  Guarded([&] {
    Call call = MakeCall(CallKind::kSplit, ReduceOp::kSum, 0, {});
    call.color = color;
    call.key = key;
    const auto all = Meet(call, [](int, Parcel&) {});
    int id = 0;
    std::vector<std::pair<int, int>> chosen;  // (key, rank)
    for (int r = 0; r < size(); ++r) {
      const Announcement& a = all[r].announcement;
      id = std::max(id, a.next_id);
      if (a.call.color == color) chosen.emplace_back(a.call.key, r);
    }
    MarkGroupIdUsed(id);
    if (color < 0) return;
    std::sort(chosen.begin(), chosen.end());
    std::vector<int> members;
    for (const auto& [_, r] : chosen) members.push_back(WorldRank(r));
    out = std::make_unique<MpiCommunicator>(world_, id, std::move(members));
  });
  return out;
}

void MpiCommunicator::FailLeft(int r) {
  world_->Fail({{WorldRank(r), StrCat("it has left ", Name(), " while others still call"), false},
                -1,
                world_->rank()});
  world_->ThrowFailure(id_, members_);
}

void MpiCommunicator::FailMismatch(int r, const std::string& message) {
  const std::string text = StrCat("the calls in ", Name(), " do not agree: ", message);
  world_->Fail({{WorldRank(r), text, false}, id_, world_->rank()});
  throw CallMismatch(text);
}

std::string MpiCommunicator::Name() const {
  return StrCat("the group of ranks [", Join(members_, ", "), "]");
}

}  // namespace shardc::mpi
