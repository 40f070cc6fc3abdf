// A product of few rows keeps a packed copy of its weight, where that serves more than one step.
#include <gtest/gtest.h>

#include <array>

#include "runtime/kernel.h"
#include "tests/ir/op_samples.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

TEST(PackedWeight, IsHeldWhereStepsChangeNoState) {
  constexpr int64_t kRows = 4, kIn = 512, kOut = 384;
  Program program;
  program.buffers.resize(3);
  program.buffers[1].space = Space::kState;
  Instruction instruction;
  instruction.op = "matmul";
  instruction.operands = {0, 1};
  instruction.results = {2};
  HostTensor x = As(RandomFloats({kRows, kIn}, 1), DType::kF32),
             w = As(RandomFloats({kIn, kOut}, 2), DType::kF32);
  std::array<HostTensor, 2> y = {HostTensor(DType::kF32, {kRows, kOut}),
                                 HostTensor(DType::kF32, {kRows, kOut})};
  std::array<int64_t, 2> held;
  const TensorView in[] = {{x.raw(), DType::kF32, x.shape(), nullptr},
                           {w.raw(), DType::kF32, w.shape(), nullptr}};
  for (int changes : {0, 1}) {
    const TensorView out[] = {{y[changes].raw(), DType::kF32, y[changes].shape(), nullptr}};
    KernelRequest request{program, instruction,
                          KernelCall{&instruction.attrs, in, out, nullptr, 0, 1}, changes == 1};
    auto kernel = MakeCpuKernel(request);
    ASSERT_TRUE(kernel);
    held[changes] = kernel->held_bytes();
    for (int step = 0; step < 2; ++step) kernel->Run();
  }
  EXPECT_LT(held[1], kIn * kOut * 4);
  for (int64_t i = 0; i < kRows * kOut; ++i) {
    ASSERT_NEAR(y[0].AsDouble(i), y[1].AsDouble(i), 1e-3);
    double exact = 0;
    for (int64_t k = 0; k < kIn; ++k) {
      exact += x.AsDouble(i / kOut * kIn + k) * w.AsDouble(k * kOut + i % kOut);
    }
    ASSERT_NEAR(y[1].AsDouble(i), exact, 1e-3);
  }
  EXPECT_GE(held[0], held[1]);
}

// The copy of a weight would be made for nothing.
TEST(PackedWeight, IsNotHeldForManyRows) {
  constexpr int64_t kRows = 100, kIn = 64, kOut = 96;
  Program program;
  program.buffers.resize(3);
  program.buffers[1].space = Space::kState;
  Instruction instruction;
  instruction.op = "matmul";
  instruction.operands = {0, 1};
  instruction.results = {2};
  HostTensor x(DType::kF32, {kRows, kIn}), w(DType::kF32, {kIn, kOut}),
      y(DType::kF32, {kRows, kOut});
  const TensorView in[] = {{x.raw(), DType::kF32, x.shape(), nullptr},
                           {w.raw(), DType::kF32, w.shape(), nullptr}};
  const TensorView out[] = {{y.raw(), DType::kF32, y.shape(), nullptr}};
  KernelRequest request{program, instruction,
                        KernelCall{&instruction.attrs, in, out, nullptr, 0, 1}, false};
  auto kernel = MakeCpuKernel(request);
  ASSERT_TRUE(kernel);
  EXPECT_LT(kernel->held_bytes(), kIn * kOut * 4);
}

}  // namespace
}  // namespace shardc::testing
