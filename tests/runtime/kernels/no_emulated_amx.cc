// For processors that cannot have it.
#include "tests/runtime/kernels/emulated_amx.h"

namespace shardc::cpu {

const KernelTable* EmulatedAmx() { return nullptr; }

}  // namespace shardc::cpu
