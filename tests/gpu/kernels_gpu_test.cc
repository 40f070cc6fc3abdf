// The CUDA kernels on a GPU against the reference of every op. Skipped without one.
#include <gtest/gtest.h>

#include "runtime/cuda/owned.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/kernel_cases.h"

namespace shardc::testing {
namespace {

class Gpu : public KernelMachine {
 public:
  Gpu()
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

class CudaKernelsOnGpu : public ::testing::Test {
 protected:
  static void RunAll(const std::vector<KernelCase>& cases) {
    SHARDC_NEEDS_GPU();
    Gpu gpu;
    for (const KernelCase& c : cases) EXPECT_EQ(RunCase(gpu, c), "") << c.name;
  }
};

TEST_F(CudaKernelsOnGpu, SamplesF32) { RunAll(SampleCases(DType::kF32)); }
TEST_F(CudaKernelsOnGpu, SamplesF64) { RunAll(SampleCases(DType::kF64)); }
TEST_F(CudaKernelsOnGpu, SamplesBf16) { RunAll(SampleCases(DType::kBF16)); }
TEST_F(CudaKernelsOnGpu, SamplesF16) { RunAll(SampleCases(DType::kF16)); }
TEST_F(CudaKernelsOnGpu, LargeF32) { RunAll(LargeCases(DType::kF32)); }
TEST_F(CudaKernelsOnGpu, LargeF64) { RunAll(LargeCases(DType::kF64)); }
TEST_F(CudaKernelsOnGpu, LargeBf16) { RunAll(LargeCases(DType::kBF16)); }
TEST_F(CudaKernelsOnGpu, LargeF16) { RunAll(LargeCases(DType::kF16)); }
TEST_F(CudaKernelsOnGpu, Sharded) { RunAll(ShardedCases()); }

}  // namespace
}  // namespace shardc::testing
