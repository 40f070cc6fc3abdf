#include "runtime/mpi/flow.h"

#include <utility>

#include "ir/diagnostic.h"

namespace shardc::mpi {
namespace {

// Chunks under way of one flow: enough to hide the copying, few enough to stay in the cache.
constexpr int kWindow = 3;

}  // namespace

bool SendFlow::Advance(int64_t ready) {
  bool moved = false;
  while (at_ < end_ && *outstanding_ < kWindow) {
    int64_t next = std::min(at_ + kChunkBytes, end_);
    if (next > ready) break;
    Parcel parcel = wire_.Make(static_cast<size_t>(next - at_));
    strip_.CopyOut(at_, next, parcel.data());
    wire_.Send(peer_, tag_, std::move(parcel), outstanding_);
    at_ = next;
    moved = true;
  }
  return moved;
}

bool RecvFlow::Advance() {
  bool moved = false;
  while (const std::byte* data = Chunk()) {
    strip_.CopyIn(at_, ChunkEnd(), data);
    Release();
    moved = true;
  }
  return moved;
}

const std::byte* RecvFlow::Chunk() {
  if (done()) return nullptr;
  if (!chunk_) chunk_ = wire_.Receive(peer_, tag_, arrival_);
  if (!chunk_) return nullptr;
  SHARDC_CHECK(static_cast<int64_t>(chunk_->size()) == ChunkEnd() - at_);
  return chunk_->data();
}

void RecvFlow::Release() {
  at_ = ChunkEnd();
  wire_.Recycle(std::move(*chunk_));
  chunk_.reset();
}

}  // namespace shardc::mpi
