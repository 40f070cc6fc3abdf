#include "runtime/in_process/in_process.h"

#include <gtest/gtest.h>

#include "runtime/in_process/half.h"
#include "tests/runtime/communicator_suite.h"

namespace shardc {
namespace {

INSTANTIATE_TEST_SUITE_P(InProcess, CommunicatorSuite,
                         testing::Values(WorldMaker{"in_process", MakeInProcessWorld}),
                         [](const auto& info) { return info.param.name; });

TEST(InProcessWorld, NeedsARank) {
  EXPECT_THROW(MakeInProcessWorld(0), std::invalid_argument);
  EXPECT_THROW(MakeInProcessWorld(-3), std::invalid_argument);
}

TEST(InProcessWorld, WorldsAreIndependent) {
  World broken = MakeInProcessWorld(2);
  broken[0]->Abort("only this world");
  RunRanksOk(MakeInProcessWorld(2), [](Communicator& c) { c.Barrier(); });
  EXPECT_THROW(broken[1]->Barrier(), Aborted);
}

TEST(InProcessWorld, NeverRunIsFine) { MakeInProcessWorld(8); }

// Against the compiler's own f16.
TEST(Half, F16AgreesOnEveryValue) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float expected = F16Value(static_cast<uint16_t>(h));
    const float actual = in_process::F16ToF32(static_cast<uint16_t>(h));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << h;
      EXPECT_TRUE(std::isnan(F16Value(in_process::F32ToF16(actual)))) << h;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected)) << h;
      EXPECT_EQ(in_process::F32ToF16(actual), h);
    }
  }
}

TEST(Half, RoundingAgreesWithTheCompilerAndArithmetic) {
  for (uint64_t i = 0; i < 2'000'000; ++i) {
    const auto bits = static_cast<uint32_t>(Mix(i, 17));
    const float x = std::bit_cast<float>(bits);
    if (std::isnan(x)) continue;
    ASSERT_EQ(in_process::F32ToF16(x), F16Bits(x)) << bits;
    // In f16's range, with ties made likely.
    const float tie = std::bit_cast<float>((bits & 0x8f80f000u) | 0x30000000u);
    ASSERT_EQ(in_process::F32ToF16(tie), F16Bits(tie)) << bits;
    if (std::isnormal(x)) {
      ASSERT_EQ(in_process::F32ToBF16(x), BF16Bits(x)) << bits;
    }
  }
  EXPECT_TRUE(std::isnan(in_process::BF16ToF32(in_process::F32ToBF16(std::nanf("")))));
  EXPECT_TRUE(
      std::isnan(in_process::BF16ToF32(in_process::F32ToBF16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace shardc
