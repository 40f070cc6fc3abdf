// What a run tells: results and times, for people or as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/session.h"

namespace shardc {

struct StepValues {
  // Before the step's update; nothing where the plan has none.
  std::optional<double> loss, grad_norm;
  std::optional<double> learning_rate;  // of the update; nothing where it is always the same
  std::optional<double> loss_scale;     // nothing where no gradient passes f16
};

struct RunReport {
  std::vector<std::pair<std::string, double>> outputs;  // scalars, in the plan's order
  std::vector<StepValues> steps;                        // with --steps
  std::vector<double> times_s;                          // of each timed step
  std::vector<double> host_times_s;                     // of these, without waiting for GPUs
  int64_t tokens = 0;                                   // in one step; 0: not a token model
  std::optional<double> gemm_share;                     // of the time, with --repeat
  int64_t peak_bytes = 0, collective_bytes = 0;
  std::optional<GpuMemory> gpu_memory;
};

// Exactly one JSON object on stdout.
void PrintRunJson(const RunReport& report);
// One line on stdout, at once; before that of the first a heading.
void PrintStep(size_t number, const StepValues& values);
// Lines on stdout; nothing where the steps have theirs.
void PrintRunText(const RunReport& report);
// min, median, tokens per second, the GEMMs' share, bytes moved: on stderr.
void PrintTimes(const RunReport& report);

}  // namespace shardc
