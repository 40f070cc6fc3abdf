// What the command says when it gets no memory, wherever that happens.
#include <gmock/gmock.h>

#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class NoMemoryTest : public ToolTest {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers take memory of their own";
#endif
    ToolTest::SetUp();
    least_ = 30 << 10;
    while (Within(least_, "--version").exit != 0) {  // what the libraries take
      least_ += 512;
      ASSERT_LT(least_, 1 << 20);
    }
  }

  ToolResult Within(int64_t kib, const std::string& arguments) const {
    return Shell("ulimit -v " + std::to_string(kib) + " && exec '" + SHARDC_TOOL + "' " +
                 arguments);
  }

  // From what it takes to start until it works.
  void Sweep(const std::string& arguments, int64_t step_kib) const {
    int failures = 0;
    for (int64_t kib = least_ + 128;; kib += step_kib) {
      ASSERT_LT(kib, int64_t{1} << 20) << arguments;
      const ToolResult r = Within(kib, arguments);
      if (r.exit == 0) break;
      ++failures;
      EXPECT_EQ(r.exit, 6) << kib << " KiB: " << arguments << ": " << r.err;
      EXPECT_THAT(r.err,
                  AllOf(AnyOf(HasSubstr("E6201"), HasSubstr("E4007")), HasSubstr("\n  run ")))
          << kib << ": " << arguments;
    }
    EXPECT_GT(failures, 0) << arguments;
  }

  int64_t least_ = 0;  // KiB
};

constexpr const char* kWide = "'builtin:gpt?layers=2,hidden=128,heads=4,vocab=1000,seq=64,batch=4'";

// More layers than what malloc takes from the start has room for.
TEST_F(NoMemoryTest, WhileCompiling) {
  Sweep(
      "compile 'builtin:gpt?layers=16,hidden=128,heads=4,vocab=1000,seq=64,batch=4' "
      "--spec megatron --mesh tp=2 --optimizer adamw -q -o plan",
      512);
}

TEST_F(NoMemoryTest, WhileReadingAPlan) {
  Compile("plan", "--spec megatron --mesh tp=2", kWide);
  Sweep("dump plan --json", 128);
}

TEST_F(NoMemoryTest, OfRanksAndTheirThreads) {
  Compile("plan", "--spec megatron --mesh tp=2 --optimizer adamw", kWide);
  ASSERT_EQ(Tool("run plan --random-inputs 1 --save-checkpoint c.safetensors").exit, 0);
  Sweep(
      "run plan --random-inputs 1 --threads 4 --load c.safetensors --save o.safetensors "
      "--save-checkpoint d.safetensors",
      3500);
}

TEST_F(NoMemoryTest, OfLibrariesThatMakeCode) {
  Compile("plan", "--spec serial --precision bf16", kWide);
  Sweep("run plan --random-inputs 1 --threads 2", 1700);
}

}  // namespace
}  // namespace shardc::testing
