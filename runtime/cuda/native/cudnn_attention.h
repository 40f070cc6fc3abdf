// cuDNN's attention beside our own.
#pragma once

#include <memory>

#include "runtime/cuda/cuda_kernel.h"
#include "runtime/cuda/cudnn/attention_library.h"

namespace shardc::cuda {

// A kernel that takes cuDNN's attention where that gave the results of `ours` in less time, by a
// trial that Tune holds once; `ours` itself where libshardc_cudnn.so, which lies beside the plugin,
// or libcudnn.so.9 is missing, and where $SHARDC_NO_CUDNN is set.
std::unique_ptr<CudaKernel> BesideCudnn(std::unique_ptr<CudaKernel> ours,
                                        const AttentionProblem& problem,
                                        const AttentionTensors& tensors);

}  // namespace shardc::cuda
