// When the threads of a rank's OpenMP teams were at work, for a profile: those of our kernels and
// of oneDNN alike.
//
// Both enter their parallel regions through GOMP_parallel of libgomp; team_trace.cc has a function
// of that name, which the dynamic linker finds first, notes the times and calls libgomp's. With
// another OpenMP runtime nothing is noted.
#ifndef RUNTIME_CPU_KERNELS_TEAM_TRACE_H_
#define RUNTIME_CPU_KERNELS_TEAM_TRACE_H_

#include <cstdint>
#include <vector>

namespace shardc::cpu {

struct TeamTrace {
  // From the first begin to the last end since it was cleared.
  struct Span {
    int64_t begin_ns = 0, end_ns = 0;  // 0: was not at work
  };
  int64_t (*now)() = nullptr;
  std::vector<Span> spans;  // by thread of the team; what is beyond its size is not noted
};

// Notes the teams that the calling thread starts from here on; null: no longer.
void TraceTeams(TeamTrace* trace);

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_TEAM_TRACE_H_
