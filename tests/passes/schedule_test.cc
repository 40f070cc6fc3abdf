#include "passes/schedule.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace shardc::testing
