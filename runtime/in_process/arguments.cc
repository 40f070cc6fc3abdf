#include "runtime/in_process/arguments.h"

#include <stdexcept>

#include "ir/diagnostic.h"

namespace shardc::in_process {

void CheckBuffers(std::span<const Buffers> buffers, int64_t send_multiple, int64_t recv_multiple,
                  int64_t in_place_offset) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffers& b = buffers[i];
    if (b.count < 0) throw std::invalid_argument(StrCat("buffer ", i, ": count is ", b.count));
    if (b.count == 0) continue;
    if (b.send == nullptr || b.recv == nullptr) {
      throw std::invalid_argument(
          StrCat("buffer ", i, ": null pointer for ", b.count, " ", DTypeName(b.dtype)));
    }
    const auto send = reinterpret_cast<uintptr_t>(b.send);
    const auto recv = reinterpret_cast<uintptr_t>(b.recv);
    const bool overlap =
        send < recv + recv_multiple * b.bytes() && recv < send + send_multiple * b.bytes();
    const bool in_place = in_place_offset != kNeverInPlace &&
                          static_cast<intptr_t>(recv - send) == in_place_offset * b.bytes();
    if (overlap && !in_place) {
      throw std::invalid_argument(
          StrCat("buffer ", i, ": send and recv overlap, and not in the place where they may"));
    }
  }
}

void CheckReduction(std::span<const Buffers> buffers, ReduceOp op) {
  for (const Buffers& b : buffers) {
    if (b.dtype == DType::kBool && op == ReduceOp::kSum) {
      throw std::invalid_argument("bool has no sum: use max (or) or min (and)");
    }
  }
}

void CheckRoot(int root, int size) {
  if (root < 0 || root >= size) {
    throw std::invalid_argument(StrCat("broadcast from rank ", root, " of ", size));
  }
}

void CheckTransfers(std::span<const Transfer> transfers, int rank, int size) {
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    if (t.peer < 0 || t.peer >= size || t.peer == rank) {
      throw std::invalid_argument(
          StrCat("transfer ", i, ": rank ", rank, " of ", size, " has no peer ", t.peer));
    }
    if (t.count < 0) throw std::invalid_argument(StrCat("transfer ", i, ": count is ", t.count));
    const bool null = t.kind == Transfer::Kind::kSend ? t.send == nullptr : t.recv == nullptr;
    if (null && t.count > 0) {
      throw std::invalid_argument(
          StrCat("transfer ", i, ": null pointer for ", t.count, " ", DTypeName(t.dtype)));
    }
  }
}

void CheckSend(const Transfer& send, int rank, int size) {
  CheckTransfers({&send, 1}, rank, size);
  if (send.kind != Transfer::Kind::kSend) throw std::invalid_argument("a receive is no send");
}

}  // namespace shardc::in_process
