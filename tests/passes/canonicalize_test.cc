#include "passes/canonicalize.h"

#include <gtest/gtest.h>

#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

TEST(Canonicalize, DropsOpsWithoutEffect) {
  CheckPasses(R"(graph @g(%x: f32[2, 3]) -> (%y) {
    %0 = reshape %x {shape=[2, 3]} : f32[2, 3]
    %1 = transpose %0 {perm=[0, 1]} : f32[2, 3]
    %2 = cast %1 {to="f32"} : f32[2, 3]
    %3 = slice %2 {limits=[2, 3], starts=[0, 0], steps=[1, 1]} : f32[2, 3]
    %4 = broadcast_to %3 {shape=[2, 3]} : f32[2, 3]
    %5 = split %4 {axis=1, sizes=[3]} : f32[2, 3]
    %6 = concat %5 {axis=0} : f32[2, 3]
    %y = neg %6 : f32[2, 3]
  })",
              "canonicalize", R"(
    CHECK: graph
    CHECK-NEXT: %y = neg %x : f32[2, 3]
    CHECK-NEXT: })");
}

TEST(Canonicalize, SmallPowersAreProductsAndRoots) {
  CheckPasses(R"(graph @g(%x: f32[2, 3], %n: i64[3]) -> (%a, %b, %c, %d, %e) {
    %0 = constant {value=tensor<f32[]: 3>} : f32[]
    %1 = constant {value=tensor<f32[]: 0.5>} : f32[]
    %2 = constant {value=tensor<f32[2, 1]: 2, 2>} : f32[2, 1]
    %3 = constant {value=tensor<i64[]: 2>} : i64[]
    %a = pow %x, %0 : f32[2, 3]
    %b = pow %x, %1 : f32[2, 3]
    %c = pow %x, %2 : f32[2, 3]
    %d = pow %n, %3 : i64[3]
    %4 = constant {value=tensor<f32[1, 1, 1]: 0.5>} : f32[1, 1, 1]
    %e = pow %x, %4 : f32[1, 2, 3]
  })",
              "canonicalize", R"(
    CHECK: %2 = mul %x, %x : f32[2, 3]
    CHECK-NEXT: %a = mul %x, %2 : f32[2, 3]
    CHECK-NEXT: %b = sqrt %x : f32[2, 3]
    CHECK-NEXT: %c = pow %x
    CHECK-NEXT: %d = pow %n
    CHECK: %e = pow %x)");
}

TEST(Canonicalize, KeepsASliceThatRunsBackwards) {
  CheckPasses(R"(graph @g(%x: f32[2, 3]) -> (%y) {
    %y = slice %x {limits=[2, -1], starts=[0, 2], steps=[1, -1]} : f32[2, 3]
  })",
              "canonicalize", "CHECK: %y = slice %x");
}

TEST(Canonicalize, ReshardsToOtherPlacesAreNotEqual) {
  CheckPasses(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[4, 8]) -> (%a, %b, %c) {
    %a = reshard %x : f32[4@dp, 8]
    %b = reshard %x : f32[4, 8@tp]
    %c = reshard %x : f32[4@dp, 8]
  })",
              "canonicalize", R"(
    CHECK: -> (%a, %b, c: %a)
    CHECK-NEXT: %a = reshard %x : f32[4@dp, 8]
    CHECK-NEXT: %b = reshard %x : f32[4, 8@tp]
    CHECK-NEXT: })");
}

TEST(Canonicalize, EqualOpsOfSeveralMicrobatchesStay) {
  CheckPasses(R"(graph @g(%x: f32[4]) -> (%a, %b, %c) {
    %a = exp %x {microbatch=0} : f32[4]
    %b = exp %x {microbatch=1} : f32[4]
    %c = exp %x {microbatch=1} : f32[4]
  })",
              "canonicalize", R"(
    CHECK: -> (%a, %b, c: %b)
    CHECK-NEXT: %a = exp %x {microbatch=0}
    CHECK-NEXT: %b = exp %x {microbatch=1}
    CHECK-NEXT: })");
}

TEST(Canonicalize, DropsDeadOpsAndKeepsUpdates) {
  CheckPasses(R"(graph @g(%x: f32[2]) -> (%y) {
    %s = state "s" {dtype="f32", init=0.0, shape=[2]} : f32[2]
    %0 = exp %x : f32[2]
    %1 = log %0 : f32[2]
    %y = neg %x : f32[2]
    %2 = add %s, %x : f32[2]
    update "s" %2
  })",
              "canonicalize", R"(
    CHECK-NOT: exp
    CHECK-NOT: log
    CHECK: neg
    CHECK: update "s")");
  // Though nothing but the update names it.
  CheckPasses(R"(graph @g(%x: f32[2]) -> (%y) {
    %s = state "s" {dtype="f32", init=0.0, shape=[2]} : f32[2]
    %t = state "t" {dtype="f32", init=0.0, shape=[2]} : f32[2]
    %y = neg %x : f32[2]
    update "s" %y
  })",
              "canonicalize", R"(
    CHECK: state "s"
    CHECK-NOT: state "t"
    CHECK: update "s")");
}

TEST(Canonicalize, ComposesReshapesAndTransposes) {
  CheckPasses(R"(graph @g(%x: f32[2, 3, 4]) -> (%y, %z) {
    %0 = reshape %x {shape=[6, 4]} : f32[6, 4]
    %y = reshape %0 {shape=[24]} : f32[24]
    %1 = transpose %x {perm=[2, 0, 1]} : f32[4, 2, 3]
    %z = transpose %1 {perm=[2, 0, 1]} : f32[3, 4, 2]
  })",
              "canonicalize", R"(
    CHECK: %y = reshape %x {shape=[24]}
    CHECK-NEXT: %z = transpose %x {perm=[1, 2, 0]} : f32[3, 4, 2]
    CHECK-NEXT: })");
}

TEST(Canonicalize, TransposesThatUndoEachOtherGoAway) {
  CheckPasses(R"(graph @g(%x: f32[2, 3]) -> (%y) {
    %0 = transpose %x {perm=[1, 0]} : f32[3, 2]
    %1 = transpose %0 {perm=[1, 0]} : f32[2, 3]
    %y = neg %1 : f32[2, 3]
  })",
              "canonicalize", R"(
    CHECK: graph
    CHECK-NEXT: %y = neg %x)");
}

TEST(Canonicalize, FoldsTransposesIntoProducts) {
  CheckPasses(R"(graph @g(%x: f32[5, 4], %k: f32[2, 5, 3, 4], %q: f32[2, 5, 6, 4]) -> (%y, %s, %z) {
    %w = param "w" : f32[6, 4]
    %0 = transpose %w {perm=[1, 0]} : f32[4, 6]
    %y = matmul %x, %0 {phase="backward", site="fc"} : f32[5, 6]
    %1 = transpose %k {perm=[0, 1, 3, 2]} : f32[2, 5, 4, 3]
    %s = matmul %q, %1 : f32[2, 5, 6, 3]
    %z = matmul_nt %y, %0 : f32[5, 4]
  })",
              "canonicalize", R"(
    CHECK: %y = matmul_nt %x, %w {phase="backward", site="fc"} : f32[5, 6]
    CHECK-NEXT: %s = matmul_nt %q, %k : f32[2, 5, 6, 3]
    CHECK-NEXT: %z = matmul %y, %w : f32[5, 4])");
}

// Other permutations than of the last two dims stay.
TEST(Canonicalize, KeepsTransposesThatMoveLeadingDims) {
  CheckPasses(R"(graph @g(%x: f32[3, 2, 4], %k: f32[2, 3, 5]) -> (%y) {
    %0 = transpose %x {perm=[1, 0, 2]} : f32[2, 3, 4]
    %1 = transpose %k {perm=[0, 2, 1]} : f32[2, 5, 3]
    %y = matmul %1, %0 : f32[2, 5, 4]
  })",
              "canonicalize", R"(
    CHECK: transpose %x {perm=[1, 0, 2]}
    CHECK: transpose %k
    CHECK: matmul %_, %_)");
  // Also along with those, of leading dims of one size.
  CheckPasses(R"(graph @g(%x: f32[2, 2, 3, 4], %k: f32[2, 2, 5, 4]) -> (%y) {
    %0 = transpose %k {perm=[1, 0, 3, 2]} : f32[2, 2, 4, 5]
    %y = matmul %x, %0 : f32[2, 2, 3, 5]
  })",
              "canonicalize", R"(
    CHECK: %0 = transpose %k {perm=[1, 0, 3, 2]}
    CHECK: %y = matmul %x, %0)");
}

TEST(Canonicalize, MergesEqualOps) {
  CheckPasses(R"(graph @g(%x: f32[2, 8]) -> (%y) {
    %0, %1 = split %x {axis=1, sizes=[4, 4]} : f32[2, 4], f32[2, 4]
    %2, %3 = split %x {axis=1, sizes=[4, 4]} : f32[2, 4], f32[2, 4]
    %4 = reduce_sum %0 {axes=[0], keepdims=false} : f32[4]
    %5 = reduce_sum %2 {axes=[0], keepdims=false} : f32[4]
    %6 = reduce_sum %2 {axes=[1], keepdims=false} : f32[2]
    %7 = add %4, %5 : f32[4]
    %8 = mul %7, %3 : f32[2, 4]
    %9 = reduce_sum %8 {axes=[1], keepdims=false} : f32[2]
    %y = add %6, %9 : f32[2]
  })",
              "canonicalize", R"(
    CHECK: %0, %1 = split
    CHECK-NEXT: %2 = reduce_sum %0 {axes=[0], keepdims=false}
    CHECK-NEXT: %3 = reduce_sum %0 {axes=[1], keepdims=false}
    CHECK-NEXT: %4 = add %2, %2
    CHECK-NEXT: %5 = mul %4, %1)");
}

// Two parameters are two, also where nothing tells them apart but their name.
TEST(Canonicalize, DoesNotMergeParameters) {
  CheckPasses(R"(graph @g() -> (%y) {
    %a = param "a" : f32[2]
    %b = param "b" : f32[2]
    %y = add %a, %b : f32[2]
  })",
              "canonicalize", "CHECK: %y = add %a, %b");
}

}  // namespace
}  // namespace shardc::testing
