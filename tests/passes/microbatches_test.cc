#include "passes/microbatches.h"

#include <gtest/gtest.h>

#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// The labels that count are counted whole, the loss is a sum of the pieces' sums, and each rank has
// its part of each piece. The pieces stand in falling order.
TEST(Microbatches, LossOfAProduct) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%x: f32[4@dp, 8], %t: i64[4@dp]) -> (loss: %loss, %y) {
    %w = param "w" : f32[8, 5]
    %y = matmul %x, %w {site="head", stage=1} : f32[4, 5]
    %i = constant {value=tensor<i64[]: -100>} : i64[]
    %l, %lse = cross_entropy %y, %t {ignore_index=-100, site="loss"} : f32[4], f32[4]
    %s = reduce_sum %l {axes=[0], keepdims=false} : f32[]
    %m = not_equal %t, %i : bool[4]
    %c = cast %m {to="f32"} : f32[4]
    %n = reduce_sum %c {axes=[0], keepdims=false} : f32[]
    %loss = div %s, %n : f32[]
  })",
              "microbatches", R"(
    CHECK: graph @g(%x: f32[4@dp/2, 8], %t: i64[4@dp/2]) -> (%loss, %y) {
    CHECK-NEXT: %w = param "w" : f32[8, 5]
    CHECK-NEXT: %i = constant {value=tensor<i64[]: -100>} : i64[]
    CHECK-NEXT: %m = not_equal %t, %i : bool[4]
    CHECK-NEXT: %c = cast %m {to="f32"} : f32[4]
    CHECK-NEXT: %0, %1 = split %x {axis=0, sizes=[2, 2], site="head", stage=1} : f32[2, 8], f32[2, 8]
    CHECK-NEXT: %2 = matmul %1, %w {site="head", stage=1, microbatch=1} : f32[2, 5]
    CHECK-NEXT: %3, %4 = split %t {axis=0, sizes=[2, 2], site="loss"} : i64[2], i64[2]
    CHECK-NEXT: %5, %6 = cross_entropy %2, %4 {ignore_index=-100, origin=[2], site="loss", microbatch=1} : f32[2], f32[2]
    CHECK-NEXT: %7 = reduce_sum %5 {axes=[0], keepdims=false, microbatch=1} : f32[]
    CHECK-NEXT: %8 = matmul %0, %w {site="head", stage=1, microbatch=0} : f32[2, 5]
    CHECK-NEXT: %9, %10 = cross_entropy %8, %3 {ignore_index=-100, origin=[0], site="loss", microbatch=0} : f32[2], f32[2]
    CHECK-NEXT: %11 = reduce_sum %9 {axes=[0], keepdims=false, microbatch=0} : f32[]
    CHECK-NEXT: %y = concat %8, %2 {axis=0, site="head", stage=1} : f32[4, 5]
    CHECK-NEXT: %s = add %11, %7 : f32[]
    CHECK-NEXT: %n = reduce_sum %c
    CHECK-NEXT: %loss = div %s, %n : f32[]
    CHECK-NEXT: })");
}

// What is tied to the batch is cut wherever the batch stands: behind a transpose, as the major part
// of a dim, in a constant, and in what a weight is stretched to. A mask of the sequence is not, nor
// is the position table that all examples share.
TEST(Microbatches, FollowTheBatch) {
  CheckPasses(R"(graph @g(%m: f32[3, 3], %x: f32[4, 3, 6], %u: f32[4, 3, 6]) -> (%loss) {
    %p = param "p" : f32[1, 3, 6]
    %w = param "w" : f32[6, 5]
    %q = broadcast_to %p {shape=[4, 3, 6]} : f32[4, 3, 6]
    %k = constant {value=tensor<f32[4, 1, 1]: 1, 2, 3, 4>} : f32[4, 1, 1]
    %0 = add %x, %q : f32[4, 3, 6]
    %1 = mul %0, %k : f32[4, 3, 6]
    %2 = transpose %1 {perm=[1, 0, 2]} : f32[3, 4, 6]
    %3 = transpose %2 {perm=[1, 0, 2]} : f32[4, 3, 6]
    %4 = add %3, %u : f32[4, 3, 6]
    %5 = matmul %m, %4 : f32[4, 3, 6]
    %6 = reshape %5 {shape=[12, 6]} : f32[12, 6]
    %7 = matmul %6, %w : f32[12, 5]
    %loss = sum_squares %7 : f32[]
  })",
              "microbatches", R"(
    CHECK: broadcast_to %p {shape=[2, 3, 6], microbatch=1} : f32[2, 3, 6]
    CHECK-NEXT: %_, %_ = split %x {axis=0, sizes=[2, 2]}
    CHECK: %_, %_ = split %k {axis=0, sizes=[2, 2]} : f32[2, 1, 1], f32[2, 1, 1]
    CHECK: transpose %_ {perm=[1, 0, 2], microbatch=1} : f32[3, 2, 6]
    CHECK: %_, %_ = split %u {axis=0, sizes=[2, 2]}
    CHECK: matmul %m, %_ {microbatch=1} : f32[2, 3, 6]
    CHECK: reshape %_ {shape=[6, 6], microbatch=1} : f32[6, 6]
    CHECK: matmul %_, %w {microbatch=1} : f32[6, 5]
    CHECK: sum_squares %_ {microbatch=1} : f32[]
    CHECK-NOT: split
    CHECK: sum_squares %_ {microbatch=0} : f32[]
    CHECK-NEXT: %loss = add)");
}

// What depends on no weight may mix examples: it is made whole.
TEST(Microbatches, WhatIsNotLearnedMayMix) {
  CheckPasses(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = reduce_max %x {axes=[0], keepdims=true} : f32[1, 6]
    %1 = sub %x, %0 : f32[4, 6]
    %2 = mul %1, %w : f32[4, 6]
    %loss = sum_squares %2 : f32[]
  })",
              "microbatches", R"(
    CHECK: %0 = reduce_max %x {axes=[0], keepdims=true} : f32[1, 6]
    CHECK: sub %_, %0 {microbatch=1} : f32[2, 6]
    CHECK: sub %_, %0 {microbatch=0} : f32[2, 6])");
}

// Wherever in the model a state gets its next value: it is put together of all pieces.
TEST(Microbatches, StatesAreUpdatedBehindThePieces) {
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%loss) {
    %w = param "w" : f32[8, 5]
    %a = state "a" {dtype="f32", init=0, shape=[4, 5]} : f32[4, 5]
    %b = state "b" {dtype="f32", init=0, shape=[]} : f32[]
    %y = matmul %x, %w : f32[4, 5]
    %z = add %y, %a : f32[4, 5]
    update "a" %z
    %s = reduce_sum %y {axes=[0, 1]} : f32[]
    update "b" %s
    %loss = reduce_sum %z {axes=[0, 1]} : f32[]
  })",
              "microbatches", R"(
    CHECK: %z = concat
    CHECK: %s = add
    CHECK-NEXT: %loss = add
    CHECK-NEXT: update "a" %z
    CHECK-NEXT: update "b" %s)");
}

// A mean divides by the size of the whole: it is a sum and a factor.
TEST(Microbatches, AMeanIsASum) {
  CheckPasses(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[4, 6]
    %loss = reduce_mean %0 {axes=[0, 1], keepdims=false} : f32[]
  })",
              "microbatches", R"(
    CHECK: reduce_sum %_ {axes=[0, 1], keepdims=false, microbatch=1} : f32[]
    CHECK: reduce_sum %_ {axes=[0, 1], keepdims=false, microbatch=0} : f32[]
    CHECK-NEXT: %6 = add %5, %3 : f32[]
    CHECK-NEXT: %7 = constant {value=tensor<f32[]: 0.041666668>} : f32[]
    CHECK-NEXT: %loss = mul %6, %7 : f32[])");
}

// The gradient of a weight is a sum over its uses, from the first piece on.
TEST(Microbatches, GradientsAreSummed) {
  CheckPasses(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6, 5]
    %0 = matmul %x, %w : f32[4, 5]
    %loss = sum_squares %0 : f32[]
  })",
              "microbatches,differentiate,one_by_one", R"(
    CHECK: graph @g(%x: f32[4, 6]) -> (%loss, grad.w: %15)
    CHECK: %3 = sum_squares %2 {microbatch=0} : f32[]
    CHECK: %8 = matmul_tn %0, %_ {batch=0, phase="backward", microbatch=0} : f32[6, 5]
    CHECK: %10 = sum_squares %9 {microbatch=1} : f32[]
    CHECK-NEXT: %loss = add %3, %10 : f32[]
    CHECK: %14 = matmul_tn %1, %_ {batch=0, phase="backward", microbatch=1} : f32[6, 5]
    CHECK-NEXT: %15 = add %8, %14 {phase="backward", microbatch=1} : f32[6, 5]
    CHECK-NEXT: })");
}

// In f32 where halves would be rounded once a microbatch.
TEST(Microbatches, SumsOfHalvesAreMadeInF32) {
  CheckPasses(R"(graph @g(%x: bf16[4, 6]) -> (%loss) {
    %w = param "w" : bf16[6, 5]
    %0 = matmul %x, %w : bf16[4, 5]
    %loss = reduce_sum %0 {axes=[0, 1], keepdims=false} : bf16[]
  })",
              "microbatches", R"(
    CHECK: %3 = reduce_sum %2 {axes=[0, 1], keepdims=false, out="f32", microbatch=1} : f32[]
    CHECK: %5 = reduce_sum %4 {axes=[0, 1], keepdims=false, out="f32", microbatch=0} : f32[]
    CHECK-NEXT: %6 = add %5, %3 : f32[]
    CHECK-NEXT: %loss = cast %6 {to="bf16"} : bf16[])");
}

void Refused(std::string_view text, int count, std::string_view id, std::string_view what) {
  Graph graph = ParseAndVerify(text);
  ExpectThrown(
      [&] {
        CutMicrobatches(graph, {count, "here"}, graph.FindOutput("loss"));
      },
      id, what);
}

TEST(Microbatches, RefusesWhatDoesNotDivide) {
  constexpr std::string_view kText = R"(mesh [dp=2]
  graph @g(%x: f32[4@dp, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[4, 6]
    %loss = sum_squares %0 : f32[]
  })";
  Refused(kText, 3, "E2110", "3 microbatches do not divide the 4 examples of input 'x'");
  Refused(kText, 4, "E2110", "at most 2 microbatches");
  constexpr std::string_view kTwo = R"(mesh [dp=2]
  graph @g(%x: f32[2@dp, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[2@dp, 6]
    %loss = sum_squares %0 : f32[]
  })";
  Refused(kTwo, 2, "E2110", "1 microbatch, or fewer ranks");
  Refused("graph @g(%x: f32[0, 6]) -> (%y) {\n  %y = neg %x : f32[0, 6]\n}", 2, "E2111",
          "no op of the model can run on 2 pieces");
  Refused("graph @g() -> (%w) {\n  %w = param \"w\" : f32[6]\n}", 2, "E2110", "no input");
}

TEST(Microbatches, RefusesWhatMixesExamples) {
  // A norm over the batch.
  Refused(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[4, 6]
    %1 = reduce_sum %0 {axes=[0], keepdims=true, site="norm"} : f32[1, 6]
    %2 = sub %0, %1 {site="centre"} : f32[4, 6]
    %loss = sum_squares %2 : f32[]
  })",
          2, "E2111", "sub at centre needs for each example what reduce_sum at norm");
  // Each example against each.
  Refused(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[4, 6]
    %1 = matmul_nt %0, %0 {site="pairs"} : f32[4, 4]
    %loss = sum_squares %1 : f32[]
  })",
          2, "E2111", "matmul_nt at pairs mixes the examples of a batch: f32[4, 6]");
  // Lookups of what is an example each.
  for (const char* lookup : {"embedding %0, %i {site=\"rows\"} : f32[3, 6]",
                             "gather %0, %i {axis=0, site=\"rows\"} : f32[3, 6]",
                             "gather_nd %0, %j {batch_dims=0, site=\"rows\"} : f32[3, 6]"}) {
    Refused(StrCat(R"(graph @g(%x: f32[4, 6], %i: i64[3], %j: i64[3, 1]) -> (%loss) {
      %w = param "w" : f32[6]
      %0 = mul %x, %w : f32[4, 6]
      %1 = )",
                   lookup, R"(
      %loss = sum_squares %1 : f32[]
    })"),
            2, "E2111", "at rows mixes the examples of a batch: f32[4, 6]");
  }
  // Elements of all examples beside each other, each of which has a weight of its own.
  Refused(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[24]
    %v = param "v" : f32[6]
    %0 = mul %x, %v : f32[4, 6]
    %1 = transpose %0 {perm=[1, 0]} : f32[6, 4]
    %2 = reshape %1 {shape=[24], site="flat"} : f32[24]
    %3 = mul %2, %w : f32[24]
    %loss = sum_squares %3 : f32[]
  })",
          2, "E2111", "reshape at flat mixes the examples of a batch: f32[6, 4]");
  // A label is a place among all of them.
  Refused(R"(graph @g(%x: f32[4], %dy: f32[], %t: i64[], %lse: f32[]) -> (%loss) {
    %w = param "w" : f32[]
    %0 = mul %x, %w : f32[4]
    %1 = cross_entropy_grad %dy, %0, %t, %lse {site="classes"} : f32[4]
    %loss = sum_squares %1 : f32[]
  })",
          2, "E2111", "mixes the examples of a batch: f32[4] cannot");
  // A lookup of rows of all examples, whose indices are found to come in pieces before the rows.
  Refused(R"(graph @g(%x: f32[4, 3]) -> (%loss) {
    %w = param "w" : f32[3]
    %0 = reduce_max %x {axes=[1], keepdims=false} : f32[4]
    %at = cast %0 {to="i64"} : i64[4]
    %1 = mul %x, %w : f32[4, 3]
    %2 = silu %1 : f32[4, 3]
    %3 = silu %2 : f32[4, 3]
    %4 = reshape %3 {shape=[12], site="flat"} : f32[12]
    %5 = gather %4, %at {axis=0} : f32[4]
    %loss = sum_squares %5 : f32[]
  })",
          2, "E2111", "reshape at flat mixes the examples of a batch: f32[4, 3]");
}

// An input that nothing reads is no batch, though it comes first.
TEST(Microbatches, TheBatchIsRead) {
  CheckPasses(R"(graph @g(%unread: i64[4], %x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[4, 6]
    %loss = sum_squares %0 : f32[]
  })",
              "microbatches", "CHECK: split %x {axis=0, sizes=[2, 2]}");
}

TEST(Microbatches, RefusesAModelOfWhichNothingComesInPieces) {
  Refused("graph @g(%x: f32[4, 6]) -> (%y) {\n  %y = softmax %x {axis=0} : f32[4, 6]\n}", 2,
          "E2111", "no op of the model can run on 2 pieces of the batch");
}

TEST(Microbatches, RefusesALossThatIsNoSum) {
  Refused(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[4, 6]
    %loss = reduce_max %0 {axes=[0, 1], keepdims=false, site="most"} : f32[]
  })",
          2, "E2111", "reduce_max at most mixes the examples");
  Refused(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[4, 6]
    %1 = sum_squares %0 : f32[]
    %loss = sqrt %1 {site="root"} : f32[]
  })",
          2, "E2111", "sqrt at root is not linear");
  // Each part is a sum, and so is their sum, but no product of them is.
  Refused(R"(graph @g(%x: f32[4, 6]) -> (%loss) {
    %w = param "w" : f32[6]
    %0 = mul %x, %w : f32[4, 6]
    %1 = sum_squares %0 : f32[]
    %2 = reduce_sum %0 {axes=[0, 1], keepdims=false} : f32[]
    %3 = add %1, %2 : f32[]
    %loss = mul %3, %1 {site="product"} : f32[]
  })",
          2, "E2111", "or that term out of the loss");
  Refused(R"(graph @g(%x: f32[4, 6]) -> (%loss, %y) {
    %w = param "w" : f32[6]
    %y = mul %x, %w : f32[4, 6]
    %loss = sum_squares %w : f32[]
  })",
          2, "E2111", "no sum over the examples");
}

}  // namespace
}  // namespace shardc::testing
