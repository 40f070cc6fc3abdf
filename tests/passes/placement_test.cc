#include "passes/placement.h"

#include <gmock/gmock.h>

#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

using ::testing::ElementsAre;

// "w: 0 of 2, 1 of 3x[8 of 2] on 0 2 | 1 3".
std::string Text(const TensorPlacement& p) {
  std::string text = p.tensor + ":";
  for (const TensorPlacement::Dim& d : p.dims) {
    text += StrCat(" ", d.axis);
    for (const TensorPlacement::Factor& f : d.factors) text += StrCat(" ", f.size, "/", f.shards);
  }
  for (size_t i = 0; i < p.devices.size(); ++i) {
    text += i == 0 ? " on" : " |";
    for (int64_t device : p.devices[i]) text += StrCat(" ", device);
  }
  return text;
}

std::vector<std::string> Told(std::string_view text) {
  std::vector<std::string> out;
  Graph graph = ParseAndVerify(text);
  const Placements placements = DescribePlacement(graph, "test");
  const DeviceConfiguration& c = placements.configuration;
  for (const std::string& name : placements.untold) out.push_back("untold " + name);
  EXPECT_EQ(c.name, "test");
  EXPECT_EQ(c.num_devices, graph.mesh.num_ranks());
  for (const TensorPlacement& p : c.tensors) out.push_back(Text(p));
  return out;
}

TEST(Placement, EachTensorWithANameIsWhereItsRanksAre) {
  EXPECT_THAT(
      Told(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[8@dp, 6]) -> (%y) {
    %0 = param "w" {aliases=["head"], transposed_aliases=["head"]} : f32[6, 4@tp]
    %h = matmul %x, %0 : f32[8@dp, 4@tp]
    %y = neg %h : f32[8@dp, 4@tp]
  })"),
      ElementsAre("x: 0 0/2 on 0 1 | 2 3", "w: 1 0/2 on 0 2 | 1 3", "head: 0 0/2 on 0 2 | 1 3",
                  "h: 0 0/2 1 0/2 on 0 | 1 | 2 | 3", "y: 0 0/2 1 0/2 on 0 | 1 | 2 | 3"));
}

TEST(Placement, BlocksAreSaidWhereOnnxHasWordsForThem) {
  EXPECT_THAT(
      Told(R"(mesh [tp=2]
  graph @g() -> (%a) {
    %0 = param "equal" : f32[12@tp/3]
    %1 = param "unequal" : f32[12@tp/[8,2,2]]
    %2 = param "blocks" : f32[20@tp%4]
    %3 = param "a shorter one" : f32[19@tp%4]
    %a = neg %0 : f32[12@tp/3]
  })"),
      ElementsAre("untold unequal", "equal: 0 3/1 4/2 on 0 | 1", "blocks: 0 5/2 4/1 on 0 | 1",
                  "a shorter one: 0 0/2 on 0 | 1", "a: 0 3/1 4/2 on 0 | 1"));
}

// Three heads on four ranks: the parameter's blocks say it, a value's do not fit four shards.
TEST(Placement, ValuesOfWhichSomeRanksHaveNothingAreLeftOut) {
  EXPECT_THAT(Told(R"(mesh [tp=4]
  graph @g(%x: f32[2, 8]) -> (%y) {
    %0 = param "q" : f32[8, 12@tp%4]
    %1 = param "heads" : f32[3@tp, 4]
    %h = matmul %x, %0 : f32[2, 12@tp%4]
    %y = reshape %h {shape=[2, 3, 4]} : f32[2, 3@tp, 4]
  })"),
              ElementsAre("untold heads", "x: on 0 1 2 3", "q: 1 3/4 4/1 on 0 | 1 | 2 | 3"));
}

TEST(Placement, ASumIsWhereAllItsReadersHaveIt) {
  EXPECT_THAT(Told(R"(mesh [tp=2]
  graph @g(%x: f32[8, 6@tp], %w: f32[6@tp, 4]) -> (%y, %v) {
    %h = matmul %x, %w : f32[8, 4] partial(tp)
    %0 = reshard %h {why=[]} : f32[8@tp, 4]
    %y = neg %0 : f32[8@tp, 4]
    %u = matmul %x, %w : f32[8, 4] partial(tp)
    %1 = add %u, %u : f32[8, 4] partial(tp)
    %v = reshard %1 {why=[]} : f32[8, 4]
  })"),
              ElementsAre("x: 1 0/2 on 0 | 1", "w: 0 0/2 on 0 | 1", "h: 0 0/2 on 0 | 1",
                          "y: 0 0/2 on 0 | 1"));
}

}  // namespace
}  // namespace shardc::testing
