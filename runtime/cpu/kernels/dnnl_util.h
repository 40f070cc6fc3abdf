// What the products by oneDNN share, for its versions 2 and 3, whose interfaces differ.
#ifndef RUNTIME_CPU_KERNELS_DNNL_UTIL_H_
#define RUNTIME_CPU_KERNELS_DNNL_UTIL_H_

#include "oneapi/dnnl/dnnl.hpp"
#include "runtime/cpu/kernels/team_memory.h"

namespace shardc::cpu {

// Throws std::bad_alloc if that is what the status says.
inline void CheckMemory(dnnl_status_t status) {
  if (status == dnnl_out_of_memory) ThrowNoMemory();
}

inline const dnnl::engine& CpuEngine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// Of a * b, and of a * b + bias where there is one.
inline dnnl::matmul::primitive_desc MatmulDesc(const dnnl::memory::desc& a,
                                               const dnnl::memory::desc& b,
                                               const dnnl::memory::desc* bias,
                                               const dnnl::memory::desc& c,
                                               const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  if (bias != nullptr) return {CpuEngine(), a, b, *bias, c, attr};
  return {CpuEngine(), a, b, c, attr};
#else
  using Desc = dnnl::matmul::desc;
  return {bias != nullptr ? Desc(a, b, *bias, c) : Desc(a, b, c), attr, CpuEngine()};
#endif
}

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_DNNL_UTIL_H_
