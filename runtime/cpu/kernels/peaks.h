// How fast this machine can be at best, for profiles to compare with. Ranks that share a machine
// measure at the same time, so that they share it here too.
#ifndef RUNTIME_CPU_KERNELS_PEAKS_H_
#define RUNTIME_CPU_KERNELS_PEAKS_H_

#include <cstdint>

namespace shardc::cpu {

// Operations per second of an f32 product of square matrices, the better of two sizes; takes some
// 0.2 s.
double MeasureGemmFlops(int threads);
// Bytes read and written per second by copies of `bytes` bytes; takes some 0.1 s.
double MeasureCopyBytes(int threads, int64_t bytes);

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_PEAKS_H_
