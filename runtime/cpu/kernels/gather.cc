#include "runtime/cpu/kernels/gather.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/cpu/kernels/parallel.h"

namespace shardc::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements per thread below which a team does not pay

// Where in its group the tuple's block begins; -1 where an index is out of range.
inline int64_t BlockOf(const TupleArgs& a, const int64_t* tuple) {
  int64_t at = 0;
  for (int d = 0; d < a.dims; ++d) {
    const int64_t n = a.sizes[d], i = tuple[d] < 0 ? tuple[d] + n : tuple[d];
    if (i < 0 || i >= n) return -1;
    at += i * a.strides[d];
  }
  return at;
}

int64_t FirstOutOfRange(const TupleArgs& a) {
  for (int64_t i = 0; i < a.groups * a.tuples * a.dims; ++i) {
    const int64_t n = a.sizes[i % a.dims];
    if (a.indices[i] < -n || a.indices[i] >= n) return i;
  }
  return -1;
}

// each(group, tuple, block) for the tuples [begin, end) of all; false where an index is out of
// range.
template <typename Each>
bool ForTuples(const TupleArgs& a, int64_t begin, int64_t end, const Each& each) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t block = BlockOf(a, a.indices + t * a.dims);
    if (block < 0) return false;
    each(t / a.tuples, t, block);
  }
  return true;
}

template <typename T>
int64_t Gather(const TupleArgs& a, const T* x, T* y, int threads) {
  std::atomic<bool> fits = true;
  const int64_t grain = 1 + kGrain / (a.block + 1);
  ParallelFor(threads, a.groups * a.tuples, grain, [&](int64_t begin, int64_t end) {
    const bool all = ForTuples(a, begin, end, [&](int64_t group, int64_t t, int64_t block) {
      const T* from = x + group * a.group_size + block;
      if (a.block == 1) {
        y[t] = *from;
      } else {
        std::memcpy(y + t * a.block, from, a.block * sizeof(T));
      }
    });
    if (!all) fits = false;
  });
  return fits ? -1 : FirstOutOfRange(a);
}

}  // namespace

int64_t GatherTuples(const TupleArgs& a, const void* x, void* y, int element_bytes, int threads) {
  const auto gather = [&](auto type) {
    using T = decltype(type);
    return Gather(a, static_cast<const T*>(x), static_cast<T*>(y), threads);
  };
  switch (element_bytes) {
    case 1:
      return gather(uint8_t());
    case 2:
      return gather(uint16_t());
    case 4:
      return gather(uint32_t());
    default:
      return gather(uint64_t());
  }
}

int64_t AddTuples(const TupleArgs& a, const float* dy, float* dx, int threads) {
  std::atomic<bool> fits = true;
  const int64_t grain = 1 + kGrain / (a.group_size + a.tuples * a.block + 1);
  ParallelFor(threads, a.groups, grain, [&](int64_t begin, int64_t end) {
    std::fill(dx + begin * a.group_size, dx + end * a.group_size, 0.0F);
    const bool all = ForTuples(a, begin * a.tuples, end * a.tuples,
                               [&](int64_t group, int64_t t, int64_t block) {
                                 float* to = dx + group * a.group_size + block;
                                 const float* from = dy + t * a.block;
                                 for (int64_t i = 0; i < a.block; ++i) to[i] += from[i];
                               });
    if (!all) fits = false;
  });
  return fits ? -1 : FirstOutOfRange(a);
}

}  // namespace shardc::cpu
