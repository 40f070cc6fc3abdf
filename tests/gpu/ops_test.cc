// Every op sample on the GPU against the CPU's reference kernels, by plans of one op.
#include <gmock/gmock.h>

#include "passes/emit.h"
#include "tests/exec/harness.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/kernel_cases.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

// The sample with its floats in another type; the op decides whether it has such a form.
OpSample In(const OpSample& sample, DType dtype) {
  OpSample out = sample;
  for (HostTensor& t : out.operands) t = FloatsAs(t, dtype);
  return out;
}

Tensors RunSample(const OpSample& sample, std::span<const Program> programs,
                  SessionOptions options) {
  Session session(programs, options,
                  [](int64_t, const NamedBuffer&, const Buffer& b, std::byte* local) {
                    std::fill_n(local, b.bytes, std::byte{0});
                  });
  for (size_t i = 0; i < programs[0].inputs.size(); ++i) {
    session.SetInput(programs[0].inputs[i].name, sample.operands[i]);
  }
  session.Step();
  Tensors out;
  for (const std::string& name : session.OutputNames()) out[name] = session.Output(name);
  return out;
}

class GpuOps : public ::testing::TestWithParam<DType> {};

TEST_P(GpuOps, EverySampleAgainstTheReference) {
  SHARDC_NEEDS_GPU();
  double tolerance = GetParam() == DType::kF64   ? 1e-12
                     : GetParam() == DType::kF32 ? 2e-5
                     : GetParam() == DType::kF16 ? 4e-3
                                                 : 3e-2;
  SessionOptions cpu, gpu;
  cpu.reference_kernels = true;
  gpu.backend = "cuda";
  int ran = 0;
  for (const OpSample& original : OpSamples()) {
    if (!HasKernel(original.op)) continue;
    OpSample sample = In(original, GetParam());
    SCOPED_TRACE(sample.Name());
    std::vector<Program> programs;
    Tensors expected;
    try {
      SampleGraph s = BuildSample(sample);
      programs.push_back(EmitProgram(s.graph));
      expected = RunSample(sample, programs, cpu);
    } catch (const Diagnostic&) {
      continue;  // the op has no form in this type
    }
    ++ran;
    try {
      for (const auto& [name, value] : RunSample(sample, programs, gpu)) {
        EXPECT_LE(WorstDifference(value, expected.at(name), 1e-3), tolerance) << name;
      }
    } catch (const Diagnostic& d) {
      ADD_FAILURE() << d.what();
    }
  }
  EXPECT_GT(ran, 50);
}

INSTANTIATE_TEST_SUITE_P(Types, GpuOps,
                         ::testing::Values(DType::kF64, DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace shardc::testing
