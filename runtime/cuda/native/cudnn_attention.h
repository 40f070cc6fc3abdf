// cuDNN's attention beside our own.
#pragma once

#include <memory>

#include "runtime/cuda/cuda_kernel.h"
#include "runtime/cuda/cudnn/attention_library.h"

namespace shardc::cuda {

// A kernel that takes cuDNN's attention where that gave the results of `ours` in less time, by a
// trial that Tune holds once; `ours` itself where libshardc_cudnn.so, which lies beside the plugin,
// or libcudnn.so.9 is missing, and where $SHARDC_NO_CUDNN is set. cuDNN's runs in the fewest parts
// of the batch for which the `scratch` bytes that the instruction has, or 256 MiB, are enough. One
// trial serves all instructions with the problem, in as many parts as the first of them needs: what
// is chosen is the library.
std::unique_ptr<CudaKernel> BesideCudnn(std::unique_ptr<CudaKernel> ours,
                                        const AttentionProblem& problem,
                                        const AttentionTensors& tensors, int64_t scratch);

}  // namespace shardc::cuda
