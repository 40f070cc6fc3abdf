// The CUDA kernels on a GPU against the reference of every op. Skipped without one.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tests/gpu/kernel_cases.h"

namespace shardc::testing {
namespace {

void Check(cudaError_t status) {
  if (status != cudaSuccess) throw InternalError(cudaGetErrorString(status));
}

class Gpu : public KernelMachine {
 public:
  Gpu() {
    Check(cudaStreamCreate(&stream_));
    SHARDC_CHECK(cublasLtCreate(&blas_) == CUBLAS_STATUS_SUCCESS);
    Check(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, 0));
  }
  ~Gpu() override {
    cublasLtDestroy(blas_);
    cudaStreamDestroy(stream_);
  }
  std::unique_ptr<cuda::CudaKernel> Make(const KernelRequest& request) override {
    return cuda::MakeCudaKernel(request);
  }
  std::byte* Allocate(int64_t bytes) override {
    void* p = nullptr;
    Check(cudaMalloc(&p, static_cast<size_t>(bytes)));
    Check(cudaMemset(p, 0x77, static_cast<size_t>(bytes)));
    return static_cast<std::byte*>(p);
  }
  void Free(std::byte* p) override { cudaFree(p); }
  void Upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    Check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  }
  void Download(std::byte* to, const std::byte* from, int64_t bytes) override {
    Check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
  }
  cuda::Launch NewLaunch() override {
    cuda::Launch launch;
    launch.stream = stream_;
    launch.blas = blas_;
    launch.sm_count = sm_count_;
    return launch;
  }
  void Wait() override { Check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t blas_ = nullptr;
  int sm_count_ = 1;
};

class CudaKernelsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }
  static void RunAll(const std::vector<KernelCase>& cases) {
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
