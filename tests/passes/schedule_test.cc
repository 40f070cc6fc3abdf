#include "passes/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/op_def.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr char kText[] = R"(graph @g(%x: f32[4]) -> (%loss) {
  %t = exp %x : f32[4]
  %f1 = neg %t {microbatch=1} : f32[4]
  %e1 = neg %f1 {microbatch=1} : f32[4]
  %f0 = neg %x {microbatch=0} : f32[4]
  %loss = add %f0, %f1 : f32[4]
  %b0 = neg %f0 {phase="backward", microbatch=0} : f32[4]
  %c0 = neg %b0 {microbatch=0} : f32[4]
  %s0 = neg %c0 {phase="backward"} : f32[4]
  %u = neg %e1 {phase="optimizer"} : f32[4]
  %b1 = neg %e1 {phase="backward", microbatch=1} : f32[4]
  %c1 = add %b1, %s0 {phase="backward", microbatch=1} : f32[4]
})";

// %t waits until it is needed, %loss until it can be made; %c0 stays with the backward that it
// stands in; the optimizer comes last.
TEST(Schedule, OneByOne) {
  CheckPasses(kText, "one_by_one", R"(
    CHECK: graph
    CHECK-NEXT: %f0 = 
    CHECK-NEXT: %b0 = 
    CHECK-NEXT: %c0 = 
    CHECK-NEXT: %s0 = 
    CHECK-NEXT: %t = 
    CHECK-NEXT: %f1 = 
    CHECK-NEXT: %e1 = 
    CHECK-NEXT: %loss = 
    CHECK-NEXT: %b1 = 
    CHECK-NEXT: %c1 = 
    CHECK-NEXT: %u = )");
}

TEST(Schedule, ForwardFirst) {
  CheckPasses(kText, "forward_first", R"(
    CHECK: graph
    CHECK-NEXT: %f0 = 
    CHECK-NEXT: %t = 
    CHECK-NEXT: %f1 = 
    CHECK-NEXT: %e1 = 
    CHECK-NEXT: %loss = 
    CHECK-NEXT: %b0 = 
    CHECK-NEXT: %c0 = 
    CHECK-NEXT: %s0 = 
    CHECK-NEXT: %b1 = 
    CHECK-NEXT: %c1 = 
    CHECK-NEXT: %u = )");
}

TEST(Schedule, NothingMovesWithoutMicrobatches) {
  constexpr char kPlain[] = R"(graph @g(%x: f32[4]) -> (%a) {
    %b = neg %x {phase="backward"} : f32[4]
    %a = neg %x : f32[4]
    %c = neg %b : f32[4]
  })";
  CheckPasses(kPlain, "one_by_one,forward_first", R"(
    CHECK: graph
    CHECK-NEXT: %b = 
    CHECK-NEXT: %a = 
    CHECK-NEXT: %c = )");
}

// A schedule that no order can follow: what comes first takes with it what it needs.
TEST(Schedule, DependenciesFirst) {
  Graph graph = ParseAndVerify(kText);
  OrderBySchedule(graph, std::vector<Unit>{{-1, 1, Phase::kBackward},
                                           {-1, 0, Phase::kBackward},
                                           {-1, 0, Phase::kForward},
                                           {-1, 1, Phase::kForward}});
  CheckGraph(graph, R"(
    CHECK: graph
    CHECK-NEXT: %t = 
    CHECK-NEXT: %f1 = 
    CHECK-NEXT: %e1 = 
    CHECK-NEXT: %f0 = 
    CHECK-NEXT: %b0 = 
    CHECK-NEXT: %c0 = 
    CHECK-NEXT: %s0 = 
    CHECK-NEXT: %b1 = 
    CHECK-NEXT: %c1 = 
    CHECK-NEXT: %loss = 
    CHECK-NEXT: %u = )");
}

// Of stages each has its own units.
TEST(Schedule, Stages) {
  Graph graph = ParseAndVerify(R"(graph @g(%x: f32[4]) -> (%b) {
    %a = neg %x {stage=0, microbatch=0} : f32[4]
    %b = neg %a {stage=1, microbatch=0} : f32[4]
    %c = neg %x {stage=0, microbatch=1} : f32[4]
  })");
  OrderBySchedule(
      graph,
      std::vector<Unit>{{0, 0, Phase::kForward}, {0, 1, Phase::kForward}, {1, 0, Phase::kForward}});
  CheckGraph(graph, "CHECK: %a = \nCHECK-NEXT: %c = \nCHECK-NEXT: %b = ");
}

// A prime for each virtual stage behind the first.
std::string Line(const std::vector<Unit>& units, int stage) {
  std::string text;
  for (const Unit& u : units) {
    if (u.stage != stage) continue;
    text += StrCat(text.empty() ? "" : " ", u.phase == Phase::kForward ? "F" : "B", u.microbatch,
                   std::string(static_cast<size_t>(u.virtual_stage), '\''));
  }
  return text;
}

std::vector<Unit> UnitsOf(int stages, int microbatches, int virtual_stages = 1) {
  Graph graph;
  graph.mesh = Mesh({{"pp", stages}});
  const TensorType type(DType::kF32, {2});
  Value* x = graph.AddInput("x", type);
  for (int m = 0; m < microbatches; ++m) {
    for (int s = 0; s < stages * virtual_stages; ++s) {
      Op* op = graph.AddOp(GetOpDef("neg"), {x}, {type});
      op->stage = s % stages;
      op->virtual_stage = s / stages;
      op->microbatch = m;
    }
  }
  return OneForwardOneBackward(graph);
}

// Each piece of work is there once, and none comes before what it needs from its neighbours.
void ExpectOrder(const std::vector<Unit>& units, int stages, int microbatches, int virtual_stages) {
  const int last = stages * virtual_stages - 1;
  EXPECT_EQ(static_cast<int>(units.size()), 2 * microbatches * (last + 1));
  auto at = [&](int position, int microbatch, Phase phase) {
    const Unit unit = {position % stages, microbatch, phase, position / stages};
    EXPECT_EQ(std::count(units.begin(), units.end(), unit), 1);
    return std::find(units.begin(), units.end(), unit);
  };
  for (int m = 0; m < microbatches; ++m) {
    EXPECT_LT(at(last, m, Phase::kForward), at(last, m, Phase::kBackward));
    for (int p = 0; p < last; ++p) {
      EXPECT_LT(at(p, m, Phase::kForward), at(p + 1, m, Phase::kForward));
      EXPECT_LT(at(p + 1, m, Phase::kBackward), at(p, m, Phase::kBackward));
    }
  }
}

// As in Megatron-LM's figures.
TEST(Schedule, OneForwardOneBackward) {
  const std::vector<Unit> units = UnitsOf(4, 5);
  EXPECT_EQ(Line(units, 0), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  EXPECT_EQ(Line(units, 1), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(Line(units, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  EXPECT_EQ(Line(units, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
  ExpectOrder(units, 4, 5, 1);
  // Fewer microbatches than stages.
  EXPECT_EQ(Line(UnitsOf(4, 2), 0), "F0 F1 B0 B1");
  EXPECT_EQ(Line(UnitsOf(4, 2), 3), "F0 B0 F1 B1");
  EXPECT_TRUE(UnitsOf(4, 0).empty());
}

// As in Megatron-LM's figures of its interleaved schedule.
TEST(Schedule, VirtualStages) {
  const std::vector<Unit> units = UnitsOf(2, 4, 2);
  EXPECT_EQ(Line(units, 0), "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3");
  EXPECT_EQ(Line(units, 1), "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3");
  for (int stages : {2, 3, 4}) {
    for (int virtual_stages : {2, 3}) {
      for (int microbatches : {1, 2, 3, 4, 5, 6, 7, 9}) {
        SCOPED_TRACE(StrCat(stages, " ", virtual_stages, " ", microbatches));
        ExpectOrder(UnitsOf(stages, microbatches, virtual_stages), stages, microbatches,
                    virtual_stages);
      }
    }
  }
}

}  // namespace
}  // namespace shardc::testing
