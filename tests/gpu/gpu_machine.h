// Runs kernels on GPU 0.
#pragma once

#include "runtime/cuda/owned.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/kernel_cases.h"

namespace shardc::testing {

class GpuMachine : public KernelMachine {
 public:
  GpuMachine()
      : device_(FromPlugin<CudaPluginOpenGpu>("shardc_cuda_open_gpu")(0)),
        stream_(*device_, false) {}
  std::unique_ptr<cuda::CudaKernel> Make(const KernelRequest& request) override {
    static auto* make = FromPlugin<CudaPluginMakeKernel>("shardc_cuda_make_kernel");
    return std::unique_ptr<cuda::CudaKernel>(make(&request));
  }
  std::byte* Allocate(int64_t bytes) override {
    std::byte* p = device_->Allocate(bytes, "a test");
    device_->Fill(p, 0x77, bytes, stream_.get());
    Wait();
    return p;
  }
  void Free(std::byte* p) override { device_->Free(p); }
  void Upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    if (bytes > 0) device_->CopyIn(to, from, bytes, stream_.get());
    Wait();
  }
  void Download(std::byte* to, const std::byte* from, int64_t bytes) override {
    if (bytes > 0) device_->CopyOut(to, from, bytes, stream_.get());
    Wait();
  }
  cuda::Launch NewLaunch() override { return device_->LaunchOn(stream_.get()); }
  void Wait() override { device_->Synchronize(stream_.get()); }

 private:
  std::unique_ptr<cuda::Device> device_;
  cuda::OwnedStream stream_;
};

}  // namespace shardc::testing
