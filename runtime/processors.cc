#include "runtime/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <thread>

namespace shardc {

std::vector<int> UsableProcessors() {
  std::vector<int> processors;
  // The kernel's set may be larger than a cpu_set_t, and then it refuses to fill one.
  constexpr size_t kMostSets = 1024;
  for (size_t n = 1; n <= kMostSets; n *= 2) {
    std::vector<cpu_set_t> sets(n);
    const size_t bytes = n * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, sets.data()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    for (int p = 0; p < static_cast<int>(8 * bytes); ++p) {
      if (CPU_ISSET_S(p, bytes, sets.data())) processors.push_back(p);
    }
    break;
  }
  return processors;
}

int CountUsableProcessors() {
  const int usable = static_cast<int>(UsableProcessors().size());
  return usable > 0 ? usable : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void RunOn(std::span<const int> processors) {
  if (processors.empty()) return;
  const int last = std::ranges::max(processors);
  std::vector<cpu_set_t> sets(static_cast<size_t>(last) / CPU_SETSIZE + 1);
  const size_t bytes = sets.size() * sizeof(cpu_set_t);
  for (int p : processors) CPU_SET_S(p, bytes, sets.data());
  sched_setaffinity(0, bytes, sets.data());
}

}  // namespace shardc
