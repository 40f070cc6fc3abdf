// What the binary and libshardc_cuda.so must agree on. The plugin is of the same build as the
// binary, so C++ objects and exceptions pass between them; the entry points are C, to be found by
// name.
#pragma once

#include "runtime/backend.h"
#include "runtime/kernel.h"

namespace shardc {

namespace cuda {
class CudaKernel;
class Device;
class Carrier;
class EpilogueLibrary;
}  // namespace cuda

// Raised whenever RunnerRequest, StepRunner or what they hold changes.
inline constexpr int kCudaPluginVersion = 5;
using CudaPluginVersion = int();    // "shardc_cuda_version"
using CudaPluginCountGpus = int();  // "shardc_cuda_count_gpus"; throws Diagnostic
using CudaPluginMakeRunner =
    StepRunner*(const RunnerRequest*);  // "shardc_cuda_make_runner"; throws Diagnostic
using CudaPluginMakeRank = StepRunner*(const RunnerRequest*,
                                       ProcessSeat*);  // "shardc_cuda_make_rank"; throws Diagnostic

// For tests of parts.
using CudaPluginOpenGpu = cuda::Device*(int gpu);                      // "shardc_cuda_open_gpu"
using CudaPluginMakeKernel = cuda::CudaKernel*(const KernelRequest*);  // "shardc_cuda_make_kernel"
using CudaPluginConnect = cuda::Carrier*(cuda::Device*, const Program*,
                                         const std::vector<std::vector<int>>* groups,
                                         std::unique_ptr<Communicator>*);  // "shardc_cuda_connect"
using CudaPluginEpilogues = cuda::EpilogueLibrary*();  // "shardc_cuda_epilogues"; null: not wanted

}  // namespace shardc
