#include "passes/precision.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "frontend/gpt_config.h"
#include "ir/op_def.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "tests/exec/harness.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

TEST(Precision, ProductsInTheComputeTypeTheRestInF32) {
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%y) {
    %w = param "w" : f32[8, 6]
    %b = param "b" : f32[6]
    %0 = matmul %x, %w : f32[4, 6]
    %1 = add %0, %b : f32[4, 6]
    %2 = gelu %1 {approximate="tanh"} : f32[4, 6]
    %y = softmax %2 {axis=1} : f32[4, 6]
  })",
              "precision", R"(
    CHECK: param "w" : f32[8, 6]
    CHECK: cast %x {to="bf16"} : bf16[4, 8]
    CHECK: cast %w {to="bf16"} : bf16[8, 6]
    CHECK: matmul %_, %_ : bf16[4, 6]
    CHECK-NEXT: cast %_ {to="f32"} : f32[4, 6]
    CHECK-NEXT: add %_, %b : f32[4, 6]
    CHECK-NEXT: gelu %_ {approximate="tanh"} : f32[4, 6]
    CHECK-NEXT: softmax %_ {axis=1} : f32[4, 6])");
}

TEST(Precision, WhatAProductReadsNextIsSmall) {
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%y) {
    %w = param "w" : f32[8, 6]
    %v = param "v" : f32[6, 6]
    %b = param "b" : f32[6]
    %0 = matmul %x, %w : f32[4, 6]
    %1 = add %0, %b : f32[4, 6]
    %2 = gelu %1 {approximate="tanh"} : f32[4, 6]
    %y = matmul %2, %v : f32[4, 6]
  })",
              "precision", R"(
    CHECK: matmul %_, %_ : bf16[4, 6]
    CHECK-NEXT: cast %b {to="bf16"} : bf16[6]
    CHECK-NEXT: add %_, %_ : bf16[4, 6]
    CHECK-NEXT: gelu %_ {approximate="tanh"} : bf16[4, 6])");
}

// q and k are turned in f32, v goes into a product.
TEST(Precision, NothingIsRoundedOnTheWayToATable) {
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%y) {
    %w = param "w" : f32[8, 12]
    %0 = matmul %x, %w : f32[4, 12]
    %q, %k, %v = split %0 {axis=1, sizes=[4, 4, 4]} : f32[4, 4], f32[4, 4], f32[4, 4]
    %1 = constant {value=tensor<f32[4]: 1, 2, 3, 4>} : f32[4]
    %2 = mul %q, %1 : f32[4, 4]
    %3 = mul %k, %1 : f32[4, 4]
    %4 = matmul_nt %2, %3 : f32[4, 4]
    %y = matmul %4, %v : f32[4, 4]
  })",
              "precision,fold_casts", R"(
    CHECK: matmul %_, %_ {out="f32"} : f32[4, 12]
    CHECK-NEXT: split %_ {axis=1, sizes=[4, 4, 4]} : f32[4, 4], f32[4, 4], f32[4, 4]
    CHECK: mul %_, %_ : f32[4, 4]
    CHECK-NEXT: mul %_, %_ : f32[4, 4]
    CHECK-NEXT: cast %_ {to="bf16"} : bf16[4, 4])");
}

// Also where what it meets is small for others that read it.
TEST(Precision, TablesKeepTheirDigits) {
  CheckPasses(R"(graph @g(%x: f32[4, 4]) -> (%y) {
    %w = param "w" : f32[4, 4]
    %0 = matmul %x, %w : f32[4, 4]
    %1 = constant {value=tensor<f32[4]: 1, 2, 3, 4>} : f32[4]
    %2 = mul %0, %1 : f32[4, 4]
    %3 = matmul %0, %0 : f32[4, 4]
    %y = matmul %2, %3 : f32[4, 4]
  })",
              "precision", R"(
    CHECK: %_ = matmul %_, %_ : bf16[4, 4]
    CHECK: cast %_ {to="f32"} : f32[4, 4]
    CHECK-NEXT: mul %_, %_ : f32[4, 4]
    CHECK: cast %_ {to="bf16"} : bf16[4, 4])");
}

// What is only seen in other dims before it is rounded is rounded where it is made; not where it is
// read in those dims too.
TEST(Precision, CastsFoldThroughReshapes) {
  CheckPasses(R"(graph @g(%x: f32[4, 6], %c: f32[3]) -> (%y) {
    %0 = rotary %x, %c, %c : f32[4, 6]
    %1 = reshape %0 {shape=[2, 2, 6]} : f32[2, 2, 6]
    %2 = reshape %1 {shape=[24]} : f32[24]
    %y = cast %2 {to="bf16"} : bf16[24]
  })",
              "fold_casts", R"(
    CHECK: rotary %x, %c, %c {out="bf16"} : bf16[4, 6]
    CHECK-NEXT: reshape %_ {shape=[2, 2, 6]} : bf16[2, 2, 6]
    CHECK-NEXT: %2 = reshape %1 {shape=[24]} : bf16[24])");
  CheckPasses(R"(graph @g(%x: f32[4, 6], %c: f32[3]) -> (%y, %1) {
    %0 = rotary %x, %c, %c : f32[4, 6]
    %1 = reshape %0 {shape=[2, 2, 6]} : f32[2, 2, 6]
    %2 = reshape %1 {shape=[24]} : f32[24]
    %y = cast %2 {to="bf16"} : bf16[24]
  })",
              "fold_casts", R"(
    CHECK: rotary %x, %c, %c : f32[4, 6]
    CHECK: %y = cast %_ {to="bf16"} : bf16[24])");
}

// Gradients are read as attention gives them, products are as wide as what reads them takes.
TEST(Precision, RotaryReadsHalvesAndKeepsItsAngles) {
  CheckPasses(R"(graph @g(%x: f32[4, 8], %c: f32[3], %v: bf16[4, 6]) -> (%y, %z) {
    %w = param "w" : f32[8, 6]
    %0 = matmul %x, %w : f32[4, 6]
    %y = rotary %0, %c, %c {out="bf16"} : bf16[4, 6]
    %1 = cast %v {to="f32"} : f32[4, 6]
    %z = rotary %1, %c, %c {inverse=true} : f32[4, 6]
  })",
              "narrow_reads", R"(
    CHECK: %y = rotary %_, %c, %c {out="bf16"} : bf16[4, 6]
    CHECK-NEXT: %z = rotary %v, %c, %c {inverse=true, out="f32"} : f32[4, 6])");
}

// As of the gradients of queries, keys and values of one product.
TEST(Precision, PiecesAreRoundedBeforeTheyArePutTogether) {
  CheckPasses(R"(graph @g(%x: bf16[4, 6], %v: bf16[4, 6], %z: f32[4, 6], %c: f32[3]) -> (%y) {
    %0 = rotary %x, %c, %c {inverse=true, out="f32"} : f32[4, 6]
    %1 = cast %v {to="f32"} : f32[4, 6]
    %2 = concat %0, %1, %z {axis=1} : f32[4, 18]
    %y = cast %2 {to="bf16"} : bf16[4, 18]
  })",
              "fold_casts", R"(
    CHECK: %0 = rotary %x, %c, %c {inverse=true, out="bf16"} : bf16[4, 6]
    CHECK-NEXT: %1 = cast %z {to="bf16"} : bf16[4, 6]
    CHECK-NEXT: %2 = concat %0, %v, %1 {axis=1} : bf16[4, 18]
    CHECK-NEXT: })");
  // What something else reads too stays whole in f32.
  CheckPasses(R"(graph @g(%x: f32[4, 6], %z: f32[4, 6]) -> (%0, %y) {
    %0 = concat %x, %z {axis=1} : f32[4, 12]
    %y = cast %0 {to="bf16"} : bf16[4, 12]
  })",
              "fold_casts", R"(
    CHECK: %0 = concat %x, %z {axis=1} : f32[4, 12]
    CHECK-NEXT: %y = cast %0)");
}

TEST(Precision, OneCastOfAWeightForAllItsUses) {
  CheckPasses(R"(graph @g(%x: f32[4, 8], %z: f32[4, 8]) -> (%y) {
    %w = param "w" : f32[8, 8]
    %0 = matmul %x, %w : f32[4, 8]
    %1 = matmul_nt %z, %w : f32[4, 8]
    %y = add %0, %1 : f32[4, 8]
  })",
              "precision", R"(
    CHECK: cast %w
    CHECK-NOT: cast %w
    CHECK: %y = add %_, %_ : f32[4, 8])");
}

TEST(Precision, ResidualsStayInF32) {
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%y) {
    %w = param "w" : f32[8, 8]
    %0 = matmul %x, %w : f32[4, 8]
    %y = add %x, %0 : f32[4, 8]
  })",
              "precision,fold_casts", R"(
    CHECK: matmul %_, %_ {out="f32"} : f32[4, 8]
    CHECK-NEXT: %y = add %x, %_ : f32[4, 8])");
}

// A branch is rounded where what adds it widens it again, with a bias of its type; the sum is not.
TEST(Precision, BranchesAreNarrowWhereTheirReaderWidensThem) {
  constexpr const char* kPasses = "precision,fold_casts,fuse,fold_casts,narrow_reads";
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%s, %y) {
    %w = param "w" : f32[8, 8]
    %b = param "b" : f32[8]
    %0 = matmul %x, %w : f32[4, 8]
    %1 = add %0, %b : f32[4, 8]
    %s = add %1, %x : f32[4, 8]
    %y, %m, %r = layer_norm %s {eps=1e-05} : f32[4, 8], f32[4], f32[4]
  })",
              kPasses, R"(
    CHECK: %2 = cast %b {to="bf16"} : bf16[8]
    CHECK-NEXT: %3 = linear %_, %_, %2 {nt=false, out="bf16"} : bf16[4, 8]
    CHECK-NEXT: add_layer_norm %x, %3 {eps=1e-05} : f32[4, 8], f32[4, 8], f32[4], f32[4])");
  // What something else reads too stays as exact as it was.
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%0, %y) {
    %w = param "w" : f32[8, 8]
    %0 = matmul %x, %w : f32[4, 8]
    %s = add %x, %0 : f32[4, 8]
    %y, %m, %r = layer_norm %s {eps=1e-05} : f32[4, 8], f32[4], f32[4]
  })",
              kPasses, R"(
    CHECK: matmul %_, %_ {out="f32"} : f32[4, 8]
    CHECK-NEXT: add_layer_norm %x, %2 {eps=1e-05} : f32[4, 8], f32[4, 8], f32[4], f32[4])");
}

// The bias of one row is as large as what it is added to: it stays in f32, and so does the sum.
TEST(Precision, AResultStaysInTheTypeOfItsBias) {
  CheckPasses(R"(graph @g(%x: f32[1, 8]) -> (%y) {
    %w = param "w" : f32[8, 8]
    %b = param "b" : f32[8]
    %0 = matmul %x, %w : f32[1, 8]
    %1 = add %0, %b : f32[1, 8]
    %y = matmul %1, %w : f32[1, 8]
  })",
              "precision,fold_casts,fuse,fold_casts", R"(
    CHECK: linear %_, %_, %b {nt=false, out="f32"} : f32[1, 8]
    CHECK-NEXT: cast %_ {to="bf16"} : bf16[1, 8])");
}

TEST(Precision, GradientsThatANormReadsAreNarrow) {
  CheckPasses(R"(graph @g(%x: f32[4, 8], %d: f32[4, 6], %m: f32[4], %r: f32[4]) -> (%y) {
    %w = param "w" : f32[8, 6]
    %0 = matmul_nt %d, %w : f32[4, 8]
    %y = layer_norm_grad %0, %x, %m, %r : f32[4, 8]
  })",
              "precision,fold_casts,narrow_reads", R"(
    CHECK: matmul_nt %_, %_ {out="bf16"} : bf16[4, 8]
    CHECK-NEXT: layer_norm_grad %_, %x, %m, %r : f32[4, 8])");
  // One that travelled is there in its type already.
  CheckPasses(R"(graph @g(%x: f32[4, 8], %d: bf16[4, 8], %m: f32[4], %r: f32[4]) -> (%y) {
    %0 = cast %d {to="f32"} : f32[4, 8]
    %y = layer_norm_grad %0, %x, %m, %r : f32[4, 8]
  })",
              "narrow_reads", R"(
    CHECK-NOT: cast
    CHECK: layer_norm_grad %d, %x, %m, %r : f32[4, 8])");
}

// f32 beside f16 and bf16, as a model may have that casts by itself.
// As with an optimizer, which reads f32: moved in f32, as the product sums it up.
TEST(Precision, GradientsThatAreOutputsAreNotRounded) {
  for (const char* name : {"grad.w", "y"}) {
    CheckPasses(StrCat("graph @g(%x: f32[2, 4], %dy: f32[2, 4]) -> (", name, R"(: %2) {
    %0 = matmul_tn %x, %dy {batch=0} : f32[4, 4]
    %1 = reshape %0 {shape=[4, 2, 2]} : f32[4, 2, 2]
    %2 = transpose %1 {perm=[1, 0, 2]} : f32[2, 4, 2]
  })"),
                "precision,fold_casts",
                name == std::string("y") ? R"(
    CHECK: matmul_tn %_, %_ {batch=0} : bf16[4, 4]
    CHECK: transpose %_ {perm=[1, 0, 2]} : bf16[2, 4, 2]
    CHECK: cast)"
                                         : R"(
    CHECK: matmul_tn %_, %_ {batch=0, out="f32"} : f32[4, 4]
    CHECK: transpose %_ {perm=[1, 0, 2]} : f32[2, 4, 2]
    CHECK-NOT: cast
    CHECK: })");
  }
}

TEST(Precision, NoOpHasHalvesOfBothTypes) {
  constexpr const char* kGraph =
      R"(graph @g(%x: f32[4, 8], %d: f16[4, 8], %w: f32[8], %b: f32[8]) -> (%s, %z) {
    %0 = cast %d {to="f32"} : f32[4, 8]
    %s, %y, %m, %r = add_layer_norm %x, %0, %w, %b {eps=1e-05} : f32[4, 8], f32[4, 8], f32[4], f32[4]
    %z = cast %y {to="bf16"} : bf16[4, 8]
  })";
  CheckPasses(kGraph, "fold_casts,narrow_reads", R"(
    CHECK: cast %d {to="f32"}
    CHECK-NEXT: add_layer_norm %x, %_, %w, %b {eps=1e-05, out="bf16"})");
  CheckPasses(kGraph, "narrow_reads,fold_casts", R"(
    CHECK: add_layer_norm %x, %d, %w, %b {eps=1e-05}
    CHECK-NEXT: cast %_ {to="bf16"})");
}

TEST(Precision, OnlyProductsOfHalvesGiveThem) {
  CheckPasses(R"(graph @g(%x: f32[4, 8], %w: f32[8, 8]) -> (%y) {
    %0 = matmul %x, %w : f32[4, 8]
    %y = cast %0 {to="bf16"} : bf16[4, 8]
  })",
              "fold_casts", R"(
    CHECK: matmul %x, %w : f32[4, 8]
    CHECK-NEXT: cast %_ {to="bf16"})");
}

// As where a loss is computed in pieces.
TEST(Precision, NarrowValuesMayBeMovedBeforeTheyAreRead) {
  CheckPasses(
      R"(graph @g(%x: f32[4, 8], %a: bf16[2, 6], %b: bf16[2, 6], %m: f32[4], %r: f32[4]) -> (%y) {
    %w = param "w" : bf16[6, 8]
    %0 = matmul %a, %w {out="f32"} : f32[2, 8]
    %1 = matmul %b, %w {out="f32"} : f32[2, 8]
    %2 = concat %0, %1 {axis=0} : f32[4, 8]
    %y = layer_norm_grad %2, %x, %m, %r : f32[4, 8]
  })",
      "narrow_reads", R"(
    CHECK: matmul %a, %w {out="bf16"} : bf16[2, 8]
    CHECK-NEXT: matmul %b, %w {out="bf16"} : bf16[2, 8]
    CHECK-NEXT: concat %0, %1 {axis=0} : bf16[4, 8]
    CHECK-NEXT: layer_norm_grad %2, %x, %m, %r : f32[4, 8])");
}

// Not where something else reads it on the way, nor where what is moved is drawn, and scaled.
TEST(Precision, WhatIsMovedStaysWideWhereItIsNotAllThatIsDone) {
  constexpr std::string_view kBetween[] = {
      "%u = exp %0 : f32[2, 2, 8]\n%2 = slice %1 {limits=[4, 8], starts=[0, 0], steps=[1, 1]} : "
      "f32[4, 8]",
      "%2 = dropout %1, %s {ratio=0.5, seed=1, stream=0} : f32[4, 8]"};
  for (std::string_view between : kBetween) {
    const char* outputs = between.starts_with("%u") ? ", %u" : "";
    CheckPasses(
        StrCat(
            R"(graph @g(%x: f32[4, 8], %a: bf16[2, 2, 6], %m: f32[4], %r: f32[4], %s: i64[]) -> (%y)",
            outputs, R"() {
    %w = param "w" : bf16[6, 8]
    %0 = matmul %a, %w {out="f32"} : f32[2, 2, 8]
    %1 = reshape %0 {shape=[4, 8]} : f32[4, 8]
    )",
            between, R"(
    %y = layer_norm_grad %2, %x, %m, %r : f32[4, 8]
  })"),
        "narrow_reads", R"(
    CHECK: matmul %a, %w {out="f32"} : f32[2, 2, 8]
    CHECK: layer_norm_grad %2, %x, %m, %r : f32[4, 8])");
  }
}

TEST(Precision, LogitsThatOnlyTheirLossReadsAreNarrow) {
  CheckPasses(R"(graph @g(%x: bf16[4, 8], %d: f32[4], %l: i64[4]) -> (%loss, %g) {
    %w = param "w" : bf16[8, 16]
    %0 = matmul %x, %w {out="f32"} : f32[4, 16]
    %loss, %g = cross_entropy_with_grad %d, %0, %l {out="bf16"} : f32[4], bf16[4, 16]
  })",
              "narrow_reads", R"(
    CHECK: %0 = matmul %x, %w {out="bf16"} : bf16[4, 16]
    CHECK-NEXT: cross_entropy_with_grad %d, %0, %l {out="bf16"} : f32[4], bf16[4, 16])");
}

// As where the vocabulary is cut; what travels stays f32.
TEST(Precision, LogitsThatOnlyPiecesOfTheirLossReadAreNarrow) {
  CheckPasses(R"(graph @g(%x: bf16[4, 8], %d: f32[4], %l: i64[4]) -> (%e, %t, %g) {
    %w = param "w" : bf16[8, 16]
    %0 = matmul %x, %w {out="f32"} : f32[4, 16]
    %m = reduce_max %0 {axes=[1]} : f32[4]
    %e, %t = softmax_stats %0, %l, %m : f32[4], f32[4]
    %g = cross_entropy_grad %d, %0, %l, %e {out="bf16"} : bf16[4, 16]
  })",
              "narrow_reads", R"(
    CHECK: %0 = matmul %x, %w {out="bf16"} : bf16[4, 16]
    CHECK-NEXT: %m = reduce_max %0 {axes=[1], out="f32"} : f32[4]
    CHECK-NEXT: softmax_stats %0, %l, %m : f32[4], f32[4]
    CHECK-NEXT: cross_entropy_grad %d, %0, %l, %e {out="bf16"} : bf16[4, 16])");
}

TEST(Precision, SumsOfHalvesAreWide) {
  CheckPasses(R"(graph @g(%x: f32[4, 8]) -> (%y) {
    %w = param "w" : f32[8, 8]
    %0 = matmul %x, %w : f32[4, 8]
    %y = reduce_sum %0 {axes=[0]} : f32[8]
  })",
              "precision", R"(
    CHECK: matmul %_, %_ : bf16[4, 8]
    CHECK-NEXT: reduce_sum %_ {axes=[0], out="f32"} : f32[8])");
}

TEST(Precision, StatisticsAndMasksOfAttentionStayInF32) {
  CheckPasses(R"(graph @g(%q: f32[1, 2, 4, 8], %m: f32[4, 4]) -> (%o, %l) {
    %o, %l = attention %q, %q, %q, %m {layout="bhsd", scale=1.0} : f32[1, 2, 4, 8], f32[1, 2, 4]
  })",
              "precision", R"(
    CHECK: cast %q {to="bf16"} : bf16[1, 2, 4, 8]
    CHECK-NEXT: attention %_, %_, %_, %m {layout="bhsd", scale=1.0} : bf16[1, 2, 4, 8], f32[1, 2, 4]
    CHECK-NEXT: cast %_ {to="f32"} : f32[1, 2, 4, 8])");
}

// A mask that a product made, and others read small.
TEST(Precision, MasksOfAttentionAreWidened) {
  CheckPasses(R"(graph @g(%q: f32[1, 2, 4, 8], %x: f32[4, 4]) -> (%o, %l, %y) {
    %m = matmul %x, %x : f32[4, 4]
    %o, %l = attention %q, %q, %q, %m {layout="bhsd", scale=1.0} : f32[1, 2, 4, 8], f32[1, 2, 4]
    %y = matmul %m, %m : f32[4, 4]
  })",
              "precision", R"(
    CHECK: %m = matmul %_, %_ : bf16[4, 4]
    CHECK: %2 = cast %m {to="f32"} : f32[4, 4]
    CHECK-NEXT: attention %1, %1, %1, %2 {layout="bhsd", scale=1.0} : bf16[1, 2, 4, 8], f32[1, 2, 4])");
}

// The lowest f32 rounds to -inf in bf16, and a row of these to NaN.
TEST(Precision, MaskConstantsStayFinite) {
  CheckPasses(R"(graph @g(%x: f32[2, 2], %c: bool[2, 2]) -> (%y) {
    %0 = matmul %x, %x : f32[2, 2]
    %1 = constant {value=tensor<f32[]: -3.4028234663852886e+38>} : f32[]
    %y = where %c, %0, %1 : f32[2, 2]
  })",
              "precision", R"(
    CHECK: constant {value=tensor<bf16[]: -3.38
    CHECK: where %c, %_, %_ : bf16[2, 2])");
}

// Of a mask that is made when the plan runs it is not known whether it stays finite: scores that
// were capped take it in f32, where a bias would be rounded to their type.
TEST(Precision, MasksAreNotRoundedToTheTypeOfScores) {
  for (const char* op : {"add", "sub"}) {
    CheckPasses(StrCat(R"(graph @g(%x: f32[2, 4, 8], %m: f32[4, 4]) -> (%y, %z) {
    %w = param "w" : f32[4]
    %0 = matmul_nt %x, %x : f32[2, 4, 4]
    %1 = tanh %0 : f32[2, 4, 4]
    %2 = add %1, %w : f32[2, 4, 4]
    %3 = )",
                       op, R"( %1, %m : f32[2, 4, 4]
    %y = softmax %3 {axis=2} : f32[2, 4, 4]
    %4 = matmul_nt %1, %1 : f32[2, 4, 4]
    %z = matmul %4, %2 : f32[2, 4, 4]
  })"),
                "precision",
                StrCat(R"(
    CHECK: tanh %_ : bf16[2, 4, 4]
    CHECK-NEXT: cast %w {to="bf16"} : bf16[4]
    CHECK-NEXT: add %_, %_ : bf16[2, 4, 4]
    CHECK-NEXT: cast %_ {to="f32"} : f32[2, 4, 4]
    CHECK-NEXT: )",
                       op, R"( %_, %m : f32[2, 4, 4])"));
  }
}

TEST(Precision, RefusesWhatIsNotF32) {
  auto lower = [](const char* text, PrecisionOptions options) {
    return [text, options] {
      Graph graph = ParseAndVerify(text);
      LowerPrecision(graph, options);
    };
  };
  const char* wide = R"(graph @g(%x: f64[4, 8]) -> (%y) {
    %w = param "layer.w" : f64[8, 8]
    %y = matmul %x, %w : f64[4, 8]
  })";
  ExpectThrown(lower(wide, {.compute = "bf16", .reduce_in = ""}), "E1602", "layer.w is f64");
  const char* integer = R"(graph @g(%x: i64[4]) -> (%y) {
    %y = neg %x : i64[4]
  })";
  ExpectThrown(lower(integer, {.compute = "bf16", .reduce_in = ""}), "E1602", "no f32 values");
  ExpectThrown(lower(wide, {.compute = "int8", .reduce_in = ""}), "E6108", "int8");
  ExpectThrown(lower(wide, {.compute = "bf16", .reduce_in = "f16"}), "E6108", "f16");
}

Graph Compiled(const std::string& model, const char* spec, const char* mesh,
               PrecisionOptions precision) {
  Graph graph = BuildGpt(ParseBuiltin(model));
  PipelineOptions options;
  options.precision = precision;
  options.optimizer.kind = "adamw";
  options.verify_each = true;
  Spec s = SpecOf(spec);
  CompileGraph(graph, s, MeshFor(s, Mesh::Parse(mesh)), options);
  return graph;
}

bool IsHalf(const Value* v) {
  return v->type.dtype == DType::kBF16 || v->type.dtype == DType::kF16;
}

class WholeModels
    : public ::testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {};

TEST_P(WholeModels, HaveTheTypesOfThePolicy) {
  auto [model, mesh, compute] = GetParam();
  Graph graph = Compiled(model, std::string_view(mesh).starts_with("dp") ? "dp" : "megatron", mesh,
                         {.compute = compute, .reduce_in = ""});
  std::map<const Value*, int> casts;
  int half_products = 0;
  for (const auto& op : graph.ops()) {
    SCOPED_TRACE(StrCat(op->name(), " ", op->site));
    if (op->def->is_state || op->def->precision == Precision::kFull) {
      if (op->name() == "cast") {
        EXPECT_EQ(++casts[op->operands[0]], 1);
        const Op* from = op->operands[0]->producer;
        EXPECT_FALSE(from && from->name() == "cast" && IsFloat(from->in(0).dtype))
            << "cast of a cast";
      } else if (!op->def->communicates && op->def->typed_result < 0) {
        for (const Value* r : op->results) {
          // Ops that move data work on any type; nothing that computes in full is half.
          if (op->def->reference && op->name() != "constant" && op->name() != "zero_padding" &&
              op->name() != "local_slice") {
            EXPECT_FALSE(IsHalf(r) && r != AgainResult(*op));
          }
        }
      }
    }
    if (op->def->precision == Precision::kCompute) {
      EXPECT_TRUE(IsHalf(op->operands[0]));
      EXPECT_TRUE(op->operands.size() < 2 || IsHalf(op->operands[1]));
      ++half_products;
    }
    // Activations travel in the compute type.
    bool travels = op->def->communicates && op->phase != Phase::kOptimizer && op->in(0).rank() == 3;
    EXPECT_TRUE(!travels || op->site == "transformer.wte" || IsHalf(op->operands[0]));
  }
  EXPECT_GE(half_products, 2 * 3 * 4);
  for (const Output& o : graph.outputs) EXPECT_FALSE(IsHalf(o.value)) << o.name;
}

INSTANTIATE_TEST_SUITE_P(
    All, WholeModels,
    ::testing::Combine(
        ::testing::Values("builtin:gpt?layers=2,hidden=32,heads=4,vocab=97,seq=8,batch=4",
                          "builtin:gpt?layers=2,hidden=32,heads=4,kv_heads=2,vocab=96,seq=8,batch="
                          "4,activation=swiglu,"
                          "norm=rms_norm,positions=rope"),
        ::testing::Values("tp=1", "tp=2", "dp=2"), ::testing::Values("bf16", "f16")));

TEST(Precision, SumsOverRanksInF32WhenAsked) {
  const char* model = "builtin:gpt?layers=2,hidden=32,heads=4,vocab=96,seq=8,batch=4";
  for (bool wide : {false, true}) {
    Graph graph =
        Compiled(model, "megatron", "tp=2", {.compute = "bf16", .reduce_in = wide ? "f32" : ""});
    int half = 0, full = 0;
    for (const auto& op : graph.ops()) {
      if (op->name() != "all_reduce" || op->in(0).rank() != 3) continue;
      ++(IsHalf(op->operands[0]) ? half : full);
    }
    EXPECT_EQ(half + full, 4 * 2 + 2);
    // The embedding is looked up, and so summed, in f32.
    EXPECT_EQ(half, wide ? 0 : 4 * 2 + 1);
  }
}

}  // namespace
}  // namespace shardc::testing
