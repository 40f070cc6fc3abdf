#include "runtime/cpu/kernels/team_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>

#include "runtime/cpu/kernels/parallel.h"

namespace shardc::cpu {
namespace {

TEST(TeamMemory, OneThreadsWantOfItReachesTheCallerOnceAllHaveEnded) {
  for (int threads : {1, 3}) {
    for (int64_t without = 0; without < 3; ++without) {
      std::atomic<int> ran = 0;
      auto body = [&](int64_t chunk, int64_t) {
        if (chunk == without) ThrowNoMemory();
        ++ran;
      };
      EXPECT_THROW(ParallelChunks(threads, 3, body), std::bad_alloc);
      EXPECT_EQ(ran, threads == 3 ? 2 : without);
    }
  }
}

TEST(TeamMemory, ATeamIsMadeAgain) {
  for (int threads : {1, 4, 2, 4}) MakeTeam(threads);
}

}  // namespace
}  // namespace shardc::cpu
