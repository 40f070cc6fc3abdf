// lower_reshards, clear_padding, bucket_reductions.
#include "passes/lower.h"

#include <gtest/gtest.h>

#include "passes/bucket.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// One reshard between the two shardings, lowered.
void Lower(const std::string& from, const std::string& to, std::string_view checks) {
  SCOPED_TRACE(from + " -> " + to);
  CheckPasses("mesh [dp=2, tp=2]\ngraph @g(%x: " + from + ") -> (%y) {\n  %0 = reshard %x : " + to +
                  "\n  %y = neg %0 : " + to + "\n}",
              "lower_reshards", checks);
}

TEST(LowerReshards, EachKind) {
  Lower("f32[8, 6] partial(tp)", "f32[8, 6]", R"(
    CHECK: graph
    CHECK-NEXT: %0 = all_reduce %x {axes=["tp"], reduce="sum"} : f32[8, 6]
    CHECK-NEXT: neg %0)");
  Lower("f32[8, 6] partial_max(tp)", "f32[8, 6]",
        R"(CHECK: all_reduce %x {axes=["tp"], reduce="max"} : f32[8, 6])");
  Lower("f32[8, 6@tp]", "f32[8, 6]", R"(
    CHECK: %0 = all_gather %x {axes=["tp"], dim=1} : f32[8, 6]
    CHECK-NEXT: neg %0)");
  Lower("f32[8, 6] partial(tp)", "f32[8, 6@tp]", R"(
    CHECK: %0 = reduce_scatter %x {axes=["tp"], dim=1} : f32[8, 6@tp]
    CHECK-NEXT: neg %0)");
  Lower("f32[8@tp, 6]", "f32[8, 6@tp]", R"(
    CHECK: %0 = all_to_all %x {axes=["tp"], concat_dim=0, split_dim=1} : f32[8, 6@tp]
    CHECK-NEXT: neg %0)");
  Lower("f32[8, 6]", "f32[8@tp, 6]", R"(
    CHECK: %0 = local_slice %x {axes=["tp"], dim=0} : f32[8@tp, 6]
    CHECK-NEXT: neg %0)");
}

// Keys of fewer heads than ranks, and their gradients on the way back.
TEST(LowerReshards, AxesMoveTogetherAndApart) {
  Lower(
      "f32[8@(dp,tp), 8]", "f32[8, 8@(dp,tp)]",
      R"(CHECK: %0 = all_to_all %x {axes=["dp", "tp"], concat_dim=0, split_dim=1} : f32[8, 8@(dp,tp)])");
  Lower("f32[8@(dp,tp), 6]", "f32[8, 6@dp]", R"(
    CHECK: %0 = all_gather %x {axes=["tp"], dim=0} : f32[8@dp, 6]
    CHECK-NEXT: %1 = all_to_all %0 {axes=["dp"], concat_dim=0, split_dim=1} : f32[8, 6@dp])");
  Lower("f32[8, 6@dp] partial(tp)", "f32[8@(dp,tp), 6]", R"(
    CHECK: %0 = all_to_all %x {axes=["dp"], concat_dim=1, split_dim=0} : f32[8@dp, 6] partial(tp)
    CHECK-NEXT: %1 = reduce_scatter %0 {axes=["tp"], dim=0} : f32[8@(dp,tp), 6])");
}

// A maximum is not scattered: reduced, then cut.
TEST(LowerReshards, MaximaAreReducedWhole) {
  Lower("f32[8, 6] partial_max(tp)", "f32[8@tp, 6]", R"(
    CHECK: %0 = all_reduce %x {axes=["tp"], reduce="max"} : f32[8, 6]
    CHECK-NEXT: %1 = local_slice %0)");
}

TEST(LowerReshards, SlicesComeFirstAndGathersLast) {
  Lower("f32[8, 6@tp]", "f32[8@dp, 6]", R"(
    CHECK: %0 = local_slice %x {axes=["dp"], dim=0} : f32[8@dp, 6@tp]
    CHECK-NEXT: %1 = all_gather %0 {axes=["tp"], dim=1} : f32[8@dp, 6])");
  Lower("f32[8, 6@dp] partial(tp)", "f32[8, 6]", R"(
    CHECK: %0 = all_reduce %x {axes=["tp"], reduce="sum"} : f32[8, 6@dp]
    CHECK-NEXT: %1 = all_gather %0 {axes=["dp"], dim=1} : f32[8, 6])");
}

TEST(LowerReshards, SeveralAxes) {
  Lower("f32[8, 6] partial(dp,tp)", "f32[8, 6]",
        R"(CHECK: all_reduce %x {axes=["dp", "tp"], reduce="sum"} : f32[8, 6])");
  Lower("f32[8@(dp,tp), 6]", "f32[8, 6]",
        R"(CHECK: all_gather %x {axes=["dp", "tp"], dim=0} : f32[8, 6])");
  Lower("f32[8, 6] partial(dp,tp)", "f32[8@(dp,tp), 6]", R"(
    CHECK: %0 = reduce_scatter %x {axes=["dp", "tp"], dim=0} : f32[8@(dp,tp), 6]
    CHECK-NEXT: neg %0)");
  Lower("f32[8, 6] partial(dp,tp)", "f32[8@tp, 6@dp]", R"(
    CHECK: %0 = reduce_scatter %x {axes=["tp"], dim=0} : f32[8@tp, 6] partial(dp)
    CHECK-NEXT: %1 = reduce_scatter %0 {axes=["dp"], dim=1} : f32[8@tp, 6@dp]
    CHECK-NEXT: neg %1)");
  Lower("f32[8@(dp,tp), 6]", "f32[8@dp, 6]",
        R"(CHECK: all_gather %x {axes=["tp"], dim=0} : f32[8@dp, 6])");
  Lower("f32[8@dp, 6] partial(tp)", "f32[8@(dp,tp), 6]",
        R"(CHECK: reduce_scatter %x {axes=["tp"], dim=0} : f32[8@(dp,tp), 6])");
}

// The same axis on the same dim, cut otherwise: whole in between.
// 7 over two axes: the cut over the first alone is 4 and 3, so what the second adds is local.
TEST(LowerReshards, UnevenCutsOverSeveralAxes) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[7@a, 8], %z: f32[7@(a,b), 8]) -> (%y, %u, %v) {
    %y = reshard %x {why=[]} : f32[7@(a,b), 8]
    %u = reshard %z {why=[]} : f32[7@a, 8]
    %v = reshard %z {why=[]} : f32[7@a, 8@b]
  })",
              "lower_reshards", R"(
    CHECK: %_ = local_slice %x {axes=["b"], dim=0} : f32[7@(a,b), 8]
    CHECK-NEXT: %_ = all_gather %z {axes=["b"], dim=0, why=[]} : f32[7@a, 8]
    CHECK-NEXT: %_ = all_to_all %z {axes=["b"], concat_dim=0, split_dim=1, why=[]} : f32[7@a, 8@b])");
}

// 12 in blocks of 2 over 2x2: 6 and 6 over the first axis, where the blocks do not show.
TEST(LowerReshards, BlocksThatOnlySomeAxesShow) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[12@a]) -> (%y) {
    %0 = reshard %x {why=[]} : f32[12@(a,b)%2]
    %y = reshard %0 {why=[]} : f32[12@a]
  })",
              "lower_reshards", R"(
    CHECK: %_ = local_slice %x {axes=["b"], dim=0} : f32[12@(a,b)%2]
    CHECK-NEXT: %_ = all_gather %_ {axes=["b"], dim=0, why=[]} : f32[12@a])");
}

TEST(LowerReshards, AnotherLayoutOfTheSameDim) {
  Lower("f32[8@tp, 6]", "f32[8@tp/[2,6], 6]", R"(
    CHECK: %0 = all_gather %x {axes=["tp"], dim=0} : f32[8, 6]
    CHECK-NEXT: %1 = local_slice %0 {axes=["tp"], dim=0} : f32[8@tp/[2,6], 6])");
}

// What each rank has of each segment, for whole segments, and back: also where ranks get unequal
// numbers of them, or there are blocks in them.
TEST(LowerReshards, FromWithinSegmentsToBetweenThem) {
  Lower("f32[3, 8@tp/2]", "f32[3, 8@tp]", R"(
    CHECK: %0 = reshape %x {shape=[3, 2, 4]} : f32[3, 2, 4@tp]
    CHECK-NEXT: %1 = all_to_all %0 {axes=["tp"], concat_dim=2, split_dim=1} : f32[3, 2@tp, 4]
    CHECK-NEXT: = reshape %1 {shape=[3, 8]} : f32[3, 8@tp])");
  Lower("f32[3, 8@tp]", "f32[3, 8@tp/2]", R"(
    CHECK: %0 = reshape %x {shape=[3, 2, 4]} : f32[3, 2@tp, 4]
    CHECK-NEXT: %1 = all_to_all %0 {axes=["tp"], concat_dim=1, split_dim=2} : f32[3, 2, 4@tp]
    CHECK-NEXT: = reshape %1 {shape=[3, 8]} : f32[3, 8@tp/2])");
  Lower("f32[15@tp/3]", "f32[15@tp%5]", R"(
    CHECK: all_to_all %_ {axes=["tp"], concat_dim=1, split_dim=0} : f32[3@tp, 5])");
  Lower("f32[24@tp/2%4]", "f32[24@tp]", R"(
    CHECK: reshape %x {shape=[2, 12]} : f32[2, 12@tp%4]
    CHECK-NEXT: all_to_all %_ {axes=["tp"], concat_dim=1, split_dim=0} : f32[2@tp, 12])");
  // 12 are cut between segments of 4 by no even cut.
  Lower("f32[12@tp/3]", "f32[12@tp]", "CHECK: all_gather %x");
}

// The dim is cut over a at once, and only then summed into its parts over b.
TEST(LowerReshards, SlicesOverTheAxesThatAreFree) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[13, 6] partial(b)) -> (%y) {
    %y = reshard %x {why=[]} : f32[13@(a,b), 6]
  })",
              "lower_reshards", R"(
    CHECK: %0 = local_slice %x {axes=["a"], dim=0} : f32[13@a, 6] partial(b)
    CHECK-NEXT: %1 = reduce_scatter %0 {axes=["b"], dim=0, why=[]} : f32[13@(a,b), 6])");
}

// An axis that is in the way is moved first, and those minor to it stay behind it.
TEST(LowerReshards, SlicesBehindAnAxisThatMoves) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[8, 6@a]) -> (%y) {
    %y = reshard %x {why=[]} : f32[8@(a,b), 6]
  })",
              "lower_reshards", R"(
    CHECK: %0 = all_to_all %x {axes=["a"], concat_dim=1, split_dim=0, why=[]} : f32[8@a, 6]
    CHECK-NEXT: %1 = local_slice %0 {axes=["b"], dim=0} : f32[8@(a,b), 6])");
}

// 12 over 2 in blocks of 3 is an even cut.
TEST(LowerReshards, OfALayoutThatIsWrittenAnotherWay) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[12]) -> (%y) {
    %y = reshard %x {why=[]} : f32[12@tp%3]
  })",
              "lower_reshards", R"(CHECK: local_slice %x {axes=["tp"], dim=0} : f32[12@tp])");
}

// Two reshards that begin with the same sum.
TEST(LowerReshards, WhatBeginsAlikeIsDoneOnce) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[12@a] partial(b)) -> (%y, %z, %u) {
    %y = reshard %x {why=["one"]} : f32[12@a]
    %z = reshard %x {why=["two"]} : f32[12]
    %u = reshard %x {why=["three"], phase="backward"} : f32[12@a]
  })",
              "lower_reshards", R"(
    CHECK: %0 = all_reduce %x {axes=["b"], reduce="sum", why=["one"]}
    CHECK-NEXT: %1 = all_gather %0 {axes=["a"], dim=0, why=["two"]}
    CHECK-NEXT: %2 = all_reduce %x {axes=["b"], reduce="sum", why=["three"], phase="backward"})");
}

// Nothing is kept from one microbatch for another, nor taken from another stage.
TEST(LowerReshards, EachMicrobatchAndStageHasItsOwn) {
  for (const char* other : {"microbatch=1", "stage=1, microbatch=0"}) {
    CheckPasses(StrCat(R"(mesh [pp=2, tp=2]
  graph @g(%x: f32[12@tp]) -> (%y, %z) {
    %y = reshard %x {why=["one"], microbatch=0} : f32[12]
    %z = reshard %x {why=["two"], )",
                       other, R"(} : f32[12]
  })"),
                "lower_reshards", R"(
    CHECK: all_gather %x {axes=["tp"], dim=0, why=["one"]
    CHECK-NEXT: all_gather %x {axes=["tp"], dim=0, why=["two"])");
  }
}

TEST(LowerReshards, ReasonsStayWithTheCollective) {
  CheckPasses(
      R"(mesh [tp=2]
  graph @g(%x: f32[8] partial(tp)) -> (%y) {
    %0 = reshard %x {for="matmul", why=["spec s:1:1"], site="proj"} : f32[8]
    %y = neg %0 : f32[8]
  })",
      "lower_reshards",
      R"(CHECK: all_reduce %x {axes=["tp"], for="matmul", reduce="sum", why=["spec s:1:1"], site="proj"})");
}

// 5 over two ranks: 3 and 2, and one element of padding.
TEST(ClearPadding, BeforeSumsOverAPaddedDim) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[4, 5@tp]) -> (%y, %z) {
    %w = param "w" : f32[5@tp, 6]
    %0 = exp %x : f32[4, 5@tp]
    %1 = matmul %0, %w {site="s"} : f32[4, 6] partial(tp)
    %2 = matmul %0, %w : f32[4, 6] partial(tp)
    %y = reshard %1 : f32[4, 6]
    %z = reshard %2 : f32[4, 6]
  })",
              "clear_padding", R"(
    CHECK: %1 = zero_padding %0 {site="s"} : f32[4, 5@tp]
    CHECK-NEXT: %2 = matmul %1, %w
    CHECK-NEXT: %3 = matmul %1, %w
    CHECK-NOT: zero_padding)");
}

// Its kernel skips padding by itself.
TEST(ClearPadding, NotForOpsThatIgnoreIt) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[5@tp]) -> (%y) {
    %0 = exp %x : f32[5@tp]
    %1 = sum_squares %0 : f32[] partial(tp)
    %y = reshard %1 : f32[]
  })",
              "clear_padding", "CHECK-NOT: zero_padding");
}

// Inputs have zero padding, neg keeps it, and what is not summed may hold anything.
TEST(ClearPadding, NotWhereItIsZeroOrStays) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[5@tp, 4]) -> (%y, %z) {
    %0 = neg %x : f32[5@tp, 4]
    %1 = reduce_sum %0 {axes=[0], keepdims=false} : f32[4] partial(tp)
    %y = reshard %1 : f32[4]
    %2 = exp %x : f32[5@tp, 4]
    %z = reduce_sum %2 {axes=[1], keepdims=false} : f32[5@tp]
  })",
              "clear_padding", "CHECK-NOT: zero_padding");
}

// What keeps zero has it only where it is in all operands.
TEST(ClearPadding, OfAnyOperand) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 5@tp]) -> (%y, %z) {
    %w = param "w" : f32[5@tp, 6]
    %0 = exp %x : f32[2, 5@tp]
    %1 = concat %x, %0 {axis=0} : f32[4, 5@tp]
    %2 = matmul %1, %w : f32[4, 6] partial(tp)
    %y = reshard %2 : f32[4, 6]
    %3 = concat %x, %x {axis=0} : f32[4, 5@tp]
    %4 = matmul %3, %w : f32[4, 6] partial(tp)
    %z = reshard %4 : f32[4, 6]
  })",
              "clear_padding", R"(
    CHECK: %2 = zero_padding %1 : f32[4, 5@tp]
    CHECK-NEXT: matmul %2, %w
    CHECK-NOT: zero_padding)");
}

// A state's padding is zero in the next step, too: at once, so that the last op can write into it.
TEST(ClearPadding, OfWhatStatesBecome) {
  CheckPasses(R"(mesh [tp=2]
  graph @g() -> () {
    %s = state "s" {dtype="f32", init=0.0, shape=[5]} : f32[5@tp]
    %t = state "t" {dtype="f32", init=0.0, shape=[5]} : f32[5@tp]
    %0 = exp %s : f32[5@tp]
    update "s" %0
    %1 = exp %t : f32[5@tp]
    %2 = neg %1 : f32[5@tp]
    update "t" %2
  })",
              "clear_padding", R"(
    CHECK: %1 = zero_padding %0 : f32[5@tp]
    CHECK-NEXT: update "s" %1
    CHECK-NEXT: %2 = exp %t
    CHECK-NEXT: %3 = zero_padding %2 : f32[5@tp]
    CHECK-NEXT: %4 = neg %3 : f32[5@tp]
    CHECK-NEXT: update "t" %4)");
}

TEST(BucketReductions, SmallOnesOfAPhaseTravelTogether) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 4@tp]) -> (%y, %z, %m) {
    %0 = reduce_sum %x {axes=[1], keepdims=false} : f32[8] partial(tp)
    %1 = all_reduce %0 {axes=["tp"], for="reduce_sum", reduce="sum", why=["a"]} : f32[8]
    %2 = sum_squares %x : f32[] partial(tp)
    %3 = all_reduce %2 {axes=["tp"], for="sum_squares", reduce="sum", why=["b"]} : f32[]
    %4 = reduce_max %x {axes=[1], keepdims=false} : f32[8] partial_max(tp)
    %m = all_reduce %4 {axes=["tp"], for="reduce_max", reduce="max", why=["c"]} : f32[8]
    %y = neg %1 : f32[8]
    %z = neg %3 : f32[]
  })",
              "bucket_reductions", R"(
    CHECK: %1 = sum_squares
    CHECK-NEXT: %2, %3 = all_reduce %0, %1 {axes=["tp"], for="reduce_sum,sum_squares", reduce="sum", why=["a", "b"]} : f32[8], f32[]
    CHECK: %m = all_reduce %_ {axes=["tp"], for="reduce_max", reduce="max", why=["c"]} : f32[8]
    CHECK-NEXT: %y = neg %2
    CHECK-NEXT: %z = neg %3)");
}

// A vector may have dims of 1.
TEST(BucketReductions, VectorsOfAnyRank) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[1, 1, 4] partial(tp), %w: f32[2, 4] partial(tp)) -> (%a, %b, %c) {
    %0 = neg %x : f32[1, 1, 4] partial(tp)
    %1 = reshape %0 {shape=[4]} : f32[4] partial(tp)
    %2 = neg %w : f32[2, 4] partial(tp)
    %3 = neg %1 : f32[4] partial(tp)
    %a = all_reduce %0 {axes=["tp"], for="x", reduce="sum"} : f32[1, 1, 4]
    %b = all_reduce %3 {axes=["tp"], for="v", reduce="sum"} : f32[4]
    %c = all_reduce %2 {axes=["tp"], for="w", reduce="sum"} : f32[2, 4]
  })",
              "bucket_reductions", R"(
    CHECK: all_reduce %0, %3 {
    CHECK: all_reduce %2 {)");
}

// What only looks at a sum waits with it; what reads the view does not.
TEST(BucketReductions, ViewsWait) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8] partial(tp), %w: f32[8] partial(tp), %u: f32[8] partial(tp)) -> (%y, %z) {
    %0 = all_reduce %x {axes=["tp"], reduce="sum"} : f32[8]
    %1 = reshape %0 {shape=[8, 1]} : f32[8, 1]
    %2 = reshape %1 {shape=[1, 8, 1]} : f32[1, 8, 1]
    %3 = neg %w : f32[8] partial(tp)
    %4 = all_reduce %3 {axes=["tp"], reduce="sum"} : f32[8]
    %5 = reshape %4 {shape=[1, 8, 1]} : f32[1, 8, 1]
    %6 = concat %2, %5 {axis=2} : f32[1, 8, 2]
    %y = neg %6 : f32[1, 8, 2]
    %z = all_reduce %u {axes=["tp"], reduce="sum"} : f32[8]
  })",
              "bucket_reductions", R"(
    CHECK: %0 = neg %w
    CHECK-NEXT: %1, %2 = all_reduce %x, %0
    CHECK-NEXT: %3 = reshape %1 {shape=[8, 1]}
    CHECK-NEXT: %4 = reshape %3 {shape=[1, 8, 1]}
    CHECK-NEXT: %5 = reshape %2 {shape=[1, 8, 1]}
    CHECK-NEXT: %6 = concat %4, %5
    CHECK: %z = all_reduce %u)");
}

// What an all_reduce does not say, it does by default.
TEST(BucketReductions, SumsUnlessTheySayOtherwise) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%a: f32[8] partial(tp), %b: f32[4] partial(tp)) -> (%u, %v) {
    %u = all_reduce %a {axes=["tp"]} : f32[8]
    %v = all_reduce %b {axes=["tp"], reduce="sum"} : f32[4]
  })",
              "bucket_reductions", R"(
    CHECK: all_reduce %a, %b)");
}

// The second sums what the first gave.
TEST(BucketReductions, NotWhereOneNeedsTheOther) {
  CheckPasses(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[8@dp, 4@tp]) -> (%z) {
    %0 = reduce_sum %x {axes=[1], keepdims=false} : f32[8@dp] partial(tp)
    %1 = all_reduce %0 {axes=["tp"], reduce="sum"} : f32[8@dp]
    %2 = mul %0, %1 : f32[8@dp] partial(tp)
    %3 = all_reduce %2 {axes=["tp"], reduce="sum"} : f32[8@dp]
    %z = neg %3 : f32[8@dp]
  })",
              "bucket_reductions", R"(
    CHECK: %1 = all_reduce %0
    CHECK-NEXT: %2 = mul
    CHECK-NEXT: %3 = all_reduce %2)");
}

TEST(BucketReductions, LargeOnesAndOtherPhasesStayAlone) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[20000, 2@tp], %a: f32[8] partial(tp)) -> (%y, %z, %u, %v) {
    %0 = reduce_sum %x {axes=[1], keepdims=false} : f32[20000] partial(tp)
    %y = all_reduce %0 {axes=["tp"], reduce="sum"} : f32[20000]
    %1 = neg %0 : f32[20000] partial(tp)
    %z = all_reduce %1 {axes=["tp"], reduce="sum"} : f32[20000]
    %u = all_reduce %a {axes=["tp"], reduce="sum"} : f32[8]
    %2 = neg %a : f32[8] partial(tp)
    %v = all_reduce %2 {axes=["tp"], reduce="sum", phase="backward"} : f32[8]
  })",
              "bucket_reductions", R"(
    CHECK: %y = all_reduce %0 {
    CHECK: %z = all_reduce %1 {
    CHECK: %u = all_reduce %a {
    CHECK: %v = all_reduce %2 {)");
}

TEST(BucketReductions, OfOneStageAndOneMicrobatch) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%a: f32[8] partial(tp), %b: f32[8] partial(tp)) -> (%u, %v, %w, %x) {
    %u = all_reduce %a {axes=["tp"], reduce="sum", stage=1, microbatch=0} : f32[8]
    %v = all_reduce %b {axes=["tp"], reduce="sum", stage=1, microbatch=1} : f32[8]
    %w = all_reduce %b {axes=["tp"], reduce="sum", microbatch=0} : f32[8]
    %x = all_reduce %b {axes=["tp"], reduce="sum", stage=1, microbatch=0} : f32[8]
  })",
              "bucket_reductions", R"(
    CHECK: all_reduce %b {axes=["tp"], reduce="sum", stage=1, microbatch=1}
    CHECK: all_reduce %b {axes=["tp"], reduce="sum", microbatch=0}
    CHECK: all_reduce %a, %b {axes=["tp"], for="", reduce="sum", why=[], stage=1, microbatch=0})");
}

// The gradients of k and v, one of which is read before the other is reduced.
TEST(BucketReductions, ResultsOfOneOpTravelTogether) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%q: f32[1, 4, 2@tp, 3], %k: f32[1, 4, 1, 3], %lse: f32[1, 2@tp, 4]) -> (%y, %z, %u) {
    %dq, %dk, %dv = attention_grad %q, %q, %k, %k, %q, %lse {scale=1.0, causal=true, layout="bshd"} : f32[1, 4, 2@tp, 3], f32[1, 4, 1, 3] partial(tp), f32[1, 4, 1, 3] partial(tp)
    %0 = reshape %dk {shape=[4, 3]} : f32[4, 3] partial(tp)
    %2 = all_reduce %0 {axes=["tp"], reduce="sum"} : f32[4, 3]
    %y = neg %2 : f32[4, 3]
    %1 = reshape %dv {shape=[4, 3]} : f32[4, 3] partial(tp)
    %3 = all_reduce %1 {axes=["tp"], reduce="sum"} : f32[4, 3]
    %z = neg %3 : f32[4, 3]
    %4 = neg %0 : f32[4, 3] partial(tp)
    %u = all_reduce %4 {axes=["tp"], reduce="sum"} : f32[4, 3]
  })",
              "bucket_reductions", R"(
    CHECK: %1 = reshape %dv
    CHECK-NEXT: %2, %3 = all_reduce %0, %1 {
    CHECK-NEXT: %y = neg %2
    CHECK-NEXT: %z = neg %3
    CHECK: %u = all_reduce %4 {)");
}

// The gradient of k is turned back before it is reduced, that of v is not; where the angles come
// too late, the one cannot come to the other.
TEST(BucketReductions, ResultsOfOneOpThatAreTurnedTravelTogether) {
  for (bool late : {false, true}) {
    const std::string angles = "%cos = exp %a : f32[4, 1, 1]\n";
    CheckPasses(
        StrCat(
            R"(mesh [tp=2]
  graph @g(%q: f32[1, 4, 2@tp, 3], %k: f32[1, 4, 1, 3], %lse: f32[1, 2@tp, 4], %a: f32[4, 1, 1]) -> (%y, %z) {
    )",
            late ? "" : angles,
            R"(%dq, %dk, %dv = attention_grad %q, %q, %k, %k, %q, %lse {scale=1.0, causal=true, layout="bshd"} : f32[1, 4, 2@tp, 3], f32[1, 4, 1, 3] partial(tp), f32[1, 4, 1, 3] partial(tp)
    %0 = reshape %dv {shape=[4, 3]} : f32[4, 3] partial(tp)
    %1 = all_reduce %0 {axes=["tp"], reduce="sum"} : f32[4, 3]
    %y = neg %1 : f32[4, 3]
    )",
            late ? angles : "",
            R"(%2 = rotary %dk, %cos, %cos : f32[1, 4, 1, 3] partial(tp)
    %3 = reshape %2 {shape=[4, 3]} : f32[4, 3] partial(tp)
    %4 = all_reduce %3 {axes=["tp"], reduce="sum"} : f32[4, 3]
    %z = neg %4 : f32[4, 3]
  })"),
        "bucket_reductions",
        late ? "CHECK: %y = neg\nCHECK: rotary\nCHECK: all_reduce %3 {"
             : "CHECK: rotary %dk\nCHECK: reshape\nCHECK-NEXT: all_reduce %0, %2 {\n"
               "CHECK-NEXT: %y = neg\nCHECK-NEXT: %z = neg");
  }
}

// Bytes of each on a rank.
TEST(BucketReductions, TheLimit) {
  Graph graph = ParseAndVerify(R"(mesh [tp=2]
  graph @g(%a: f32[8] partial(tp), %b: f32[8] partial(tp)) -> (%u, %v) {
    %u = all_reduce %a {axes=["tp"], reduce="sum"} : f32[8]
    %v = all_reduce %b {axes=["tp"], reduce="sum"} : f32[8]
  })");
  BucketSmallReductions(graph, 31);
  CheckGraph(graph, "CHECK: %u = all_reduce %a {\nCHECK: %v = all_reduce %b {");
  BucketSmallReductions(graph, 32);
  CheckGraph(graph, "CHECK: %0, %1 = all_reduce %a, %b {");
}

}  // namespace
}  // namespace shardc::testing
