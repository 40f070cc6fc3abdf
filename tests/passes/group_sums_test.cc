#include "passes/group_sums.h"

#include <gtest/gtest.h>

#include "ir/op_def.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// Each stage adds its own terms; then one value of each travels.
TEST(GroupSums, FirstWithinAStage) {
  Graph graph = ParseAndVerify(R"(mesh [pp=2]
    pipeline pp
    graph @g(%x: f32[4]) -> (%s3) {
    %a = exp %x {stage=1} : f32[4]
    %w = param "w" : f32[4]
    %b = mul %x, %w {stage=0} : f32[4]
    %c = mul %b, %b {stage=1} : f32[4]
    %d = mul %b, %b {stage=0} : f32[4]
    %e = mul %c, %w {stage=1} : f32[4]
    %s1 = add %c, %b : f32[4]
    %s2 = add %s1, %e : f32[4]
    %s3 = add %s2, %d : f32[4]
  })");
  GroupSums(graph);
  CheckGraph(graph, R"(
    CHECK: %d = mul
    CHECK-NEXT: %0 = add %b, %d {stage=0}
    CHECK-NEXT: %e = mul
    CHECK-NEXT: %1 = add %c, %e {stage=1}
    CHECK-NEXT: = add %0, %1 : f32[4])");
}

// Inputs are on any stage, and so is their sum.
TEST(GroupSums, OfInputs) {
  Graph graph = ParseAndVerify(R"(mesh [pp=2]
    pipeline pp
    graph @g(%x: f32[4], %y: f32[4]) -> (%s2) {
    %w = param "w" : f32[4]
    %a = mul %x, %w {stage=1} : f32[4]
    %s1 = add %a, %y {stage=1} : f32[4]
    %s2 = add %s1, %x {stage=1} : f32[4]
  })");
  GroupSums(graph);
  CheckGraph(graph, R"(
    CHECK: %0 = add %y, %x : f32[4]
    CHECK: = add %0, %a {stage=1})");
}

// A later layer's sum with what an earlier one made stays with the later one.
TEST(GroupSums, TheWholeSumStaysWhereItBelongs) {
  Graph graph = ParseAndVerify(R"(mesh [pp=2]
    pipeline pp
    graph @g(%x: f32[4]) -> (%s2) {
    %a = exp %x {stage=0} : f32[4]
    %w = param "w" : f32[4]
    %b = mul %a, %w {stage=1} : f32[4]
    %c = mul %b, %w {stage=1} : f32[4]
    %s1 = add %b, %a {stage=1} : f32[4]
    %s2 = add %s1, %c {stage=1} : f32[4]
  })");
  GroupSums(graph);
  CheckGraph(graph, R"(
    CHECK: %0 = add %b, %c {stage=1}
    CHECK-NEXT: = add %a, %0 {stage=1})");
}

// To its first term it is a long way down, which is not to be gone by recursion.
TEST(GroupSums, OfManyTerms) {
  constexpr int kTerms = 100'000, kValues = 500;
  std::string ops;
  for (int i = 0; i < kValues; ++i) {
    ops += StrCat("%v", i, " = mul %x, %w {stage=", i % 2, "} : f32[4]\n");
  }
  for (int i = 1; i <= kTerms; ++i) {
    ops += StrCat("%s", i, " = add %", i > 1 ? StrCat("s", i - 1) : "v0", ", %v", i % kValues,
                  " : f32[4]\n");
  }
  Graph graph = ParseAndVerify(StrCat(R"(mesh [pp=2]
    pipeline pp
    graph @g(%x: f32[4]) -> (%y) {
    %w = param "w" : f32[4]
    )",
                                      ops, "%y = exp %s", kTerms, " {stage=1} : f32[4]\n}"));
  GroupSums(graph);
  const Op* total = graph.FindOutput("y")->producer->operands[0]->producer;
  EXPECT_EQ(total->operands[0]->producer->stage, 0);
  EXPECT_EQ(total->operands[1]->producer->stage, 1);
}

}  // namespace
}  // namespace shardc::testing
