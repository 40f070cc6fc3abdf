// Static, deterministic parallel loops over OpenMP.
//
// The split of [0, n) depends on n, grain and `threads` only, never on how many threads OpenMP
// really grants, so a kernel whose chunks are independent gives the same bits on every run. With
// one chunk the body runs on the calling thread and no parallel region is entered. Of exceptions
// bodies may only throw std::bad_alloc: the caller gets it once all of them have ended.
#ifndef RUNTIME_CPU_KERNELS_PARALLEL_H_
#define RUNTIME_CPU_KERNELS_PARALLEL_H_

#include <omp.h>

#include <cstdint>
#include <new>

#include "runtime/cpu/kernels/team_memory.h"

namespace shardc::cpu {

// Calls fn(chunk, chunks) for chunk in [0, chunks), at most `threads` at once.
template <typename Fn>
inline void ParallelChunks(int threads, int64_t chunks, const Fn& fn) {
  if (threads <= 1 || chunks <= 1) {
    for (int64_t c = 0; c < chunks; ++c) fn(c, chunks);
    return;
  }
  const int team = chunks < threads ? static_cast<int>(chunks) : threads;
  bool no_memory = false;
#pragma omp parallel num_threads(team)
  {
    try {
      const int64_t step = omp_get_num_threads();
      for (int64_t c = omp_get_thread_num(); c < chunks; c += step) fn(c, chunks);
    } catch (const std::bad_alloc&) {
#pragma omp atomic write
      no_memory = true;
    }
  }
  if (no_memory) ThrowNoMemory();
}

// Calls fn(begin, end) over at most `threads` contiguous pieces of [0, n), none shorter than
// `grain` unless it is the only one. Inner boundaries are multiples of `align`.
template <typename Fn>
inline void ParallelFor(int threads, int64_t n, int64_t grain, const Fn& fn, int64_t align = 1) {
  if (n <= 0) return;
  int64_t chunks = grain > 0 ? n / grain : n;
  if (chunks > threads) chunks = threads;
  if (chunks <= 1) {
    fn(int64_t{0}, n);
    return;
  }
  const int64_t units = (n + align - 1) / align;
  ParallelChunks(threads, chunks, [&](int64_t c, int64_t count) {
    const int64_t begin = units * c / count * align;
    int64_t end = units * (c + 1) / count * align;
    if (end > n) end = n;
    if (begin < end) fn(begin, end);
  });
}

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_PARALLEL_H_
