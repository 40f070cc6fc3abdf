// The mappings of Megatron's mpu (tests/seeds: 8 ranks, TP=2, PP=2, so DP=2), with the communicator
// alone: what _reduce, _gather and _split give on each rank, and who is in which group.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "runtime/in_process/in_process.h"
#include "tests/runtime/rank_threads.h"

namespace shardc {
namespace {

constexpr int kRanks = 8, kTensor = 2, kPipeline = 2, kData = 2;

// Coordinates on the mesh pp=2,dp=2,tp=2; the last axis is the fastest.
int TensorIndex(int rank) { return rank % kTensor; }
int DataIndex(int rank) { return rank / kTensor % kData; }
int PipelineIndex(int rank) { return rank / (kTensor * kData); }

std::unique_ptr<Communicator> TensorGroup(Communicator& world) {
  return world.Split(world.rank() / kTensor, world.rank());
}

// Runs `body(world, tp, global rank)` on 8 ranks.
template <typename Body>
void OnTensorGroups(const Body& body) {
  RunRanksOk(MakeInProcessWorld(kRanks), [&](Communicator& world) {
    const auto tp = TensorGroup(world);
    ASSERT_EQ(tp->size(), kTensor);
    body(*tp, world.rank());
  });
}

// The world ranks of a group, in its order.
std::vector<int> Members(Communicator& group, int world_rank) {
  std::vector<int> out(group.size());
  const int32_t mine = world_rank;
  group.AllGather(&mine, out.data(), 1, DType::kI32);
  return out;
}

TEST(MappingsRaw, Reduce) {
  constexpr std::array<float, 4> kExpected = {1, 5, 9, 13};
  OnTensorGroups([&](Communicator& tp, int rank) {
    auto x = static_cast<float>(rank);
    tp.AllReduce(&x, &x, 1, DType::kF32, ReduceOp::kSum);
    EXPECT_EQ(x, kExpected[rank / 2]);
  });
}

TEST(MappingsRaw, Gather) {
  OnTensorGroups([&](Communicator& tp, int rank) {
    const auto x = static_cast<float>(rank);
    std::array<float, 2> all{};
    tp.AllGather(&x, all.data(), 1, DType::kF32);
    const auto a = static_cast<float>(rank - rank % 2);
    EXPECT_EQ(all, (std::array<float, 2>{a, a + 1}));
  });
}

// _split needs no communication: the rank in the group picks the slice; gathering gives it back.
TEST(MappingsRaw, SplitAndItsInverse) {
  OnTensorGroups([&](Communicator& tp, int rank) {
    const std::array<float, 2> x = {0, 1};
    const float part = x[tp.rank()];
    EXPECT_EQ(part, rank % 2 == 0 ? 0 : 1);
    std::array<float, 2> all{};
    tp.AllGather(&part, all.data(), 1, DType::kF32);
    EXPECT_EQ(all, x);
  });
}

TEST(MappingsRaw, Groups) {
  RunRanksOk(MakeInProcessWorld(kRanks), [&](Communicator& world) {
    const int r = world.rank();
    const int t = TensorIndex(r), d = DataIndex(r), p = PipelineIndex(r);
    auto members = [&](int color) { return Members(*world.Split(color, r), r); };
    const auto tensor = members(r / kTensor);
    const auto data = members(p * kTensor + t);
    const auto pipeline = members(d * kTensor + t);
    const auto model = members(d);
    // First and last stage: with two stages the same ranks as the pipeline group.
    const bool in_embedding = p == 0 || p == kPipeline - 1;
    const auto embedding = members(in_embedding ? d * kTensor + t : -1);

    EXPECT_EQ(tensor, (std::vector{r - t, r - t + 1}));
    EXPECT_EQ(data, (std::vector{p * 4 + t, p * 4 + t + 2}));
    EXPECT_EQ(pipeline, (std::vector{r % 4, r % 4 + 4}));
    EXPECT_EQ(model, d == 0 ? (std::vector{0, 1, 4, 5}) : (std::vector{2, 3, 6, 7}));
    EXPECT_EQ(embedding, pipeline);
  });
}

}  // namespace
}  // namespace shardc
