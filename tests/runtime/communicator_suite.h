// What every Communicator must do. A backend's test includes this and instantiates
// CommunicatorSuite with a way to make a world of n communicators that take host buffers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "ir/dtype.h"
#include "runtime/communicator.h"
#include "tests/runtime/collective_values.h"
#include "tests/runtime/rank_threads.h"

namespace shardc {

struct WorldMaker {
  std::string name;
  std::function<World(int)> make;
  int max_ranks = 8;
  // Longer than ranks are apart after a barrier.
  std::chrono::milliseconds settle{10};
  // A counter that starts at 0 and that all ranks of the world see.
  std::function<std::shared_ptr<std::atomic<int>>()> counter = [] {
    return std::make_shared<std::atomic<int>>(0);
  };
};

inline void PrintTo(const WorldMaker& maker, std::ostream* out) { *out << maker.name; }

class CommunicatorSuite : public testing::TestWithParam<WorldMaker> {
 protected:
  static World Make(int n) { return GetParam().make(n); }
  static bool CanMake(int n) { return n <= GetParam().max_ranks; }

  // Every rank makes its own call; all must throw CallMismatch that contains all of `parts`.
  template <typename Body>
  void ExpectMismatch(int num_ranks, const Body& body, const std::vector<std::string>& parts) {
    if (!CanMake(num_ranks)) GTEST_SKIP() << "needs " << num_ranks << " ranks";
    const auto errors = RunRanks(Make(num_ranks), body, 30);
    for (size_t r = 0; r < errors.size(); ++r) {
      const std::string text = ErrorText(errors[r]);
      EXPECT_TRUE(text.starts_with("CallMismatch: ")) << "rank " << r << ": " << text;
      for (const std::string& part : parts) {
        EXPECT_NE(text.find(part), std::string::npos) << "rank " << r << ": " << text;
      }
    }
  }
};

#define SHARDC_NEEDS_RANKS(n) \
  if (!CanMake(n)) GTEST_SKIP() << "needs " << (n) << " ranks"

}  // namespace shardc

#include "tests/runtime/communicator_suite_collectives.h"
#include "tests/runtime/communicator_suite_errors.h"
