// The CUDA kernels, run on the CPU by emulation, against the reference of every op.
#include <gmock/gmock.h>

#include <set>

#include "ir/op_def.h"
#include "tests/gpu/epilogue_cases.h"
#include "tests/gpu/kernel_cases.h"
#include "tests/runtime/emulated_epilogues.h"
#include "tests/runtime/emulated_machine.h"

namespace shardc::testing {
namespace {

using ::testing::StartsWith;

void RunAll(const std::vector<KernelCase>& cases) {
  EmulatedMachine machine;
  EXPECT_FALSE(cases.empty());
  for (const KernelCase& c : cases) EXPECT_EQ(RunCase(machine, c), "") << c.name;
}

TEST(CudaKernels, SamplesF32) { RunAll(SampleCases(DType::kF32)); }
TEST(CudaKernels, SamplesF64) { RunAll(SampleCases(DType::kF64)); }
TEST(CudaKernels, SamplesBf16) { RunAll(SampleCases(DType::kBF16)); }
TEST(CudaKernels, SamplesF16) { RunAll(SampleCases(DType::kF16)); }
TEST(CudaKernels, LargeF32) { RunAll(LargeCases(DType::kF32)); }
TEST(CudaKernels, LargeF64) { RunAll(LargeCases(DType::kF64)); }
TEST(CudaKernels, LargeBf16) { RunAll(LargeCases(DType::kBF16)); }
TEST(CudaKernels, LargeF16) { RunAll(LargeCases(DType::kF16)); }
TEST(CudaKernels, Sharded) { RunAll(ShardedCases()); }

TEST(CudaKernels, EveryOpHasOne) {
  std::set<std::string_view> have;
  for (std::string_view op : cuda::emulated::KernelOps()) have.insert(op);
  for (const OpDef* def : AllOpDefs()) {
    bool runs =
        !def->communicates && !def->is_state && def->name != "update" && def->name != "constant";
    if (runs) {
      EXPECT_TRUE(have.contains(def->name)) << def->name;
    }
  }
  for (std::string_view op : {"copy", "pack", "unpack"}) EXPECT_TRUE(have.contains(op)) << op;
}

TEST(CudaKernels, BadIdsAreReported) {
  EmulatedMachine machine;
  HostTensor table = RandomFloats({10, 4}, 1), ids = RandomInts({6}, 2, 0, 10);
  ids.SetDouble(4, 12);
  KernelCase c{"", "embedding", {}, {table, ids}};
  EXPECT_EQ(RunFault(machine, c), (std::vector<int64_t>{1, 4, 12, 10}));
  ids.SetDouble(4, -11);
  EXPECT_EQ(RunFault(machine, {"", "gather", {{"axis", int64_t{0}}}, {table, ids}}),
            (std::vector<int64_t>{2, 4, -11, 10}));
  HostTensor labels = RandomInts({10}, 2, 0, 4);
  labels.SetDouble(7, 4);
  EXPECT_EQ(RunFault(machine, {"", "cross_entropy", {}, {table, labels}}),
            (std::vector<int64_t>{3, 7, 4, 4}));
}

// By loops as cuBLASLt does it, against the separate kernels; and a wrong one is found out.
class CudaKernelsEpilogues : public ::testing::TestWithParam<DType> {};

TEST_P(CudaKernelsEpilogues, AgreeWithSeparateKernels) {
  EmulatedMachine machine;
  EmulatedEpilogues library;
  std::set<cuda::Epilogue> seen;
  for (const EpilogueCase& c : EpilogueCases(GetParam())) {
    library.wrong = false;
    EXPECT_THAT(TryEpilogue(machine, library, c), StartsWith("1 ")) << c.name;
    library.wrong = true;
    EXPECT_THAT(TryEpilogue(machine, library, c), StartsWith("0 differs: result 0 is ")) << c.name;
    seen.insert(c.epilogue);
  }
  EXPECT_EQ(seen.size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaKernelsEpilogues,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace shardc::testing
