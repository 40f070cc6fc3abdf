// What making a rank does to the threads that it computes on.
#include "runtime/rank.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "runtime/cpu/kernels/parallel.h"
#include "runtime/in_process/in_process.h"

namespace shardc {
namespace {

int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.arena + info.hblkhd);
}

// As oneDNN does with each product.
void TakeAndGiveBack(int step) {
  constexpr size_t kAlignment = 128, kLarge = 1000000, kPage = 4096;
  void* blocks[2];
  for (size_t i = 0; i < 2; ++i) {
    const size_t bytes = kLarge * (i + 1) + static_cast<size_t>(step % 3) * kPage;
    ASSERT_EQ(posix_memalign(&blocks[i], kAlignment, bytes), 0);
  }
  for (void* b : blocks) std::free(b);
}

// By how much the heap grows from the first product to the hundredth on the threads of a team, the
// first of which is new and did `before`.
int64_t GrowthAfter(int threads, const std::function<void()>& before) {
  int64_t growth = 0;
  std::thread([&] {
    before();
    int64_t first = 0;
    for (int step = 0; step < 100; ++step) {
      cpu::ParallelChunks(threads, threads, [&](int64_t, int64_t) { TakeAndGiveBack(step); });
      if (step == 0) first = HeapBytes();
    }
    growth = HeapBytes() - first;
  }).join();
  return growth;
}

TEST(Rank, AlignedMemoryThatItsThreadsGiveBackIsTakenAgain) {
  if (GrowthAfter(1, [] {}) == 0) GTEST_SKIP() << "this allocator keeps no small blocks apart";
  for (int threads : {1, 2}) {
    Program program;
    SessionOptions options;
    auto world = MakeInProcessWorld(1);
    std::unique_ptr<Rank> rank;
    EXPECT_LT(GrowthAfter(threads,
                          [&] {
                            rank = std::make_unique<Rank>(program, options, threads,
                                                          std::move(world[0]),
                                                          std::vector<std::vector<int>>(), nullptr);
                          }),
              1 << 20)
        << threads << " threads";
  }
}

}  // namespace
}  // namespace shardc
