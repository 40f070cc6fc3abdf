#include "passes/optimize_reshards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ir/diagnostic.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

void Check(std::string_view text, std::string_view checks) {
  Graph graph = ParseAndVerify(text);
  RunPasses(graph, "optimize_reshards");
  CheckGraph(graph, checks, true);
}

TEST(OptimizeReshards, ToTheSameShardingDisappears) {
  Check(R"(mesh [tp=2]
  graph @g(%x: f32[8@tp, 6]) -> (%y) {
    %0 = reshard %x {why=[]} : f32[8@tp, 6]
    %y = neg %0 : f32[8@tp, 6]
  })",
        "CHECK: graph\nCHECK-NEXT: %y = neg %x");
}

TEST(OptimizeReshards, EqualOnesAreMerged) {
  Check(R"(mesh [tp=2]
  graph @g(%x: f32[8@tp, 6]) -> (%y, %z, %u) {
    %0 = reshard %x {why=[]} : f32[8, 6]
    %y = neg %0 : f32[8, 6]
    %1 = reshard %x {why=[]} : f32[8, 6]
    %z = exp %1 : f32[8, 6]
    %2 = reshard %x {why=[]} : f32[8, 6@tp]
    %u = exp %2 : f32[8, 6@tp]
  })",
        R"(
    CHECK: %0 = reshard %x {why=[]} : f32[8, 6]
    CHECK-NEXT: %y = neg %0
    CHECK-NEXT: %z = exp %0
    CHECK-NEXT: %1 = reshard %x {why=[]} : f32[8, 6@tp]
    CHECK-NEXT: %u = exp %1)");
}

// What the forward gathered of a weight is not kept for the backward, which asks for its own.
TEST(OptimizeReshards, WeightsOfOtherPhasesAreNotMerged) {
  Check(R"(mesh [tp=2]
  graph @g() -> (%y, %z, %u) {
    %w = param "w" : f32[8@tp, 6]
    %h = cast %w {to="bf16"} : bf16[8@tp, 6]
    %0 = reshard %h {why=[]} : bf16[8, 6]
    %y = neg %0 : bf16[8, 6]
    %1 = reshard %h {why=[], phase="backward"} : bf16[8, 6]
    %z = exp %1 {phase="backward"} : bf16[8, 6]
    %2 = reshard %h {why=[], phase="backward"} : bf16[8, 6]
    %u = abs %2 {phase="backward"} : bf16[8, 6]
  })",
        R"(
    CHECK: %0 = reshard %h
    CHECK-NEXT: %y = neg %0
    CHECK-NEXT: %1 = reshard %h
    CHECK-NEXT: %z = exp %1
    CHECK-NEXT: %u = abs %1)");
}

TEST(OptimizeReshards, AChainBecomesOne) {
  Check(R"(mesh [tp=2]
  graph @g(%x: f32[8@tp, 6]) -> (%y) {
    %0 = reshard %x {why=[]} : f32[8, 6]
    %1 = reshard %0 {why=[]} : f32[8, 6@tp]
    %y = neg %1 : f32[8, 6@tp]
  })",
        R"(
    CHECK: %0 = reshard %x {why=[]} : f32[8, 6@tp]
    CHECK-NEXT: %y = neg %0)");
  Check(R"(mesh [tp=2]
  graph @g(%x: f32[8@tp, 6]) -> (%y) {
    %0 = reshard %x {why=[]} : f32[8, 6]
    %1 = reshard %0 {why=[]} : f32[8@tp, 6]
    %y = neg %1 : f32[8@tp, 6]
  })",
        "CHECK: graph\nCHECK-NEXT: %y = neg %x");
}

// partial -> whole -> cut, all users alike: partial -> cut, a reduce_scatter.
TEST(OptimizeReshards, AReductionWhoseUsersAllCutIsOne) {
  constexpr const char* kText = R"(mesh [tp=2]
  graph @g(%x: f32[8, 12@tp]) -> (%y, %z) {
    %v = param "v" : f32[12@tp, 6]
    %0 = matmul %x, %v : f32[8, 6] partial(tp)
    %1 = reshard %0 {why=[]} : f32[8, 6]
    %2 = reshard %1 {why=[]} : f32[8@tp, 6]
    %y = neg %2 : f32[8@tp, 6]
    %3 = reshard %1 {why=[]} : f32[8@tp, 6]
    %z = exp %3 : f32[8@tp, 6]
  })";
  Check(kText, R"(
    CHECK: %0 = matmul %x, %v : f32[8, 6] partial(tp)
    CHECK-NEXT: %1 = reshard %0 {why=[]} : f32[8@tp, 6]
    CHECK-NEXT: %y = neg %1
    CHECK-NEXT: %z = exp %1)");
  CheckPasses(kText, "optimize_reshards,lower_reshards", R"(
    CHECK: %1 = reduce_scatter %0 {axes=["tp"], dim=0, why=[]} : f32[8@tp, 6]
    CHECK-NOT: all_reduce
    CHECK-NOT: local_slice)");
}

TEST(OptimizeReshards, NotWhereAUserNeedsItWhole) {
  Check(R"(mesh [tp=2]
  graph @g(%x: f32[8, 12@tp]) -> (%y, %z) {
    %0 = reduce_sum %x {axes=[1], keepdims=false} : f32[8] partial(tp)
    %1 = reshard %0 {why=[]} : f32[8]
    %2 = reshard %1 {why=[]} : f32[8@tp]
    %y = neg %2 : f32[8@tp]
    %z = exp %1 : f32[8]
  })",
        R"(
    CHECK: %1 = reshard %0 {why=[]} : f32[8]
    CHECK-NEXT: %2 = reshard %1 {why=[]} : f32[8@tp])");
}

// Every value is read twice: there are 2^60 ways back from the last to the parameter.
// What is narrowed before it is added is summed as it is made, not rounded on every rank before.
TEST(OptimizeReshards, ReductionsThatAreNarrowedToBeAddedStay) {
  Check(R"(mesh [tp=2]
  graph @g(%x: f32[4, 12@tp], %u: bf16[4, 12@tp]) -> (%y) {
    %v = param "v" : f32[12@tp, 6]
    %w = param "w" : bf16[12@tp, 6]
    %0 = matmul %x, %v : f32[4, 6] partial(tp)
    %1 = reshard %0 {why=["a"]} : f32[4, 6]
    %2 = cast %1 {to="bf16"} : bf16[4, 6]
    %3 = matmul %u, %w : bf16[4, 6] partial(tp)
    %4 = reshard %3 {why=["b"]} : bf16[4, 6]
    %y = add %2, %4 : bf16[4, 6]
  })",
        R"(
    CHECK: %1 = reshard %0 {why=["a"]} : f32[4, 6]
    CHECK: %4 = reshard %3 {why=["b"]} : bf16[4, 6]
    CHECK-NEXT: %y = add %2, %4)");
}

// Nor is one reduced again whose wider copy is added, where others read it.
TEST(OptimizeReshards, ReductionsThatOthersReadStay) {
  Check(R"(mesh [tp=2]
  graph @g(%x: bf16[4, 12@tp]) -> (%y, %z) {
    %v = param "v" : bf16[12@tp, 6]
    %w = param "w" : bf16[12@tp, 6]
    %0 = matmul %x, %v : bf16[4, 6] partial(tp)
    %1 = reshard %0 {why=["a"]} : bf16[4, 6]
    %2 = cast %1 {to="f32"} : f32[4, 6]
    %3 = matmul %x, %w : bf16[4, 6] partial(tp)
    %4 = reshard %3 {why=["b"]} : bf16[4, 6]
    %5 = cast %4 {to="f32"} : f32[4, 6]
    %y = add %2, %5 : f32[4, 6]
    %z = exp %4 : bf16[4, 6]
  })",
        R"(
    CHECK: %1 = reshard %0 {why=["a"]} : bf16[4, 6]
    CHECK: %4 = reshard %3 {why=["b"]} : bf16[4, 6]
    CHECK: %y = add %2, %5
    CHECK-NEXT: %z = exp %4)");
}

TEST(OptimizeReshards, AWeightMadeInManyWaysIsOne) {
  constexpr int kSteps = 60;
  std::string ops;
  for (int i = 0; i < kSteps; ++i) {
    ops += StrCat("%w", i + 1, " = mul %w", i, ", %w", i, " : f32[8@tp]\n");
  }
  Graph graph = ParseAndVerify(StrCat(R"(mesh [tp=2]
  graph @g() -> (%y, %z) {
    %w0 = param "w" : f32[8@tp]
    )",
                                      ops, "%0 = reshard %w", kSteps, R"( {why=[]} : f32[8]
    %y = neg %0 : f32[8]
    %1 = reshard %w)",
                                      kSteps, R"( {why=[], phase="backward"} : f32[8]
    %z = exp %1 {phase="backward"} : f32[8]
  })"));
  RunPasses(graph, "optimize_reshards");
  CheckGraph(graph, R"(
    CHECK: %0 = reshard
    CHECK: %1 = reshard
    CHECK: exp %1)",
             true);
}

// The gradient of a weight to which each microbatch adds what is much larger than the reduction
// that it is made of. Counted, not timed.
TEST(OptimizeReshards, WorkGrowsNoFasterThanTheMicrobatches) {
  auto visits = [](int microbatches, bool alike) {
    std::string inputs, ops, sum;
    for (int i = 0; i < microbatches; ++i) {
      const std::string at = StrCat(R"({site=")", alike ? 0 : i, R"(", microbatch=)", i);
      inputs += StrCat(i ? ", " : "", "%x", i, ": f32[2, 65536], %k", i, ": f32[2, 4, 2@tp]");
      ops += StrCat("%p", i, " = reduce_sum %k", i, at, ", axes=[2]} : f32[2, 4] partial(tp)\n");
      ops += StrCat("%r", i, " = reshard %p", i, at, "} : f32[2, 4]\n");
      ops += StrCat("%g", i, " = matmul_tn %x", i, ", %r", i, at, ", batch=0} : f32[65536, 4]\n");
      const std::string all = StrCat("%s", i);
      if (i > 0) ops += StrCat(all, " = add ", sum, ", %g", i, at, "} : f32[65536, 4]\n");
      sum = i > 0 ? all : "%g0";
    }
    Graph graph =
        ParseAndVerify(StrCat("mesh [tp=2]\ngraph @g(", inputs, ") -> (", sum, ") {\n", ops, "}"));
    const int64_t n = OptimizeReshards(graph);
    EXPECT_EQ(std::ranges::count_if(graph.ops(), [](auto& op) { return op->name() == "reshard"; }),
              microbatches);
    return n;
  };
  for (bool alike : {true, false}) {
    const int64_t few = visits(64, alike), many = visits(512, alike);
    EXPECT_GE(few, 64 * 7);
    EXPECT_LE(many, 10 * few) << alike;
  }
  // The whole sum is tried once, not again without each of its first terms.
  EXPECT_LE(3 * visits(64, true), visits(64, false));
}

// Each sum moves behind one that leaves less of it.
TEST(OptimizeReshards, WorkGrowsNoFasterThanTheReductionsThatMove) {
  auto visits = [](int n) {
    std::string ops, outputs;
    for (int i = 1; i <= n; ++i) {
      ops += StrCat("%p", i, " = reduce_sum %x {axes=[2]} : f32[8, 4] partial(tp)\n");
      ops += StrCat("%r", i, " = reshard %p", i, " : f32[8, 4]\n");
      ops += StrCat("%s", i, " = reduce_sum %r", i, " {axes=[1]} : f32[8]\n");
      ops += StrCat("%y", i, " = exp %s", i, " : f32[8]\n");
      outputs += StrCat(i > 1 ? ", %y" : "%y", i);
    }
    Graph graph = ParseAndVerify(
        StrCat("mesh [tp=2]\ngraph @g(%x: f32[8, 4, 2@tp]) -> (", outputs, ") {\n", ops, "}"));
    const int64_t all = OptimizeReshards(graph);
    EXPECT_EQ(std::ranges::count_if(
                  graph.ops(),
                  [](auto& op) { return op->name() == "reshard" && op->out().shape == Shape{8}; }),
              n);
    return all;
  };
  EXPECT_LE(visits(512), 9 * visits(64));
}

}  // namespace
}  // namespace shardc::testing
