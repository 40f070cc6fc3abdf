#include "passes/layout.h"

#include <gtest/gtest.h>

namespace shardc::testing {
namespace {

const Mesh kMesh({{"dp", 2}, {"tp", 2}, {"cp", 3}});
constexpr int kDp = 0, kTp = 1, kCp = 2;

DimSharding Cut(AxisList axes, int64_t granule = 1, std::vector<int64_t> segments = {}) {
  return {axes, granule, std::move(segments)};
}

ShardingRule RuleOf(std::vector<int64_t> sizes) {
  ShardingRule rule;
  for (int64_t n : sizes) rule.AddFactor(n);
  return rule;
}

// A dim of factors 2, 6 and 5.
class Lift : public ::testing::Test {
 protected:
  std::optional<DimSharding> Of(const std::vector<FactorCut>& cuts) const {
    return LiftToDim(rule_, {{0, 1, 2}, {}}, 60, cuts, kMesh);
  }
  std::optional<std::vector<FactorCut>> Back(const DimSharding& dim) const {
    return ProjectToFactors(rule_, {{0, 1, 2}, {}}, 60, dim, kMesh);
  }
  const ShardingRule rule_ = RuleOf({2, 6, 5});
};

TEST_F(Lift, OneFactor) {
  EXPECT_EQ(Of({}), DimSharding());
  EXPECT_EQ(Of({{0, Cut({kDp})}}), Cut({kDp}));
  EXPECT_EQ(Of({{1, Cut({kCp})}}), Cut({kCp}, 1, {30, 30}));
  EXPECT_EQ(Of({{1, Cut({kTp}, 2)}}), Cut({kTp}, 10, {30, 30}));
  EXPECT_EQ(Of({{2, Cut({kTp})}}), Cut({kTp}, 1, std::vector<int64_t>(12, 5)));
  EXPECT_EQ(Of({{1, Cut({kTp}, 1, {2, 4})}}), Cut({kTp}, 1, {10, 20, 10, 20}));
}

// What cannot be written down: a block larger than the factor, segments of another size.
TEST_F(Lift, NothingOfWhatDoesNotFit) {
  EXPECT_EQ(Of({{1, Cut({kTp}, 7)}}), std::nullopt);
  EXPECT_EQ(Of({{1, Cut({kTp}, 1, {2, 2})}}), std::nullopt);
}

// Each part has one element of the first, and a part of the second; axes in the order of the mesh.
TEST_F(Lift, TwoFactors) {
  EXPECT_EQ(Of({{0, Cut({kDp})}, {1, Cut({kCp})}}), Cut({kDp, kCp}));
  EXPECT_EQ(Of({{0, Cut({kTp})}, {1, Cut({kDp})}}), std::nullopt);
  EXPECT_EQ(Of({{0, Cut({kDp})}, {2, Cut({kTp})}}), std::nullopt) << "one is between";
  EXPECT_EQ(Of({{1, Cut({kDp})}, {2, Cut({kTp})}}), std::nullopt) << "three elements to a part";
}

TEST_F(Lift, IsTakenBack) {
  for (const std::vector<FactorCut>& cuts :
       std::vector<std::vector<FactorCut>>{{{0, Cut({kDp})}},
                                           {{1, Cut({kCp})}},
                                           {{1, Cut({kDp, kCp})}},
                                           {{2, Cut({kTp})}},
                                           {{0, Cut({kDp})}, {1, Cut({kTp})}},
                                           {{0, Cut({kDp})}, {1, Cut({kCp})}}}) {
    const auto dim = Of(cuts);
    ASSERT_TRUE(dim.has_value());
    EXPECT_EQ(Back(*dim), cuts) << dim->granule;
  }
  EXPECT_EQ(Back(Cut({kCp})), std::nullopt) << "two thirds of the first to the second part";
  EXPECT_EQ(Back(DimSharding()), std::nullopt);
}

// A dim of pieces behind each other, as a split reads it: the factor is that of each.
TEST(Layout, OfPieces) {
  const ShardingRule rule = RuleOf({4});
  const DimFactors pieces{{0}, {8, 4}};
  auto lift = [&](const DimSharding& layout) {
    return LiftToDim(rule, pieces, 12, {{0, layout}}, kMesh);
  };
  EXPECT_EQ(lift(Cut({kTp}, 2)), Cut({kTp}, 1, {8, 4}));
  EXPECT_EQ(lift(Cut({kCp}, 4)), Cut({kCp}, 4, {8, 4}));
  EXPECT_EQ(lift(Cut({kCp}, 5)), std::nullopt) << "larger than a piece";
  EXPECT_EQ(lift(Cut({kTp}, 1, {2, 2})), std::nullopt);
  EXPECT_EQ(ProjectToFactors(rule, pieces, 12, Cut({kTp}, 1, {8, 4}), kMesh),
            (std::vector<FactorCut>{{0, Cut({kTp})}}));
  for (const DimSharding& other : {Cut({kTp}), Cut({kTp}, 1, {4, 8}), Cut({kTp}, 1, {4, 4, 4})}) {
    EXPECT_EQ(ProjectToFactors(rule, pieces, 12, other, kMesh), std::nullopt);
  }
}

}  // namespace
}  // namespace shardc::testing
