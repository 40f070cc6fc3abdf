// Memory set by kernels: a graph of kernels alone, each after another, is launched in a time that
// hardly grows with their number. On an H200 graphs with memsets took 0.1 to 0.9 us a node, and one
// of some 1700 blocked the host for a quarter of the step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace shardc::cuda {

// Enqueues a kernel that sets each of the bytes. Throws Diagnostic E4301.
void LaunchFill(std::byte* to, int byte, int64_t bytes, cudaStream_t s);
// The same as a node of a graph, without dependencies; at least one byte.
cudaError_t AddFillNode(cudaGraphNode_t* node, cudaGraph_t graph, std::byte* to, int byte,
                        int64_t bytes);

// Puts such a kernel in the place of each memset of a captured graph that sets all bytes of one
// stretch alike, as cuBLASLt and cuDNN do with their counters. What CUDA does not let it replace
// stays as it is; before CUDA 12.3 all of them.
void MemsetsToKernels(cudaGraph_t graph);

}  // namespace shardc::cuda
