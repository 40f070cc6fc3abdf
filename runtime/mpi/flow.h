// Long transfers, cut in chunks so that copying, sending and reducing overlap.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "runtime/mpi/strip.h"
#include "runtime/mpi/wire.h"

namespace shardc::mpi {

inline constexpr int64_t kChunkBytes = 128 << 10;  // a multiple of 8; a few of them fit in L2

// Sends the bytes [begin, end) of a strip to a peer.
class SendFlow {
 public:
  SendFlow(Wire& wire, int peer, int tag, const Strip& strip, int64_t begin, int64_t end)
      : wire_(wire), peer_(peer), tag_(tag), strip_(strip), at_(begin), end_(end) {}

  // Sends what lies before `ready`, as far as there is room; returns whether it sent anything.
  bool Advance(int64_t ready = std::numeric_limits<int64_t>::max());
  // Everything has left this rank's memory and this process.
  bool done() const { return at_ == end_ && *outstanding_ == 0; }

 private:
  Wire& wire_;
  int peer_, tag_;
  const Strip& strip_;
  int64_t at_, end_;
  std::shared_ptr<std::atomic<int>> outstanding_ = std::make_shared<std::atomic<int>>(0);
};

// Receives the bytes [begin, end) of a strip from a peer, a chunk at a time.
class RecvFlow {
 public:
  RecvFlow(Wire& wire, int peer, int tag, const Strip& strip, int64_t begin, int64_t end)
      : wire_(wire), peer_(peer), tag_(tag), strip_(strip), at_(begin), end_(end) {}
  ~RecvFlow() { wire_.Abandon(std::move(arrival_)); }
  RecvFlow(RecvFlow&&) = default;

  // Copies what has arrived to its place; returns whether anything had.
  bool Advance();
  // Or, instead of Advance: polls for the next chunk, which stays until Release.
  const std::byte* Chunk();
  void Release();
  bool done() const { return at_ == end_; }

 private:
  int64_t ChunkEnd() const { return std::min(at_ + kChunkBytes, end_); }

  Wire& wire_;
  int peer_, tag_;
  const Strip& strip_;
  int64_t at_, end_;
  std::unique_ptr<Arrival> arrival_;
  std::optional<Parcel> chunk_;
};

}  // namespace shardc::mpi
