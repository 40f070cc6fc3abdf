#include "passes/accumulate.h"

#include <gtest/gtest.h>

#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// A loss that is no sum over examples: each batch has its own, and inputs and outputs hold both. A
// rank has its part of each.
TEST(AccumulateBatches, EachBatchHasItsLoss) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%x: f32[4@dp, 6], %mask: f32[6]) -> (loss: %loss, %y) {
    %w = param "w" : f32[6]
    %k = mul %w, %mask : f32[6]
    %y = mul %x, %k {site="y", stage=1} : f32[4, 6]
    %m = reduce_mean %y {axes=[0, 1], keepdims=false} : f32[]
    %loss = mul %m, %m {site="loss"} : f32[]
  })",
              "accumulate", R"(
    CHECK: graph @g(%x: f32[8@dp/2, 6], %mask: f32[6]) -> (%loss, %y) {
    CHECK-NEXT: %w = param "w" : f32[6]
    CHECK-NEXT: %k = mul %w, %mask : f32[6]
    CHECK-NEXT: %0, %1 = split %x {axis=0, sizes=[4, 4], site="y", stage=1} : f32[4, 6], f32[4, 6]
    CHECK-NEXT: %2 = mul %1, %k {site="y", stage=1, microbatch=1} : f32[4, 6]
    CHECK-NEXT: %3 = reduce_mean %2 {axes=[0, 1], keepdims=false, microbatch=1} : f32[]
    CHECK-NEXT: %4 = mul %3, %3 {site="loss", microbatch=1} : f32[]
    CHECK-NEXT: %5 = mul %0, %k {site="y", stage=1, microbatch=0} : f32[4, 6]
    CHECK-NEXT: %6 = reduce_mean %5 {axes=[0, 1], keepdims=false, microbatch=0} : f32[]
    CHECK-NEXT: %7 = mul %6, %6 {site="loss", microbatch=0} : f32[]
    CHECK-NEXT: %8 = add %7, %4 {site="loss"} : f32[]
    CHECK-NEXT: %9 = constant {value=tensor<f32[]: 2>, site="loss"} : f32[]
    CHECK-NEXT: %loss = div %8, %9 {site="loss"} : f32[]
    CHECK-NEXT: %y = concat %5, %2 {axis=0, site="y", stage=1} : f32[8, 6]
    CHECK-NEXT: })");
}

// An input that nothing reads, as a mask that changes nothing, holds as many batches as the others.
TEST(AccumulateBatches, UnusedInputsHoldAllBatches) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%x: f32[4], %mask: i64[4@dp, 6], %other: i64[6]) -> (%y, given: %mask) {
    %y = exp %x : f32[4]
  })",
              "accumulate", R"(
    CHECK: graph @g(%x: f32[8], %mask: i64[8@dp/2, 6], %other: i64[6]) -> (%y, given: %mask) {)");
}

// Dropouts draw for each batch anew, and a lookup knows its place in all of them.
TEST(AccumulateBatches, DrawsAndPlacesAreOfAllBatches) {
  CheckPasses(R"(graph @g(%i: i64[4], %step: i64[]) -> (%y) {
    %t = param "t" : f32[5, 6]
    %e = embedding %t, %i : f32[4, 6]
    %d = dropout %e, %step {ratio=0.5, seed=1, stream=2} : f32[4, 6]
    %y = dropout %d, %step {ratio=0.5, seed=1, stream=0} : f32[4, 6]
  })",
              "accumulate", R"(
    CHECK: embedding %t, %_ {origin=[4], microbatch=1}
    CHECK: dropout %_, %step {ratio=0.5, seed=1, stream=5, microbatch=1}
    CHECK: dropout %_, %step {ratio=0.5, seed=1, stream=3, microbatch=1}
    CHECK: embedding %t, %_ {origin=[0], microbatch=0}
    CHECK: dropout %_, %step {ratio=0.5, seed=1, stream=2, microbatch=0})");
}

// Also what is dropped of a weight, of which nothing else is of a batch.
TEST(AccumulateBatches, WeightsAreDroppedAnewForEachBatch) {
  CheckPasses(R"(graph @g(%x: f32[4, 6], %step: i64[]) -> (%y) {
    %w = param "w" : f32[6]
    %k = neg %w : f32[6]
    %d = dropout %k, %step {ratio=0.5, seed=1, stream=0} : f32[6]
    %y = mul %x, %d : f32[4, 6]
  })",
              "accumulate", R"(
    CHECK: %0 = dropout %k, %step {ratio=0.5, seed=1, stream=1, microbatch=1}
    CHECK: mul %2, %0 {microbatch=1}
    CHECK-NEXT: %4 = dropout %k, %step {ratio=0.5, seed=1, stream=0, microbatch=0}
    CHECK-NEXT: mul %1, %4 {microbatch=0})");
}

TEST(AccumulateBatches, RefusesWhatHasNoMean) {
  Graph graph = ParseAndVerify(R"(graph @g(%x: i64[4]) -> (%count) {
    %count = reduce_sum %x {axes=[0], keepdims=false} : i64[]
  })");
  ExpectThrown([&] { AccumulateBatches(graph, {.count = 2, .where = "--accumulate"}, nullptr); },
               "E2111", "output 'count' is i64[], of which 2 batches have no mean");
  Graph none = ParseAndVerify("graph @g(%x: f32[]) -> (%y) {\n  %y = exp %x : f32[]\n}");
  ExpectThrown([&] { AccumulateBatches(none, {.count = 2, .where = "--accumulate"}, nullptr); },
               "E2110", "no input of the model has a batch dim");
}

}  // namespace
}  // namespace shardc::testing
