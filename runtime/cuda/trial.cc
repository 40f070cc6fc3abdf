#include "runtime/cuda/trial.h"

#include <algorithm>

#include "ir/diagnostic.h"

namespace shardc::cuda {

void Deviation::Append(const Deviation& other, int64_t offset) {
  squares += other.squares;
  error_squares += other.error_squares;
  if (other.at < 0) return;
  const int64_t place = other.at + offset;
  if (other.excess < excess || (other.excess == excess && at >= 0 && at < place)) return;
  excess = other.excess;
  at = place;
  got = other.got;
  want = other.want;
}

std::vector<double> FastestTimes(TrialGpu& gpu, TrialGpu::Stream s,
                                 const std::vector<std::function<void()>>& ways) {
  // In rounds: a GPU that was idle takes its time to speed up, and slows down when it gets hot. The
  // first round loads code, and does not count.
  constexpr int kCounted = 3;
  std::vector<double> fastest(ways.size(), HUGE_VAL);
  std::vector<bool> refused(ways.size());
  for (int round = 0; round <= kCounted; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      if (refused[i]) continue;
      try {
        const double took = gpu.Time(ways[i], s);
        if (round > 0) fastest[i] = std::min(fastest[i], took);
      } catch (const Diagnostic&) {
        refused[i] = true;
        fastest[i] = HUGE_VAL;
      }
    }
  }
  return fastest;
}

Deviation Joined(std::span<const Deviation> parts) {
  Deviation all;
  for (const Deviation& part : parts) all.Append(part);
  return all;
}

}  // namespace shardc::cuda
