// The kernels of Isa::kAmx with emulated_tiles.h, for machines that have AVX-512 but no AMX.
#ifndef TESTS_RUNTIME_KERNELS_EMULATED_AMX_H_
#define TESTS_RUNTIME_KERNELS_EMULATED_AMX_H_

#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {

// On top of v4. Null where this machine lacks AVX-512, or has AMX itself.
const KernelTable* EmulatedAmx();

}  // namespace shardc::cpu

#endif  // TESTS_RUNTIME_KERNELS_EMULATED_AMX_H_
