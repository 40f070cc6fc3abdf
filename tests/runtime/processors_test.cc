#include "runtime/processors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace shardc::testing {
namespace {

TEST(Processors, AreThoseThatTheThreadIsKeptTo) {
  const std::vector<int> all = UsableProcessors();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_EQ(CountUsableProcessors(), static_cast<int>(all.size()));
  std::thread([&] {
    const std::vector<int> last = {all.back()};
    RunOn(last);
    EXPECT_EQ(UsableProcessors(), last);
    EXPECT_EQ(CountUsableProcessors(), 1);
    RunOn(all);
    EXPECT_EQ(UsableProcessors(), all);
    // No machine has it: nothing changes.
    RunOn(std::vector<int>{5000});
    EXPECT_EQ(UsableProcessors(), all);
    RunOn({});
    EXPECT_EQ(UsableProcessors(), all);
  }).join();
}

}  // namespace
}  // namespace shardc::testing
