// For bounds on how long something takes: the same however busy the machine is.
#pragma once

#include <time.h>

namespace shardc::testing {

// Processor time of this thread so far.
inline double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace shardc::testing
