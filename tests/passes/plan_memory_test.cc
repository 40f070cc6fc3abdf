#include "passes/plan_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace shardc {
namespace {

int64_t Aligned(int64_t bytes) { return (std::max<int64_t>(bytes, 1) + 63) / 64 * 64; }

// The most bytes that live at one time: no plan can be smaller.
int64_t LowerBound(const std::vector<MemoryRequest>& requests) {
  int64_t most = 0;
  for (const MemoryRequest& at : requests) {
    int64_t bytes = 0;
    for (const MemoryRequest& r : requests) {
      if (r.first <= at.first && at.first <= r.last) bytes += Aligned(r.bytes);
    }
    most = std::max(most, bytes);
  }
  return most;
}

void ExpectSound(const std::vector<MemoryRequest>& requests, int64_t total) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const MemoryRequest& a = requests[i];
    ASSERT_GE(a.offset, 0);
    ASSERT_EQ(a.offset % 64, 0);
    ASSERT_LE(a.offset + a.bytes, total);
    for (size_t j = 0; j < i; ++j) {
      const MemoryRequest& b = requests[j];
      bool both_live = a.first <= b.last && b.first <= a.last;
      bool overlap =
          a.offset < b.offset + Aligned(b.bytes) && b.offset < a.offset + Aligned(a.bytes);
      ASSERT_FALSE(both_live && overlap) << i << " and " << j;
    }
  }
  ASSERT_GE(total, LowerBound(requests));
}

TEST(PlanMemory, NothingNeedsNothing) {
  std::vector<MemoryRequest> requests;
  EXPECT_EQ(PlanMemory(requests), 0);
}

// Both ends of a life are included: what ends where another begins is in its way.
TEST(PlanMemory, LivesThatTouchDoNotShare) {
  std::vector<MemoryRequest> touch = {{64, 0, 1}, {64, 1, 2}}, apart = {{64, 0, 1}, {64, 2, 3}};
  EXPECT_EQ(PlanMemory(touch), 128);
  EXPECT_EQ(PlanMemory(apart), 64);
}

TEST(PlanMemory, RoundsUpToALine) {
  std::vector<MemoryRequest> requests = {{1, 0, 5}, {65, 0, 5}, {0, 0, 5}};
  EXPECT_EQ(PlanMemory(requests), 64 + 128 + 64);
  ExpectSound(requests, 256);
}

TEST(PlanMemory, RandomRequestsNeverOverlap) {
  std::mt19937 random(7);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<MemoryRequest> requests(static_cast<size_t>(1 + below(60)));
    for (MemoryRequest& r : requests) {
      r.bytes = below(4) == 0 ? below(3) : below(5000);
      r.first = below(40);
      r.last = r.first + (below(5) == 0 ? 40 - r.first : below(10));
    }
    int64_t total = PlanMemory(requests);
    ExpectSound(requests, total);
    if (HasFatalFailure()) return;
  }
}

TEST(PlanMemory, TheSameRequestsGetTheSamePlan) {
  std::vector<MemoryRequest> a = {{100, 0, 4}, {200, 1, 3}, {300, 2, 9}, {50, 4, 6}}, b = a;
  EXPECT_EQ(PlanMemory(a), PlanMemory(b));
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].offset, b[i].offset);
}

// Forward and backward: what layer i keeps is freed in the reverse order.
TEST(PlanMemory, ForwardAndBackwardAreNearTheLowerBound) {
  std::mt19937 random(3);
  for (int layers : {1, 4, 24, 96}) {
    std::vector<MemoryRequest> requests;
    int end = 4 * layers;
    for (int i = 0; i < layers; ++i) {
      for (int64_t kept : {4096, 16384, 4096 + static_cast<int>(random() % 1000)}) {
        requests.push_back({kept, 2 * i, end - 2 * i});
      }
      requests.push_back({16384, 2 * i, 2 * i + 1});
      requests.push_back({16384, end - 2 * i - 1, end - 2 * i});
    }
    int64_t bound = LowerBound(requests);
    int64_t total = PlanMemory(requests);
    ExpectSound(requests, total);
    EXPECT_LE(static_cast<double>(total), 1.25 * static_cast<double>(bound)) << layers;
  }
}

// More requests than the policies that walk all holes are tried for.
TEST(PlanMemory, ManyRequests) {
  std::mt19937 random(5);
  std::vector<MemoryRequest> requests(6000);
  for (size_t i = 0; i < requests.size(); ++i) {
    int first = static_cast<int>(i);
    requests[i] = {static_cast<int64_t>(random() % 4096), first,
                   first + static_cast<int>(random() % 50)};
  }
  int64_t total = PlanMemory(requests);
  ExpectSound(requests, total);
}

}  // namespace
}  // namespace shardc
