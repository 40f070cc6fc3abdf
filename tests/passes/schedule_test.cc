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

std::string Line(const std::vector<Unit>& units, int stage) {
  std::string text;
  for (const Unit& u : units) {
    if (u.stage != stage) continue;
    text += StrCat(text.empty() ? "" : " ", u.phase == Phase::kForward ? "F" : "B", u.microbatch);
  }
  return text;
}

// As in Megatron-LM's figures; no unit before what it needs from its neighbours.
TEST(Schedule, OneForwardOneBackward) {
  auto units_of = [](int stages, int microbatches) {
    Graph graph;
    graph.mesh = Mesh({{"pp", stages}});
    const TensorType type(DType::kF32, {2});
    Value* x = graph.AddInput("x", type);
    for (int m = 0; m < microbatches; ++m) {
      for (int s = 0; s < stages; ++s) {
        Op* op = graph.AddOp(GetOpDef("neg"), {x}, {type});
        op->stage = s;
        op->microbatch = m;
      }
    }
    return OneForwardOneBackward(graph);
  };
  const std::vector<Unit> units = units_of(4, 5);
  EXPECT_EQ(Line(units, 0), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  EXPECT_EQ(Line(units, 1), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(Line(units, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  EXPECT_EQ(Line(units, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
  auto at = [&](int stage, int microbatch, Phase phase) {
    return std::find(units.begin(), units.end(), Unit{stage, microbatch, phase});
  };
  for (int m = 0; m < 5; ++m) {
    for (int s = 0; s < 3; ++s) {
      EXPECT_LT(at(s, m, Phase::kForward), at(s + 1, m, Phase::kForward));
      EXPECT_LT(at(s + 1, m, Phase::kBackward), at(s, m, Phase::kBackward));
    }
  }
  // Fewer microbatches than stages.
  EXPECT_EQ(Line(units_of(4, 2), 0), "F0 F1 B0 B1");
  EXPECT_EQ(Line(units_of(4, 2), 3), "F0 B0 F1 B1");
  EXPECT_TRUE(units_of(4, 0).empty());
}

}  // namespace
}  // namespace shardc::testing
