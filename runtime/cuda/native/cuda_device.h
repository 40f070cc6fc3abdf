// The real Device, on the CUDA runtime.
#pragma once

#include <memory>

#include "runtime/cuda/device.h"
#include "runtime/cuda/runner.h"

namespace shardc::cuda {

// GPUs that this process sees. Throws Diagnostic E4302 when there is no driver or no GPU.
int CountGpus();
GpuIdentity IdentifyGpu(int index);
// Throws Diagnostic E4301; E4302 for a GPU older than sm_80.
std::unique_ptr<Device> OpenGpu(int index);

}  // namespace shardc::cuda
