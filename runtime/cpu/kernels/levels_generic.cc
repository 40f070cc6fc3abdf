// Processors of which no more is known than what the compiler takes for granted: aarch64 with NEON.
#include "runtime/cpu/kernels/level_tables.h"

namespace shardc::cpu {

SHARDC_LEVEL_TABLE(v1)

std::vector<Isa> SupportedIsas() { return {Isa::kV1}; }

const KernelTable& KernelsFor(Isa isa) {
  static const KernelTable table = v1::Table(), none{};
  return isa == Isa::kV1 ? table : none;
}

}  // namespace shardc::cpu
