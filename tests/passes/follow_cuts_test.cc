#include "passes/follow_cuts.h"

#include <gtest/gtest.h>

#include <string>

#include "ir/diagnostic.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// What stands between two products that are cut: a norm, the rates of heads, the taps of a filter
// in one parameter, and with each the cut that the heads have.
TEST(FollowCuts, WhatIsReadBesideHeads) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y) {
    %w = param "in" : f32[8, 12@tp]
    %g = param "norm" {part="weight", role="NORM"} : f32[12]
    %r = param "rates" : f32[3, 1]
    %t = param "taps" : f32[12, 1, 2]
    %o = param "out" : f32[12@tp, 8]
    %0 = matmul %x, %w : f32[2, 3, 12]
    %1 = reshape %0 {shape=[2, 3, 3, 4]} : f32[2, 3, 3, 4]
    %2 = mul %1, %r : f32[2, 3, 3, 4]
    %3 = reshape %2 {shape=[2, 3, 12]} : f32[2, 3, 12]
    %4 = reshape %t {shape=[12, 2]} : f32[12, 2]
    %5 = transpose %4 {perm=[1, 0]} : f32[2, 12]
    %6, %7 = split %5 {axis=0, sizes=[1, 1]} : f32[1, 12], f32[1, 12]
    %8 = mul %3, %6 : f32[2, 3, 12]
    %9 = mul %8, %7 : f32[2, 3, 12]
    %10, %11 = rms_norm %9, %g {eps=1e-5} : f32[2, 3, 12], f32[2, 3]
    %y = matmul %10, %o : f32[2, 3, 8]
  })",
              "infer_layouts,follow_cuts", R"(
    CHECK: %w = param "in" : f32[8, 12@tp%4]
    CHECK-NEXT: %g = param "norm" {part="weight", role="NORM"} : f32[12@tp%4]
    CHECK-NEXT: %r = param "rates" : f32[3@tp, 1]
    CHECK-NEXT: %t = param "taps" : f32[12@tp%4, 1, 2]
    CHECK-NEXT: %o = param "out" : f32[12@tp%4, 8]
    CHECK-NEXT: %0 = matmul %x, %w : f32[2, 3, 12]
    CHECK-NEXT: %1 = reshape %0 {shape=[2, 3, 3, 4]} : f32[2, 3, 3, 4])");
}

// A factor of each channel, as nGPT learns it, and one of a norm: with a number before they are
// read. What is read beside what is whole, too, stays whole.
TEST(FollowCuts, WhatIsScaledBeforeItIsRead) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8], %x0: f32[2, 3, 12]) -> (%y, %z) {
    %w = param "in" : f32[8, 12@tp]
    %s = param "scale" : f32[12]
    %n = param "norm" : f32[12]
    %t = param "shared" : f32[12]
    %0 = matmul %x, %w : f32[2, 3, 12]
    %c = constant {value=tensor<f32[]: 4>} : f32[]
    %1 = mul %s, %c : f32[12]
    %2 = reshape %1 {shape=[1, 1, 3, 4]} : f32[1, 1, 3, 4]
    %3 = reshape %0 {shape=[2, 3, 3, 4]} : f32[2, 3, 3, 4]
    %4 = mul %2, %3 : f32[2, 3, 3, 4]
    %5 = add %n, %c : f32[12]
    %6, %7 = rms_norm %0, %5 {eps=1e-5} : f32[2, 3, 12], f32[2, 3]
    %8 = reshape %4 {shape=[2, 3, 12]} : f32[2, 3, 12]
    %9 = mul %t, %c : f32[12]
    %10 = mul %8, %9 : f32[2, 3, 12]
    %y = add %6, %10 : f32[2, 3, 12]
    %z = mul %x0, %9 : f32[2, 3, 12]
  })",
              "infer_layouts,follow_cuts", R"(
    CHECK: %s = param "scale" : f32[12@tp%4]
    CHECK-NEXT: %n = param "norm" : f32[12@tp%4]
    CHECK-NEXT: %t = param "shared" : f32[12])");
}

// What makes little of all channels, as of Mamba's dt, B and C, is summed over the ranks; what
// makes as much as it reads stays whole.
TEST(FollowCuts, WhatSumsOverChannels) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y, %z) {
    %w = param "in" : f32[8, 12@tp]
    %few = param "few" : f32[12, 6]
    %many = param "many" : f32[12, 7]
    %0 = matmul %x, %w : f32[2, 3, 12]
    %y = matmul %0, %few : f32[2, 3, 6]
    %z = matmul %0, %many : f32[2, 3, 7]
  })",
              "infer_layouts,follow_cuts", R"(
    CHECK: %few = param "few" : f32[12@tp, 6]
    CHECK-NEXT: %many = param "many" : f32[12, 7])");
}

// Value embeddings, scaled by a number of the layer, and a bias of each head by distance, where a
// mask keeps it. What goes on as it was looked up is none.
TEST(FollowCuts, TablesThatAreReadBesideHeads) {
  CheckPasses(R"(mesh [tp=3]
  graph @g(%x: f32[2, 3, 8], %x0: f32[2, 3, 12], %ids: i64[2, 3], %d: i64[3, 3]) -> (%y, %11) {
    %w = param "in" : f32[8, 12@tp%4]
    %t = param "values" : f32[9, 12]
    %l = param "lambda" : f32[]
    %u = param "residual" : f32[9, 12]
    %b = param "distances" : f32[5, 3]
    %0 = matmul %x, %w : f32[2, 3, 12]
    %1 = reshape %0 {shape=[2, 3, 3, 4]} : f32[2, 3, 3, 4]
    %2 = embedding %t, %ids : f32[2, 3, 12]
    %3 = reshape %2 {shape=[2, 3, 3, 4]} : f32[2, 3, 3, 4]
    %4 = mul %l, %3 : f32[2, 3, 3, 4]
    %5 = add %1, %4 : f32[2, 3, 3, 4]
    %6 = transpose %5 {perm=[0, 2, 1, 3]} : f32[2, 3, 3, 4]
    %7 = matmul_nt %6, %6 : f32[2, 3, 3, 3]
    %8 = embedding %b, %d : f32[3, 3, 3]
    %9 = transpose %8 {perm=[2, 0, 1]} : f32[3, 3, 3]
    %m = constant {value=tensor<bool[3, 3]: true, false, false, true, true, false, true, true, true>} : bool[3, 3]
    %n = constant {value=tensor<f32[]: -1000>} : f32[]
    %15 = where %m, %9, %n : f32[3, 3, 3]
    %10 = add %7, %15 : f32[2, 3, 3, 3]
    %11 = matmul %10, %6 : f32[2, 3, 3, 4]
    %12 = embedding %u, %ids : f32[2, 3, 12]
    %13 = add %0, %12 : f32[2, 3, 12]
    %14 = add %12, %x0 : f32[2, 3, 12]
    %y = add %13, %14 : f32[2, 3, 12]
  })",
              "infer_layouts,follow_cuts", R"(
    CHECK: %t = param "values" : f32[9, 12@tp]
    CHECK-NEXT: %l = param "lambda" : f32[]
    CHECK-NEXT: %u = param "residual" : f32[9, 12]
    CHECK-NEXT: %b = param "distances" : f32[5, 3@tp])");
}

// Behind the sum over ranks; in a second place where nothing is cut; as a rule of the spec has it;
// and summed over.
TEST(FollowCuts, WhatStaysWhole) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y, %z, %u) {
    %w = param "in" : f32[8, 8@tp]
    %o = param "out" : f32[8@tp, 8]
    %b = param "bias" : f32[8]
    %s = param "shared" : f32[8]
    %k = param "kept" {whole=true} : f32[8]
    %p = param "product" : f32[8, 5]
    %0 = matmul %x, %w : f32[2, 3, 8]
    %1 = mul %0, %s : f32[2, 3, 8]
    %2 = mul %1, %k : f32[2, 3, 8]
    %3 = matmul %2, %o : f32[2, 3, 8]
    %y = add %3, %b : f32[2, 3, 8]
    %z = mul %x, %s : f32[2, 3, 8]
    %u = matmul %2, %p : f32[2, 3, 5]
  })",
              "infer_layouts,follow_cuts", R"(
    CHECK: %b = param "bias" : f32[8]
    CHECK-NEXT: %s = param "shared" : f32[8]
    CHECK-NEXT: %k = param "kept" {whole=true} : f32[8]
    CHECK-NEXT: %p = param "product" : f32[8, 5])");
}

// Two readers that want it cut in different ways.
TEST(FollowCuts, OneOfTwoCutsIsNone) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y, %z) {
    %w = param "w" : f32[8, 12@tp%4]
    %v = param "v" : f32[8, 12@tp]
    %s = param "shared" : f32[12]
    %0 = matmul %x, %w : f32[2, 3, 12]
    %1 = matmul %x, %v : f32[2, 3, 12]
    %y = mul %0, %s : f32[2, 3, 12]
    %z = mul %1, %s : f32[2, 3, 12]
  })",
              "follow_cuts", R"(CHECK: param "shared" : f32[12])");
}

// Of values with two cuts nobody knows yet which one what they make will have.
TEST(FollowCuts, BehindTwoCutsIsNone) {
  CheckPasses(R"(mesh [tp=3]
  graph @g(%x: f32[2, 3, 8]) -> (%y) {
    %w = param "w" : f32[8, 8@tp]
    %v = param "v" : f32[8, 8@tp/2]
    %s = param "s" : f32[8]
    %0 = matmul %x, %w : f32[2, 3, 8]
    %1 = matmul %x, %v : f32[2, 3, 8]
    %2 = mul %0, %1 : f32[2, 3, 8]
    %y = mul %2, %s : f32[2, 3, 8]
  })",
              "follow_cuts", R"(CHECK: param "s" : f32[8])");
}

// The sequence, and the batch, are no reason: their ranks have the same parameters.
TEST(FollowCuts, WhatInputsAndConstraintsCutIsNone) {
  CheckPasses(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[4@dp, 6, 8]) -> (%y) {
    %p = param "positions" : f32[6, 8]
    %e = param "each" : f32[4, 1, 8]
    %w = param "w" : f32[8, 8@tp]
    %0 = sharding_constraint %x {axes=["tp"]} : f32[4, 6@tp, 8]
    %1 = add %0, %p : f32[4, 6, 8]
    %2 = add %1, %e : f32[4, 6, 8]
    %y = matmul %2, %w : f32[4, 6, 8]
  })",
              "follow_cuts", R"(
    CHECK: %p = param "positions" : f32[6, 8]
    CHECK-NEXT: %e = param "each" : f32[4, 1, 8])");
}

// Fewer kv heads than ranks: over the part of the axis that deals them out.
TEST(FollowCuts, OverThePartsOfAnAxis) {
  CheckPasses(R"(mesh [tp=4]
  graph @g(%x: f32[2, 3, 16]) -> (%o) {
    %wq = param "q" : f32[16, 16@tp]
    %wk = param "k" : f32[16, 8@tp]
    %gq = param "q_norm" : f32[4, 1]
    %gk = param "k_norm" : f32[2, 1]
    %0 = matmul %x, %wq : f32[2, 3, 16]
    %1 = matmul %x, %wk : f32[2, 3, 8]
    %2 = reshape %0 {shape=[2, 3, 4, 4]} : f32[2, 3, 4, 4]
    %3 = reshape %1 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
    %q = mul %2, %gq : f32[2, 3, 4, 4]
    %k = mul %3, %gk : f32[2, 3, 2, 4]
    %o, %l = attention %q, %k, %k {causal=true, layout="bshd", scale=0.5} : f32[2, 3, 4, 4], f32[2, 4, 3]
  })",
              "split_axes,infer_layouts,follow_cuts", R"(
    CHECK: %gq = param "q_norm" : f32[4@(tp.0,tp.1), 1]
    CHECK-NEXT: %gk = param "k_norm" : f32[2@tp.0, 1])");
}

// Each op doubles the ways back to the parameter.
TEST(FollowCuts, ManyWaysBack) {
  std::string text = R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y) {
    %w = param "in" : f32[8, 12@tp]
    %p0 = param "p" : f32[12]
)";
  for (int i = 0; i < 100; ++i) {
    text += StrCat("%p", i + 1, " = mul %p", i, ", %p", i, " : f32[12]\n");
  }
  text += R"(%0 = matmul %x, %w : f32[2, 3, 12]
    %y = mul %0, %p100 : f32[2, 3, 12]
  })";
  CheckPasses(text, "follow_cuts", R"(CHECK: param "p" : f32[12@tp])");
}

// Further than recursion goes.
TEST(FollowCuts, AVeryLongWayBack) {
  constexpr int kSteps = 200'000;
  std::string text = R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y) {
    %w = param "in" : f32[8, 12@tp]
    %p0 = param "p" : f32[12]
)";
  for (int i = 0; i < kSteps; ++i) text += StrCat("%p", i + 1, " = neg %p", i, " : f32[12]\n");
  text +=
      StrCat("%0 = matmul %x, %w : f32[2, 3, 12]\n%y = mul %0, %p", kSteps, " : f32[2, 3, 12]\n}");
  CheckPasses(text, "follow_cuts", R"(CHECK: param "p" : f32[12@tp])");
}

}  // namespace
}  // namespace shardc::testing
