#include "runtime/cpu/kernels/team_trace.h"

#include <dlfcn.h>
#include <omp.h>

#include <cstdlib>

namespace shardc::cpu {
namespace {

thread_local TeamTrace* team_trace = nullptr;

// What libgomp runs on every thread of a team.
struct Region {
  void (*body)(void*);
  void* data;
  TeamTrace* trace;
};

void RunTraced(void* argument) {
  const auto& region = *static_cast<const Region*>(argument);
  TeamTrace& trace = *region.trace;
  const int64_t begin = trace.now();
  region.body(region.data);
  const auto thread = static_cast<size_t>(omp_get_thread_num());
  if (thread >= trace.spans.size()) return;
  TeamTrace::Span& span = trace.spans[thread];
  if (span.begin_ns == 0) span.begin_ns = begin;
  span.end_ns = trace.now();
}

}  // namespace

void TraceTeams(TeamTrace* trace) { team_trace = trace; }

}  // namespace shardc::cpu

// libgomp's interface to what GCC makes of `#pragma omp parallel`.
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  static const auto libgomp =
      reinterpret_cast<decltype(&GOMP_parallel)>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  if (libgomp == nullptr) std::abort();
  if (shardc::cpu::team_trace == nullptr) return libgomp(body, data, threads, flags);
  shardc::cpu::Region region{body, data, shardc::cpu::team_trace};
  libgomp(shardc::cpu::RunTraced, &region, threads, flags);
}
