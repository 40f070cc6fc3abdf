// The CUDA kernels on a GPU against the reference of every op. Skipped without one.
#include <gtest/gtest.h>

#include "tests/gpu/gpu_machine.h"
#include "tests/gpu/made_again_cases.h"

namespace shardc::testing {
namespace {

class CudaKernelsOnGpu : public ::testing::Test {
 protected:
  static void RunAll(const std::vector<KernelCase>& cases) {
    SHARDC_NEEDS_GPU();
    GpuMachine gpu;
    for (const KernelCase& c : cases) {
      try {
        EXPECT_EQ(RunCase(gpu, c), "") << c.name;
      } catch (const Diagnostic& d) {
        ADD_FAILURE() << c.name << ": " << d.what();
      }
    }
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
TEST_F(CudaKernelsOnGpu, Types) { RunAll(TypeCases()); }
TEST_F(CudaKernelsOnGpu, Sharded) { RunAll(ShardedCases()); }
// Which want much shared memory; the PTX machine runs them with little, too.
TEST_F(CudaKernelsOnGpu, AttentionOfWideHeads) {
  std::vector<KernelCase> cases;
  for (DType half : {DType::kBF16, DType::kF16}) {
    for (KernelCase& c : LargeCases(half)) {
      const bool attends = c.op.find("attention_grad") != std::string::npos;
      if (attends && c.operands[0].shape().back() > 128) cases.push_back(std::move(c));
    }
  }
  EXPECT_FALSE(cases.empty());
  RunAll(cases);
}
TEST_F(CudaKernelsOnGpu, WhatIsMadeAgainHasTheSameBits) {
  SHARDC_NEEDS_GPU();
  GpuMachine gpu;
  EXPECT_EQ(WhereMadeAgainDiffers([&](const KernelCase& c) { return RunOn(gpu, c); }), "");
}

}  // namespace
}  // namespace shardc::testing
