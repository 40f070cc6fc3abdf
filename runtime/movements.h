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

// What pack and unpack move: between a tensor and its pieces for the members of a group, which lie
// one after the other in the staged buffer.
struct PieceMoves {
  const TensorView* whole = nullptr;
  const TensorView* staged = nullptr;
  int dim = 0;                  // along which the tensor is cut
  std::vector<Run> whole_runs;  // what the tensor holds of the dim here
  Shape piece;                  // of one member
  int64_t piece_bytes = 0;
  std::vector<std::vector<Run>> runs;  // what each member's piece holds
};
PieceMoves PlanPieces(const KernelRequest& request, bool pack);

// copy, pack, unpack (see ir/program.h), local_slice and zero_padding; null for any other op.
std::unique_ptr<Kernel> MakeMovementKernel(const KernelRequest& request);

}  // namespace shardc
