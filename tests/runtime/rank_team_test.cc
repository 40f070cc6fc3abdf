#include "runtime/rank_team.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "ir/diagnostic.h"

namespace shardc {
namespace {

int64_t AddressSpace() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

// The limit of memory stands for one of threads, which root does not have.
TEST(RankTeam, SaysThatASystemHasNoMoreThreads) {
  if (AddressSpace() > int64_t{1} << 40) GTEST_SKIP() << "a sanitizer, which needs its memory";
  const auto with_few_threads = [] {
    const auto most = static_cast<rlim_t>(AddressSpace() + (64 << 20));
    const rlimit limit{most, most};
    setrlimit(RLIMIT_AS, &limit);
    try {
      RankTeam team(256);
    } catch (const Diagnostic& d) {
      std::fprintf(stderr, "%s\n", d.what());
      _exit(static_cast<int>(d.code()));
    }
    _exit(0);
  };
  EXPECT_EXIT(with_few_threads(), ::testing::ExitedWithCode(6),
              "E4007: rank [1-9][0-9]*: cannot start its thread");
}

}  // namespace
}  // namespace shardc
