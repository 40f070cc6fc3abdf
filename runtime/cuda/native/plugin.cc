// The doors of libshardc_cuda.so.
#include "runtime/cuda_loader/plugin.h"

#include <cstdlib>

#include "runtime/cuda/joined.h"
#include "runtime/cuda/native/cublas_epilogues.h"
#include "runtime/cuda/native/cuda_device.h"
#include "runtime/cuda/native/nccl_api.h"
#include "runtime/cuda/native/nccl_carrier.h"
#include "runtime/cuda/runner.h"

namespace {

shardc::cuda::Machine ThisMachine() {
  shardc::cuda::SetNcclEnvironment();
  shardc::cuda::Machine machine;
  machine.gpus = shardc::cuda::CountGpus();
  machine.open = shardc::cuda::OpenGpu;
  machine.identify = shardc::cuda::IdentifyGpu;
  machine.connect = shardc::cuda::MakeNccl;
  machine.make_kernel = shardc::cuda::MakeCudaKernel;
  machine.make_joined = shardc::cuda::MakeJoinedKernel;
  machine.epilogues = shardc::cuda::CublasLtEpilogues();
  machine.capture = std::getenv("SHARDC_NO_CUDA_GRAPH") == nullptr;
  machine.capture_threads = std::getenv("SHARDC_CUDA_GRAPH_OF_THREADS") != nullptr;
  machine.always_connect = std::getenv("SHARDC_ALWAYS_NCCL") != nullptr;
  return machine;
}

}  // namespace

// Of one build with the binary: so C++ objects may pass.
extern "C" int shardc_cuda_version() { return shardc::kCudaPluginVersion; }

extern "C" int shardc_cuda_count_gpus() {
  shardc::cuda::SetNcclEnvironment();
  return shardc::cuda::CountGpus();
}

extern "C" shardc::cuda::Device* shardc_cuda_open_gpu(int gpu) {
  return shardc::cuda::OpenGpu(gpu).release();
}

extern "C" shardc::cuda::CudaKernel* shardc_cuda_make_kernel(const shardc::KernelRequest* request) {
  return shardc::cuda::MakeCudaKernel(*request).release();
}

extern "C" shardc::cuda::EpilogueLibrary* shardc_cuda_epilogues() {
  return shardc::cuda::CublasLtEpilogues();
}

extern "C" shardc::cuda::Carrier* shardc_cuda_connect(shardc::cuda::Device* device,
                                                      const shardc::Program* program,
                                                      const std::vector<std::vector<int>>* groups,
                                                      std::unique_ptr<shardc::Communicator>* host) {
  return shardc::cuda::MakeNccl(*device, *program, *groups, std::move(*host)).release();
}

extern "C" shardc::StepRunner* shardc_cuda_make_runner(const shardc::RunnerRequest* request) {
  return shardc::cuda::MakeRunnerOn(ThisMachine(), *request).release();
}

extern "C" shardc::StepRunner* shardc_cuda_make_rank(const shardc::RunnerRequest* request,
                                                     shardc::ProcessSeat* seat) {
  return shardc::cuda::MakeRankOn(ThisMachine(), *request, std::move(*seat)).release();
}
