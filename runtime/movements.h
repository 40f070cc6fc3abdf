// Kernels that only move bytes within a rank: what every backend has besides its ops.
#pragma once

#include <memory>
#include <vector>

#include "runtime/kernel.h"

namespace shardc {

// A stretch to copy along one dim, in elements of that dim.
struct RunMatch {
  int64_t from = 0, to = 0, size = 0;
  bool operator==(const RunMatch&) const = default;
};

// Where two lists of runs (sorted by `global` within a segment, as LocalRuns gives them) hold the
// same global elements.
std::vector<RunMatch> MatchRuns(const std::vector<Run>& from, const std::vector<Run>& to);

// copy, pack, unpack (see ir/program.h), local_slice and zero_padding; null for any other op.
std::unique_ptr<Kernel> MakeMovementKernel(const KernelRequest& request);

}  // namespace shardc
