#include "runtime/cpu/kernels/layout.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/transpose.h"

namespace shardc::cpu {
namespace {

// Elements of a tile along which dst is dense, a cache line, and along which src is: four cache
// lines of each row at once.
template <typename T>
constexpr int64_t kTile = 64 / sizeof(T);
template <typename T>
constexpr int64_t kOther = 4 * kTile<T>;
constexpr int64_t kGrain = 16384;  // elements per thread below which a team does not pay

struct Dim {
  int64_t size;
  int64_t src;
  int64_t dst;
};

struct Loops {
  std::array<Dim, kMaxRank + 2> dims;
  int rank = 0;
};

// Drops dims of size 1, orders by descending dst stride (stable), and merges neighbours that are
// one run in both.
Loops Simplify(std::span<const int64_t> src_strides, std::span<const int64_t> dst_strides,
               std::span<const int64_t> sizes) {
  Loops loops;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) loops.dims[loops.rank++] = {sizes[d], src_strides[d], dst_strides[d]};
  }
  std::stable_sort(loops.dims.begin(), loops.dims.begin() + loops.rank,
                   [](const Dim& a, const Dim& b) { return std::abs(a.dst) > std::abs(b.dst); });
  int last = -1;
  for (int d = 0; d < loops.rank; ++d) {
    const Dim dim = loops.dims[d];
    if (last >= 0 && loops.dims[last].src == dim.src * dim.size &&
        loops.dims[last].dst == dim.dst * dim.size) {
      loops.dims[last] = {loops.dims[last].size * dim.size, dim.src, dim.dst};
    } else {
      loops.dims[++last] = dim;
    }
  }
  loops.rank = last + 1;
  return loops;
}

// dst[o * dst_stride + i] = src[i * src_stride + o] for `rows` x `columns`, multiples of
// kTransposed and at most kTile x kOther. The `next` rows after them are fetched.
template <typename T>
void TransposeTile(const T* src, int64_t src_stride, int64_t rows, int64_t columns, int64_t next,
                   T* dst, int64_t dst_stride) {
  constexpr int64_t kLine = kTile<T>;
  for (int64_t i = 0; i < next; ++i) {
    const T* row = src + (rows + i) * src_stride;
    for (int64_t o = 0; o < columns; o += kLine) __builtin_prefetch(row + o);
  }
  const auto transpose = [&](T* to, int64_t stride) {
    for (int64_t o = 0; o < columns; o += kTransposed<T>) {
      for (int64_t i = 0; i < rows; i += kTransposed<T>) {
        TransposeBlock(src + i * src_stride + o, src_stride, to + o * stride + i, stride);
      }
    }
  };
  if (rows < kLine) return transpose(dst, dst_stride);
  // By way of the stack: dst is written a cache line at a time, also where its stride makes the
  // lines compete for the same places in the cache.
  alignas(64) T tile[kOther<T> * kLine];
  transpose(tile, kLine);
  for (int64_t o = 0; o < columns; ++o) {
    std::memcpy(dst + o * dst_stride, tile + o * kLine, kLine * sizeof(T));
  }
}

// One row or tile at src, dst: `inner` is the last dim of dst, `other` the dim along which src is
// dense (or size 1).
template <typename T>
void CopyTile(const T* src, T* dst, const Dim& other, const Dim& inner) {
  if (other.size == 1) {
    if (inner.src == 1 && inner.dst == 1) {
      std::memcpy(dst, src, static_cast<size_t>(inner.size) * sizeof(T));
    } else if (inner.src == 0 && inner.dst == 1) {
      std::fill(dst, dst + inner.size, *src);
    } else if (inner.dst == 1) {
      for (int64_t i = 0; i < inner.size; ++i) dst[i] = src[i * inner.src];
    } else {
      for (int64_t i = 0; i < inner.size; ++i) dst[i * inner.dst] = src[i * inner.src];
    }
    return;
  }
  const auto one_by_one = [&](int64_t i0, int64_t i1, int64_t o0, int64_t o1) {
    for (int64_t o = o0; o < o1; ++o) {
      const T* from = src + o * other.src;
      T* to = dst + o * other.dst;
      if (inner.dst == 1) {
        for (int64_t i = i0; i < i1; ++i) to[i] = from[i * inner.src];
      } else {
        for (int64_t i = i0; i < i1; ++i) to[i * inner.dst] = from[i * inner.src];
      }
    }
  };
  constexpr int64_t kWhole = kTransposed<T>;
  const int64_t columns = inner.dst == 1 ? other.size / kWhole * kWhole : 0;
  for (int64_t i0 = 0; i0 < inner.size; i0 += kTile<T>) {
    const int64_t i1 = std::min(i0 + kTile<T>, inner.size);
    const int64_t rows = columns == 0 ? 0 : (i1 - i0) / kWhole * kWhole;
    if (rows > 0) {
      const int64_t next = std::min(kTile<T>, inner.size - i1);
      TransposeTile(src + i0 * inner.src, inner.src, rows, columns, next, dst + i0, other.dst);
      one_by_one(i0 + rows, i1, 0, columns);
      one_by_one(i0, i1, columns, other.size);
    } else {
      one_by_one(i0, i1, 0, other.size);
    }
  }
}

template <typename T>
void Copy(const T* src, T* dst, const Loops& loops, int threads) {
  // Split off the innermost dst dim, and, if src is dense along another one, tiles of that.
  Loops outer = loops;
  const Dim inner = outer.dims[--outer.rank];
  Dim other = {1, 0, 0};
  if (inner.src != 1 && inner.src != 0) {
    for (int d = 0; d < outer.rank; ++d) {
      if (outer.dims[d].src != 1) continue;
      other = outer.dims[d];
      const int64_t tiles = (other.size + kOther<T> - 1) / kOther<T>;
      outer.dims[d] = {tiles, other.src * kOther<T>, other.dst * kOther<T>};
      std::swap(outer.dims[d], outer.dims[outer.rank - 1]);
      break;
    }
  }
  const bool tiled = other.size != 1;
  int64_t rows = 1;
  for (int d = 0; d < outer.rank; ++d) rows *= outer.dims[d].size;
  const int64_t work = inner.size * (tiled ? kOther<T> : 1);
  ParallelFor(threads, rows, 1 + kGrain / work, [&](int64_t begin, int64_t end) {
    std::array<int64_t, kMaxRank + 2> index{};
    int64_t rest = begin;
    const T* from = src;
    T* to = dst;
    for (int d = outer.rank - 1; d >= 0; --d) {
      index[d] = rest % outer.dims[d].size;
      rest /= outer.dims[d].size;
      from += index[d] * outer.dims[d].src;
      to += index[d] * outer.dims[d].dst;
    }
    for (int64_t row = begin; row < end; ++row) {
      Dim part = other;
      if (tiled) part.size = std::min(kOther<T>, other.size - index[outer.rank - 1] * kOther<T>);
      CopyTile(from, to, part, inner);
      for (int d = outer.rank - 1; d >= 0; --d) {
        from += outer.dims[d].src;
        to += outer.dims[d].dst;
        if (++index[d] < outer.dims[d].size) break;
        from -= outer.dims[d].src * outer.dims[d].size;
        to -= outer.dims[d].dst * outer.dims[d].size;
        index[d] = 0;
      }
    }
  });
}

}  // namespace

void StridedCopy(const void* src, std::span<const int64_t> src_strides, void* dst,
                 std::span<const int64_t> dst_strides, std::span<const int64_t> dims,
                 int element_bytes, int threads) {
  if (dims.size() > kMaxRank || src_strides.size() != dims.size() ||
      dst_strides.size() != dims.size()) {
    throw std::invalid_argument("StridedCopy: ranks differ or exceed 8");
  }
  for (int64_t size : dims) {
    if (size == 0) return;
  }
  Loops loops = Simplify(src_strides, dst_strides, dims);
  if (loops.rank == 0) loops.dims[loops.rank++] = {1, 1, 1};
  switch (element_bytes) {
    case 1:
      return Copy(static_cast<const uint8_t*>(src), static_cast<uint8_t*>(dst), loops, threads);
    case 2:
      return Copy(static_cast<const uint16_t*>(src), static_cast<uint16_t*>(dst), loops, threads);
    case 4:
      return Copy(static_cast<const uint32_t*>(src), static_cast<uint32_t*>(dst), loops, threads);
    case 8:
      return Copy(static_cast<const uint64_t*>(src), static_cast<uint64_t*>(dst), loops, threads);
    default:
      throw std::invalid_argument("StridedCopy: element size must be 1, 2, 4 or 8 bytes");
  }
}

void Permute(const void* src, void* dst, std::span<const int64_t> dims, std::span<const int> perm,
             int element_bytes, int threads) {
  const size_t rank = dims.size();
  if (rank > kMaxRank || perm.size() != rank) {
    throw std::invalid_argument("Permute: ranks differ or exceed 8");
  }
  std::array<int64_t, kMaxRank> natural{}, src_strides{}, dst_strides{}, sizes{};
  int64_t stride = 1;
  for (size_t d = rank; d-- > 0; stride *= dims[d]) natural[d] = stride;
  stride = 1;
  for (size_t d = rank; d-- > 0; stride *= sizes[d]) {
    sizes[d] = dims[static_cast<size_t>(perm[d])];
    src_strides[d] = natural[static_cast<size_t>(perm[d])];
    dst_strides[d] = stride;
  }
  StridedCopy(src, {src_strides.data(), rank}, dst, {dst_strides.data(), rank},
              {sizes.data(), rank}, element_bytes, threads);
}

}  // namespace shardc::cpu
