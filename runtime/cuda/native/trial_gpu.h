// Trials of kernels on the GPU of the calling thread.
#pragma once

#include "runtime/cuda/rival_kernel.h"

namespace shardc::cuda {

TrialGpu& ThisGpu();

}  // namespace shardc::cuda
