#include "ir/sharding.h"

#include <gtest/gtest.h>

#include "ir/diagnostic.h"
#include "ir/shard_copy.h"
#include "tests/ir/thrown.h"

namespace shardc::testing {
namespace {

const Mesh kMesh({{"dp", 2}, {"tp", 3}, {"one", 1}});

DimSharding Cut(AxisList axes, int64_t granule = 1, std::vector<int64_t> segments = {}) {
  return {axes, granule, std::move(segments)};
}

// Equal layouts are written alike.
TEST(Sharding, Canonical) {
  EXPECT_EQ(Canonical(12, Cut({2, 1}), kMesh), Cut({1}));
  EXPECT_EQ(Canonical(12, Cut({2}, 4), kMesh), DimSharding());
  EXPECT_EQ(Canonical(12, Cut({1}, 1, {12}), kMesh), Cut({1}));
  EXPECT_EQ(Canonical(12, Cut({1}, 2), kMesh), Cut({1}));
  EXPECT_EQ(Canonical(16, Cut({1}, 2), kMesh), Cut({1}, 2));
  // Three whole blocks of 4, and one of one element.
  EXPECT_EQ(Canonical(13, Cut({1}, 4), kMesh), Cut({1}, 4));
  EXPECT_EQ(Canonical(12, Cut({0}, 2, {4, 8}), kMesh), Cut({0}, 1, {4, 8}));
  EXPECT_EQ(Canonical(12, Cut({0}, 2, {6, 6}), kMesh), Cut({0}, 2, {6, 6}));
  TensorType type(DType::kF32, {4});
  type.sharding.partial_sum = {2, 1, 0};
  EXPECT_EQ(Canonical(type, kMesh).partial_sum, (AxisList{0, 1}));
}

void Refused(const TensorType& type, std::string_view what) {
  ExpectThrown([&] { CheckSharding(type, kMesh, "here"); }, "E2002", what);
}

TEST(Sharding, CheckRefuses) {
  TensorType type(DType::kF32, {12, 6});
  type.sharding.dims[0] = Cut({1}, 1, {12, 0});
  Refused(type, "a segment of dim 0 is empty");
  type.sharding.dims[0] = Cut({1}, 1, {13, -1});
  Refused(type, "a segment of dim 0 is empty");
  type.sharding.dims[0] = Cut({1}, 1, {6, 5});
  Refused(type, "the segments of dim 0 add up to 11, not 12");
  type.sharding.dims[0] = Cut({1}, 7, {6, 6});
  Refused(type, "granule 7 does not fit into dim 0");
  type.sharding.dims[0] = Cut({1});
  type.sharding.partial_max = {1};
  Refused(type, "axis 'tp' cuts the tensor twice");
}

// 7 blocks of 2 over 3 ranks are 3, 2 and 2, in memory for 3: of each of two segments, one behind
// the other.
TEST(Sharding, PaddingOfAShardIsZero) {
  TensorType type(DType::kI32, {28});
  type.sharding.dims[0] = Cut({1}, 2, {14, 14});
  std::vector<int32_t> whole(28);
  for (int i = 0; i < 28; ++i) whole[i] = i + 1;
  auto shard = [&](int64_t rank) {
    std::vector<int32_t> local(12, -1);
    EXPECT_EQ(LocalBytes(type, kMesh), 48);
    GlobalToLocal(reinterpret_cast<const std::byte*>(whole.data()), type, kMesh, rank,
                  reinterpret_cast<std::byte*>(local.data()));
    return local;
  };
  EXPECT_EQ(shard(0), (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 15, 16, 17, 18, 19, 20}));
  EXPECT_EQ(shard(4), (std::vector<int32_t>{7, 8, 9, 10, 0, 0, 21, 22, 23, 24, 0, 0}));
  EXPECT_EQ(shard(5), (std::vector<int32_t>{11, 12, 13, 14, 0, 0, 25, 26, 27, 28, 0, 0}));
}

TEST(Sharding, NoMeshHasMoreThanAMillionRanks) {
  EXPECT_EQ(Mesh::Parse("a=1024,b=1024").num_ranks(), 1 << 20);
  for (const char* mesh :
       {"a=1048577", "a=1024,b=1024,c=2", "a=1048576,b=1048576,c=1048576,d=16"}) {
    ExpectThrown([&] { Mesh::Parse(mesh); }, "E2001", "more than 1048576 ranks");
  }
}

}  // namespace
}  // namespace shardc::testing
