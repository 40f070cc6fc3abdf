// The doors of libshardc_cuda.so.
#include "runtime/cuda_loader/plugin.h"

#include <cstdlib>

#include "runtime/cuda/native/cuda_device.h"
#include "runtime/cuda/native/nccl_carrier.h"
#include "runtime/cuda/runner.h"

// Of one build with the binary: so C++ objects may pass.
extern "C" int shardc_cuda_version() { return shardc::kCudaPluginVersion; }

extern "C" shardc::StepRunner* shardc_cuda_make_runner(const shardc::RunnerRequest* request) {
  shardc::cuda::Machine machine;
  machine.gpus = shardc::cuda::CountGpus();
  machine.open = shardc::cuda::OpenGpu;
  machine.connect = shardc::cuda::MakeNccl;
  machine.make_kernel = shardc::cuda::MakeCudaKernel;
  machine.capture = std::getenv("SHARDC_NO_CUDA_GRAPH") == nullptr;
  machine.always_connect = std::getenv("SHARDC_ALWAYS_NCCL") != nullptr;
  return shardc::cuda::MakeRunnerOn(machine, *request).release();
}
