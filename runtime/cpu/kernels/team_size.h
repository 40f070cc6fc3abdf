#ifndef RUNTIME_CPU_KERNELS_TEAM_SIZE_H_
#define RUNTIME_CPU_KERNELS_TEAM_SIZE_H_

#include <omp.h>

#include <algorithm>

namespace shardc::cpu {

// As many of `threads` as the environment (OMP_THREAD_LIMIT) lets a team have. oneDNN computes
// nonsense, silently, in a team smaller than what it was asked for.
inline int GrantedThreads(int threads) {
  return std::max(1, std::min(threads, omp_get_thread_limit()));
}

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_TEAM_SIZE_H_
