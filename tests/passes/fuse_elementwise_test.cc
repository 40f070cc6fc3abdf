#include "passes/fuse_elementwise.h"

#include <gtest/gtest.h>

#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

TEST(FuseElementwise, AChainIsOneOpAndRoundsOnce) {
  CheckPasses(R"(graph @g(%x: bf16[2, 8], %u: bf16[2, 8]) -> (%y) {
    %0 = silu %x : bf16[2, 8]
    %1 = mul %0, %u {site="mlp"} : bf16[2, 8]
    %y = cast %1 {to="f32", site="mlp"} : f32[2, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: graph
    CHECK-NEXT: %y = fused_elementwise %x, %u {results=[3], steps=["silu 0", "mul 2 1"], types=["f32"], site="mlp"} : f32[2, 8]
    CHECK-NEXT: })");
}

TEST(FuseElementwise, OpsOfOneStageAndOneMicrobatch) {
  CheckPasses(R"(graph @g(%x: bf16[2, 8], %u: bf16[2, 8]) -> (%y) {
    %0 = silu %x {stage=0, microbatch=1} : bf16[2, 8]
    %1 = mul %0, %u {stage=1, microbatch=1} : bf16[2, 8]
    %y = cast %1 {to="f32", stage=1} : f32[2, 8]
  })",
              "fuse_elementwise", "CHECK-NOT: fused");
}

TEST(FuseElementwise, WhatOthersReadIsAResult) {
  CheckPasses(R"(graph @g(%x: f32[2, 8], %b: f32[8]) -> (%y, %z) {
    %y = add %x, %b : f32[2, 8]
    %0 = gelu %y {approximate="none"} : f32[2, 8]
    %1 = cast %y {to="bf16"} : bf16[2, 8]
    %2 = reduce_sum %0 {axes=[1], keepdims=false} : f32[2]
    %z = reduce_sum %1 {axes=[1], keepdims=false} : bf16[2]
  })",
              "fuse_elementwise", R"(
    CHECK: %y, %0, %1 = fused_elementwise %x, %b {results=[2, 3, 2], steps=["add 0 1", "gelu_erf 2"], types=["f32", "f32", "bf16"]} : f32[2, 8], f32[2, 8], bf16[2, 8]
    CHECK-NEXT: reduce_sum %0
    CHECK-NEXT: reduce_sum %1)");
}

// The gradient of a Clip: of a comparison nothing is written where only a choice reads it.
TEST(FuseElementwise, ComparisonsThatOneChoiceReads) {
  CheckPasses(R"(graph @g(%x: f32[2, 8], %d: f32[2, 8], %low: f32[]) -> (%y) {
    %0 = constant {value=tensor<f32[]: 0>} : f32[]
    %1 = mul %d, %x : f32[2, 8]
    %2 = less %low, %x : bool[2, 8]
    %3 = where %2, %1, %0 : f32[2, 8]
    %4 = equal %3, %x : bool[2, 8]
    %y = where %4, %d, %3 : f32[2, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: %y = fused_elementwise %d, %x, %low, %0 {results=[8], steps=["mul 0 1", "less 2 1", "where 5 4 3", "equal 6 1", "where 7 0 6"], types=["f32"]} : f32[2, 8]
    CHECK-NEXT: })");
}

TEST(FuseElementwise, ComparedHalvesAreRoundedFirst) {
  CheckPasses(R"(graph @g(%x: bf16[2, 8], %d: bf16[2, 8]) -> (%y) {
    %1 = mul %d, %x : bf16[2, 8]
    %2 = less %1, %x : bool[2, 8]
    %y = where %2, %d, %x : bf16[2, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: %0 = mul
    CHECK-NEXT: %y = fused_elementwise %0, %x, %d {results=[4], steps=["less 0 1", "where 3 2 1"], types=["bf16"]} : bf16[2, 8])");
}

TEST(FuseElementwise, OtherConditionsStay) {
  CheckPasses(
      R"(graph @g(%x: f32[2, 8], %d: f32[2, 8], %c: bool[2, 8], %i: i64[2, 8]) -> (%a, %b, %e, %f, %two) {
    %0 = neg %x : f32[2, 8]
    %a = where %c, %0, %d : f32[2, 8]
    %1 = less %i, %i : bool[2, 8]
    %2 = neg %d : f32[2, 8]
    %b = where %1, %2, %x : f32[2, 8]
    %two = less %x, %d : bool[2, 8]
    %e = where %two, %x, %d : f32[2, 8]
    %f = where %two, %d, %x : f32[2, 8]
  })",
      "fuse_elementwise", R"(
    CHECK-NOT: fused
    CHECK: %f = where)");
}

// %1 could only move behind its reader.
TEST(FuseElementwise, NothingMovesBehindItsReader) {
  CheckPasses(R"(graph @g(%x: f32[8, 8]) -> (%y) {
    %1 = tanh %x : f32[8, 8]
    %2 = matmul %1, %x : f32[8, 8]
    %y = mul %1, %2 : f32[8, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: tanh
    CHECK-NEXT: matmul
    CHECK-NEXT: mul)");
}

// Nor before what it reads besides is made of the chain.
TEST(FuseElementwise, NothingMovesBeforeWhatItReads) {
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%y) {
    %a = exp %x : f32[4, 8]
    %b = neg %a : f32[4, 8]
    %d = sqrt %a : f32[4, 8]
    %r = softmax %b {axis=1} : f32[4, 8]
    %y = mul %d, %r : f32[4, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: %b, %d = fused_elementwise %x
    CHECK-NEXT: %r = softmax %b {axis=1}
    CHECK-NEXT: %y = mul %d, %r)");
}

// As in the gradient of silu(%g) * %u: %du has readers before %dg is made.
TEST(FuseElementwise, AnOpMovesToTheChainThatItReads) {
  CheckPasses(
      R"(graph @g(%dy: f32[8, 8], %g: f32[8, 8], %u: f32[8, 8], %s: f32[8, 8]) -> (%dg, %dw) {
    %ds = mul %dy, %u : f32[8, 8]
    %du = mul %dy, %s : f32[8, 8]
    %dw = matmul %du, %u : f32[8, 8]
    %dg = silu_grad %ds, %g : f32[8, 8]
  })",
      "fuse_elementwise", R"(
    CHECK: %dg, %du = fused_elementwise %dy, %u, %s, %g {results=[5, 6], steps=["mul 0 1", "silu_grad 4 3", "mul 0 2"]
    CHECK-NEXT: %dw = matmul %du, %u)");
  // Not before what it reads, nor where the chain's value is written in any case.
  CheckPasses(R"(graph @g(%x: f32[8, 8]) -> (%z, %b) {
    %1 = tanh %x : f32[8, 8]
    %2 = exp %1 : f32[8, 8]
    %y = matmul %2, %x : f32[8, 8]
    %z = mul %1, %y : f32[8, 8]
    %3 = matmul %z, %y : f32[8, 8]
    %b = mul %z, %3 : f32[8, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: %0, %1 = fused_elementwise %x {results=[1, 2], steps=["tanh 0", "exp 1"]
    CHECK-NEXT: %y = matmul
    CHECK-NEXT: %z = mul
    CHECK-NEXT: matmul
    CHECK-NEXT: %b = mul)");
}

TEST(FuseElementwise, TheBackwardPassMakesAgainWhatItNeedNotRead) {
  const std::string swiglu =
      R"(graph @g(%g: f32[8, 8], %u: f32[8, 8], %dy: f32[8, 8]) -> (%y, %dg, %du) {
    %s = silu %g : f32[8, 8]
    %y = mul %s, %u : f32[8, 8]
    %ds = mul %dy, %u {phase="backward"} : f32[8, 8]
    %du = mul %dy, %s {phase="backward"} : f32[8, 8]
    %dg = silu_grad %ds, %g {phase="backward"} : f32[8, 8]
  })";
  CheckPasses(swiglu, "fuse_elementwise", R"(
    CHECK: graph
    CHECK-NEXT: %y = fused_elementwise %g, %u {results=[3], steps=["silu 0", "mul 2 1"], types=["f32"]}
    CHECK-NEXT: %du, %dg = fused_elementwise %g, %dy, %u {results=[4, 6], steps=["silu 0", "mul 1 3", "mul 1 2", "silu_grad 5 0"])");
  // Not what others read too, nor of what else the backward pass would not read.
  CheckPasses(R"(graph @g(%g: f32[8, 8], %u: f32[8, 8], %dy: f32[8, 8]) -> (%y, %z, %du, %dz) {
    %s = silu %g : f32[8, 8]
    %y = mul %s, %u : f32[8, 8]
    %z = matmul %s, %u : f32[8, 8]
    %du = mul %dy, %s {phase="backward"} : f32[8, 8]
    %dz = mul %dy, %g {phase="backward"} : f32[8, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: %s, %y = fused_elementwise %g, %u
    CHECK: %du, %dz = fused_elementwise %dy, %s, %g)");
  CheckPasses(R"(graph @g(%g: f32[8, 8], %u: f32[8, 8], %dy: f32[8, 8]) -> (%y, %du, %dz) {
    %s = silu %g : f32[8, 8]
    %y = mul %s, %u : f32[8, 8]
    %du = mul %dy, %s {phase="backward"} : f32[8, 8]
    %dz = mul %dy, %u {phase="backward"} : f32[8, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: %s, %y = fused_elementwise %g, %u
    CHECK: %du, %dz = fused_elementwise %dy, %s, %u)");
  // A mask of what was rounded in the forward pass.
  CheckPasses(R"(graph @g(%g: bf16[8, 8], %u: bf16[8, 8], %dy: bf16[8, 8]) -> (%y, %du, %dz) {
    %s = mul %g, %u : bf16[8, 8]
    %y = tanh %s : bf16[8, 8]
    %0 = less %u, %s {phase="backward"} : bool[8, 8]
    %dz = where %0, %dy, %u {phase="backward"} : bf16[8, 8]
    %du = mul %dy, %g {phase="backward"} : bf16[8, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: %s, %y = fused_elementwise %g, %u
    CHECK: %dz, %du = fused_elementwise %u, %s, %dy, %g)");
}

TEST(FuseElementwise, WhatIsMadeAgainMayBeMadeOfSuch) {
  CheckPasses(R"(graph @g(%g: f32[8, 8], %w: f32[8, 8]) -> (%y, %z) {
    %s = silu %g : f32[8, 8]
    %t = tanh %s : f32[8, 8]
    %y = mul %t, %w : f32[8, 8]
    %p = matmul %y, %w : f32[8, 8]
    %0 = mul %p, %s : f32[8, 8]
    %1 = mul %0, %t : f32[8, 8]
    %z = add %1, %g : f32[8, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: graph
    CHECK-NEXT: %y = fused_elementwise %g, %w {results=[4]
    CHECK-NEXT: %p = matmul
    CHECK-NEXT: %z = fused_elementwise %g, %p {results=[6], steps=["silu 0", "tanh 2",)");
}

TEST(FuseElementwise, ARowThatIsStretchedIsNotMadeAgain) {
  CheckPasses(R"(graph @g(%r: f32[8], %x: f32[64, 8]) -> (%y, %z) {
    %s = exp %r : f32[8]
    %y = mul %s, %r : f32[8]
    %0 = mul %x, %s : f32[64, 8]
    %z = add %0, %r : f32[64, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: %s, %y = fused_elementwise %r
    CHECK-NEXT: %z = fused_elementwise %x, %s, %r {results=[4], steps=["mul 0 1", "add 3 2"])");
}

TEST(FuseElementwise, WhatIsStretchedIsReadAsItWas) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 8@tp], %s: f32[8@tp], %c: f32[2, 1]) -> (%y, %z) {
    %0 = broadcast_to %s {shape=[2, 8]} : f32[2, 8@tp]
    %1 = broadcast_to %c {shape=[2, 8]} : f32[2, 8@tp]
    %y = mul %0, %x : f32[2, 8@tp]
    %z = mul %1, %0 {phase="backward"} : f32[2, 8@tp]
  })",
              "fuse_elementwise", R"(
    CHECK: graph
    CHECK-NEXT: %y = mul %s, %x : f32[2, 8@tp]
    CHECK: %z = mul %c, %s)");
  // One operand at least is as large as the result, and gradients stretch none.
  CheckPasses(R"(graph @g(%x: f32[2, 8], %s: f32[], %c: f32[2, 1]) -> (%y, %z) {
    %0 = broadcast_to %s {shape=[2, 8]} : f32[2, 8]
    %1 = broadcast_to %c {shape=[2, 8]} : f32[2, 8]
    %y = mul %0, %1 : f32[2, 8]
    %z = silu_grad %0, %x {phase="backward"} : f32[2, 8]
  })",
              "fuse_elementwise", R"(
    CHECK: = broadcast_to %s
    CHECK: %y = mul %s, %1
    CHECK: silu_grad %0, %x)");
}

// Whether weights are held in halves is not to decide what is rounded: their casts do not count.
TEST(FuseElementwise, OpsFarFromEachOtherStayApart) {
  for (const bool casts : {false, true}) {
    std::string params, between, outputs;
    for (int i = 0; i < 20; ++i) {
      params += StrCat("%p", i, " = param \"p", i, "\" : f32[4, 4]\n");
      between += casts ? StrCat("%o", i, " = cast %p", i, " {to=\"bf16\"} : bf16[4, 4]\n")
                       : StrCat("%o", i, " = transpose %p", i, " {perm=[1, 0]} : f32[4, 4]\n");
      outputs += StrCat(", %o", i);
    }
    CheckPasses(StrCat("graph @g(%x: bf16[2, 8], %u: bf16[2, 8]) -> (%y", outputs, ") {\n", params,
                       "%0 = silu %x : bf16[2, 8]\n", between, "%y = mul %0, %u : bf16[2, 8]\n}"),
                "fuse_elementwise",
                casts ? "CHECK: %y = fused_elementwise %x, %u" : "CHECK-NOT: fused");
  }
}

TEST(FuseElementwise, NeighboursThatReadTheSame) {
  CheckPasses(R"(graph @g(%d: f32[2, 8], %u: f32[2, 8], %s: f32[2, 8]) -> (%a, %b) {
    %a = mul %d, %u : f32[2, 8]
    %b = mul %d, %s : f32[2, 8]
  })",
              "fuse_elementwise",
              R"(CHECK: %a, %b = fused_elementwise %d, %u, %s {results=[3, 4], )"
              R"(steps=["mul 0 1", "mul 0 2"])");
}

TEST(FuseElementwise, PhasesShapesShardingsAndDoublesStayApart) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 8], %w: f32[2, 8@tp], %d: f64[2, 8], %p: f32[2, 8] partial(tp)) -> (%a, %b, %c, %e) {
    %0 = tanh %x : f32[2, 8]
    %a = exp %0 {phase="backward"} : f32[2, 8]
    %1 = tanh %w : f32[2, 8@tp]
    %b = reduce_sum %1 {axes=[1], keepdims=false} : f32[2] partial(tp)
    %2 = tanh %d : f64[2, 8]
    %c = exp %2 : f64[2, 8]
    %3 = neg %p : f32[2, 8] partial(tp)
    %e = neg %3 : f32[2, 8] partial(tp)
  })",
              "fuse_elementwise", "CHECK-NOT: fused_elementwise");
}

}  // namespace
}  // namespace shardc::testing
