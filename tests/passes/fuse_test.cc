#include "passes/fuse.h"

#include <gtest/gtest.h>

#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

TEST(Fuse, ProductAndBiasAreLinear) {
  CheckPasses(R"(graph @g(%x: f32[2, 3, 4]) -> (%y, %z) {
    %w = param "w" : f32[4, 5]
    %v = param "v" : f32[6, 5]
    %b = param "b" : f32[5]
    %c = param "c" : f32[6]
    %0 = matmul %x, %w {site="fc"} : f32[2, 3, 5]
    %y = add %0, %b : f32[2, 3, 5]
    %1 = matmul_nt %y, %v : f32[2, 3, 6]
    %z = add %c, %1 : f32[2, 3, 6]
  })",
              "fuse", R"(
    CHECK: %0 = linear %x, %w, %b {nt=false, site="fc"} : f32[2, 3, 5]
    CHECK-NEXT: %1 = linear %0, %v, %c {nt=true} : f32[2, 3, 6]
    CHECK-NEXT: })");
}

TEST(Fuse, CutTypesStay) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[3, 4]) -> (%y) {
    %w = param "w" : f32[4, 6@tp]
    %b = param "b" : f32[6@tp]
    %0 = matmul %x, %w : f32[3, 6@tp]
    %y = add %0, %b : f32[3, 6@tp]
  })",
              "fuse", "CHECK: = linear %x, %w, %b {nt=false} : f32[3, 6@tp]");
}

// The product has another reader, the bias is no vector, or the weight is batched.
TEST(Fuse, KeepsProductsThatOthersRead) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %q: f32[2, 3, 4], %k: f32[2, 4, 5]) -> (%y, %z, %u, %t) {
    %w = param "w" : f32[4, 5]
    %b = param "b" : f32[5]
    %m = param "m" : f32[3, 5]
    %0 = matmul %x, %w : f32[3, 5]
    %y = add %0, %b : f32[3, 5]
    %z = neg %0 : f32[3, 5]
    %2 = matmul %q, %k : f32[2, 3, 5]
    %u = add %2, %b : f32[2, 3, 5]
    %3 = exp %x : f32[3, 4]
    %4 = matmul %3, %w : f32[3, 5]
    %t = add %4, %m : f32[3, 5]
  })",
              "fuse", "CHECK-NOT: linear");
}

TEST(Fuse, OpsOfOneStageAndOneMicrobatch) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %r: f32[3, 5]) -> (%1, %2, %4) {
    %w = param "w" : f32[4, 5]
    %b = param "b" : f32[5]
    %0 = matmul %x, %w {stage=0} : f32[3, 5]
    %1 = add %0, %b {stage=1} : f32[3, 5]
    %2 = add %1, %r {stage=1, microbatch=0} : f32[3, 5]
    %3, %m, %v = layer_norm %2 {eps=1e-05, stage=1, microbatch=1} : f32[3, 5], f32[3], f32[3]
    %4 = neg %3 : f32[3, 5]
  })",
              "fuse", R"(
    CHECK: matmul
    CHECK: add
    CHECK: add
    CHECK: layer_norm)");
}

TEST(Fuse, ResidualAndNorm) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %r: f32[3, 4]) -> (%y, %z) {
    %w = param "w" : f32[4]
    %b = param "b" : f32[4]
    %0 = add %x, %r : f32[3, 4]
    %1, %2, %3 = layer_norm %0, %w, %b {eps=1e-05, site="ln_2"} : f32[3, 4], f32[3], f32[3]
    %y = neg %1 : f32[3, 4]
    %z = add %0, %y : f32[3, 4]
  })",
              "fuse", R"(
    CHECK: %0, %1, %2, %3 = add_layer_norm %x, %r, %w, %b {eps=1e-05, site="ln_2"} : f32[3, 4], f32[3, 4], f32[3], f32[3]
    CHECK-NEXT: %y = neg %1
    CHECK-NEXT: %z = add %0, %y)");
}

TEST(Fuse, NotWhereTheSumIsReadBefore) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %r: f32[3, 4]) -> (%y, %z) {
    %0 = add %x, %r : f32[3, 4]
    %z = neg %0 : f32[3, 4]
    %y, %1, %2 = layer_norm %0 {eps=1e-05} : f32[3, 4], f32[3], f32[3]
  })",
              "fuse", "CHECK: add %x, %r\nCHECK: neg %0\nCHECK: layer_norm %0");
}

TEST(Fuse, NotWhereTheSumBroadcasts) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %r: f32[4]) -> (%y) {
    %0 = add %x, %r : f32[3, 4]
    %y, %1, %2 = layer_norm %0 {eps=1e-05} : f32[3, 4], f32[3], f32[3]
  })",
              "fuse", "CHECK: add %x, %r\nCHECK: layer_norm %0");
}

}  // namespace
}  // namespace shardc::testing
