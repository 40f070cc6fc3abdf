// What making a rank does to the threads that it computes on.
#include "runtime/rank.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

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

// A program of the mesh pp=2 that sends 8 floats to the second rank, or receives them there.
Program TransferOn(int64_t rank) {
  Program p;
  p.mesh = Mesh::Parse("pp=2");
  p.rank = rank;
  p.arena_bytes = 64;
  Buffer& b = p.buffers.emplace_back();
  b.type = TensorType(DType::kF32, {8});
  b.local_shape = b.type.shape;
  b.bytes = 32;
  Collective& c = p.collectives.emplace_back();
  c.kind = CollectiveKind::kSendRecv;
  c.axes = {0};
  c.elements = 8;
  c.from = 0;
  c.to = 1;
  Instruction& i = p.instructions.emplace_back();
  i.op = "send_recv";
  i.collective = 0;
  (rank == 0 ? i.operands : i.results) = {0};
  return p;
}

// Makes each on the thread that calls.
class TwoRanks {
 public:
  explicit TwoRanks(const Program (&programs)[2]) : programs_(programs) {}

  std::unique_ptr<Rank> Make(size_t rank) {
    return std::make_unique<Rank>(programs_[rank], options_, 1, std::move(world_[rank]),
                                  std::vector<std::vector<int>>{{0}}, nullptr);
  }

 private:
  const Program (&programs_)[2];
  const SessionOptions options_;
  std::vector<std::unique_ptr<Communicator>> world_ = MakeInProcessWorld(2);
};

// Whoever calls it may write over inputs and states, of which something may still be under way.
TEST(Rank, AStepEndsWhenWhatItSentIsTaken) {
  const Program programs[] = {TransferOn(0), TransferOn(1)};
  TwoRanks ranks(programs);
  std::atomic<bool> ended = false;
  std::unique_ptr<Rank> first;
  std::thread sender([&] {
    first = ranks.Make(0);
    first->Step();
    ended = true;
  });
  const auto second = ranks.Make(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(ended);
  second->Step();
  sender.join();
  EXPECT_TRUE(ended);
}

// The sender's next op writes where the message lies.
TEST(Rank, WhatIsSentStaysUntilItIsTaken) {
  Program programs[] = {TransferOn(0), TransferOn(1)};
  Program& p = programs[0];
  for (int i = 0; i < 2; ++i) p.buffers.push_back(p.buffers[0]);  // the input, and what is next
  p.buffers[1].space = Space::kInput;
  p.buffers[1].name = "x";
  p.inputs = {{"x", 1}};
  auto op = [](const char* name, int result) {
    Instruction i;
    i.op = name;
    i.operands = {1};
    i.results = {result};
    return i;
  };
  const Instruction send = p.instructions[0];
  p.instructions = {op("neg", 0), send, op("relu", 2)};
  TwoRanks ranks(programs);
  std::unique_ptr<Rank> first;
  std::thread sender([&] {
    first = ranks.Make(0);
    const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    std::memcpy(first->input(1), x, sizeof(x));
    first->Step();
  });
  const auto second = ranks.Make(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  second->Step();
  sender.join();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(reinterpret_cast<const float*>(second->buffer(0))[i], -(i + 1));
    EXPECT_EQ(reinterpret_cast<const float*>(first->buffer(2))[i], i + 1);
  }
}

TEST(Rank, AllReducesToTheSumOrTheMaximum) {
  const float given[2][2] = {{1, -5}, {3, -7}};
  for (const bool max : {false, true}) {
    auto world = MakeInProcessWorld(2);
    std::vector<float> got[2];
    auto run = [&](size_t r) {
      Program p;
      p.mesh = Mesh::Parse("tp=2");
      p.rank = static_cast<int64_t>(r);
      p.arena_bytes = 64;
      p.buffers.resize(2);
      for (Buffer& b : p.buffers.own()) {
        b.type = TensorType(DType::kF32, {2});
        b.local_shape = b.type.shape;
        b.bytes = 8;
      }
      p.buffers[0].space = Space::kInput;
      p.buffers[0].name = "x";
      p.inputs = {{"x", 0}};
      Collective& c = p.collectives.emplace_back();
      c.kind = CollectiveKind::kAllReduce;
      c.max = max;
      c.axes = {0};
      c.elements = 2;
      Instruction& i = p.instructions.emplace_back();
      i.op = "all_reduce";
      i.collective = 0;
      i.operands = {0};
      i.results = {1};
      const SessionOptions options;
      Rank rank(p, options, 1, std::move(world[r]), {{0}}, nullptr);
      std::memcpy(rank.input(0), given[r], sizeof(given[r]));
      rank.Step();
      const auto* result = reinterpret_cast<const float*>(rank.buffer(1));
      got[r].assign(result, result + 2);
    };
    std::thread other([&] { run(1); });
    run(0);
    other.join();
    for (const auto& result : got) {
      EXPECT_EQ(result, max ? (std::vector<float>{3, -5}) : (std::vector<float>{4, -12}));
    }
  }
}

}  // namespace
}  // namespace shardc
