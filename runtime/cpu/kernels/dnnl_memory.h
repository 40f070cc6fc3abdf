// oneDNN's way to say that there is no memory.
#ifndef RUNTIME_CPU_KERNELS_DNNL_MEMORY_H_
#define RUNTIME_CPU_KERNELS_DNNL_MEMORY_H_

#include "oneapi/dnnl/dnnl.hpp"
#include "runtime/cpu/kernels/team_memory.h"

namespace shardc::cpu {

// Throws std::bad_alloc if that is what the status says.
inline void CheckMemory(dnnl_status_t status) {
  if (status == dnnl_out_of_memory) ThrowNoMemory();
}

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_DNNL_MEMORY_H_
