// Several buffers in a row, as one range of bytes. Each buffer begins at a multiple of 8, so that a
// cut at a multiple of 8 never divides an element, and elements stay aligned in a copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ir/dtype.h"

namespace shardc::mpi {

inline int64_t RoundUp8(int64_t n) { return (n + 7) / 8 * 8; }

class Strip {
 public:
  struct Piece {
    std::byte* data;  // only read where the strip is a source
    int64_t bytes;
    DType dtype;
    int64_t start;
  };

  void Add(const void* data, int64_t bytes, DType dtype) {
    pieces_.push_back({static_cast<std::byte*>(const_cast<void*>(data)), bytes, dtype, bytes_});
    bytes_ += RoundUp8(bytes);
  }
  int64_t bytes() const { return bytes_; }

  // Calls visit(piece, first byte in the piece, first byte in the range, bytes) for what of each
  // piece lies in [begin, end).
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, const Visit& visit) const {
    auto after = std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                  [](int64_t at, const Piece& p) { return at < p.start; });
    for (auto p = after == pieces_.begin() ? after : after - 1; p != pieces_.end(); ++p) {
      if (p->start >= end) return;
      int64_t from = std::max(begin, p->start), to = std::min(end, p->start + p->bytes);
      if (from < to) visit(*p, from - p->start, from - begin, to - from);
    }
  }
  void CopyOut(int64_t begin, int64_t end, std::byte* to) const {
    ForEach(begin, end, [to](const Piece& p, int64_t inside, int64_t at, int64_t n) {
      std::memcpy(to + at, p.data + inside, static_cast<size_t>(n));
    });
  }
  void CopyIn(int64_t begin, int64_t end, const std::byte* from) const {
    ForEach(begin, end, [from](const Piece& p, int64_t inside, int64_t at, int64_t n) {
      std::memcpy(p.data + inside, from + at, static_cast<size_t>(n));
    });
  }

 private:
  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;
};

}  // namespace shardc::mpi
