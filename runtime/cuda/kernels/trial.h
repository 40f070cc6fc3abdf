// The kernels of trials.
#pragma once

#include "runtime/cuda/cuda_kernel.h"
#include "runtime/cuda/kernels/geometry.h"
#include "runtime/cuda/trial.h"

namespace shardc::cuda {

// Enqueue on the launch's stream; all pointers are device memory. Throw Diagnostic E4301.
void LaunchNoise(const Launch& launch, const Noise& noise);
// `parts`: SumBlocks(c.count), which Joined makes the result of.
void LaunchComparison(const Launch& launch, const Comparison& c, Deviation* parts);

namespace emulated {
void LaunchNoise(const Launch& launch, const Noise& noise);
void LaunchComparison(const Launch& launch, const Comparison& c, Deviation* parts);
}  // namespace emulated

}  // namespace shardc::cuda
