#include "runtime/cuda/trial.h"

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

Deviation Joined(std::span<const Deviation> parts) {
  Deviation all;
  for (const Deviation& part : parts) all.Append(part);
  return all;
}

}  // namespace shardc::cuda
