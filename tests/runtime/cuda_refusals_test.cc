// What the CUDA backend refuses before it touches a GPU.
#include <gmock/gmock.h>

#include "ir/diagnostic.h"
#include "runtime/cuda/runner.h"
#include "tests/ir/thrown.h"
#include "tests/runtime/fake_device.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;

TEST(CudaRefusals, ReferenceKernels) {
  SessionOptions options;
  options.reference_kernels = true;
  const StateReader none;
  const Diagnostic d = Thrown([&] { cuda::MakeRunnerOn(cuda::Machine{}, {{}, options, none}); });
  EXPECT_EQ(d.id(), "E4324");
  EXPECT_EQ(d.code(), ExitCode::kUsage);
  EXPECT_THAT(d.fix(), HasSubstr("--backend cpu"));
}

TEST(CudaRefusals, GroupsTooLargeForOneGpu) {
  FakeDevice device;
  const auto carrier = cuda::MakeSharedDevice(device);
  const std::vector<cuda::Member> members(cuda::kMaxReductionRanks + 1);
  ExpectThrown([&] { carrier->Enqueue(Collective(), members); }, "E4325",
               std::to_string(cuda::kMaxReductionRanks));
  EXPECT_TRUE(device.works().empty());
}

}  // namespace
}  // namespace shardc::testing
