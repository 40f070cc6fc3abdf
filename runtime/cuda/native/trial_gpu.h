// Trials of kernels on the GPU of the calling thread.
#pragma once

#include "runtime/cuda/trial.h"

namespace shardc::cuda {

TrialGpu& ThisGpu();

}  // namespace shardc::cuda
