#include "passes/chunk.h"

#include <gtest/gtest.h>

#include <limits>

#include "passes/emit.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// The logits are never there as a whole, nor is their gradient; the weight's is a running sum, and
// the loss and %dh are put together.
TEST(Chunk, LossOfAProduct) {
  CheckPasses(R"(graph @g(%h: f32[4, 8], %t: i64[4], %g: f32[4]) -> (%loss, %dh, %dw) {
    %w = param "w" : f32[64, 8]
    %x = matmul_nt %h, %w {site="head"} : f32[4, 64]
    %l, %lse = cross_entropy %x, %t {site="loss"} : f32[4], f32[4]
    %loss = reduce_sum %l {axes=[0], keepdims=false} : f32[]
    %dx = cross_entropy_grad %g, %x, %t, %lse {phase="backward"} : f32[4, 64]
    %dh = matmul %dx, %w {phase="backward"} : f32[4, 8]
    %dw = matmul_tn %dx, %h {batch=0, phase="backward"} : f32[64, 8]
  })",
              "chunk", R"(
    CHECK: %0 = slice %h {limits=[2, 8], starts=[0, 0], steps=[1, 1], site="head"} : f32[2, 8]
    CHECK-NEXT: %1 = matmul_nt %0, %w {site="head"} : f32[2, 64]
    CHECK-NEXT: %2 = slice %t
    CHECK-NEXT: %3, %4 = cross_entropy %1, %2 {origin=[0], site="loss"} : f32[2], f32[2]
    CHECK-NEXT: %5 = slice %g
    CHECK-NEXT: %6 = cross_entropy_grad %5, %1, %2, %4
    CHECK-NEXT: %7 = matmul %6, %w {phase="backward"} : f32[2, 8]
    CHECK-NEXT: %8 = matmul_tn %6, %0 {batch=0, phase="backward"} : f32[64, 8]
    CHECK-NEXT: %9 = slice %h {limits=[4, 8], starts=[2, 0], steps=[1, 1], site="head"} : f32[2, 8]
    CHECK: cross_entropy %_, %_ {origin=[2], site="loss"} : f32[2], f32[2]
    CHECK: %17 = matmul_tn %_, %9
    CHECK-NEXT: %dw = add %8, %17 {phase="backward"} : f32[64, 8]
    CHECK-NEXT: %l = concat %3, %12 {axis=0, site="loss"} : f32[4]
    CHECK-NEXT: %dh = concat %7, %16 {axis=0, phase="backward"} : f32[4, 8]
    CHECK-NEXT: %loss = reduce_sum %l
    CHECK-NEXT: })");
}

// A sum that is only added to another one goes on from there.
TEST(Chunk, GoesOnWithASum) {
  CheckPasses(R"(graph @g(%h: f32[4, 8], %t: i64[4], %g: f32[4], %s: f32[64, 8]) -> (%loss, %dw) {
    %w = param "w" : f32[64, 8]
    %before = exp %s : f32[64, 8]
    %x = matmul_nt %h, %w : f32[4, 64]
    %l, %lse = cross_entropy %x, %t : f32[4], f32[4]
    %loss = reduce_sum %l {axes=[0], keepdims=false} : f32[]
    %dx = cross_entropy_grad %g, %x, %t, %lse {phase="backward"} : f32[4, 64]
    %own = matmul_tn %dx, %h {batch=0, phase="backward"} : f32[64, 8]
    %dw = add %own, %before {phase="backward"} : f32[64, 8]
  })",
              "chunk", R"(
    CHECK: %before = exp %s
    CHECK: %7 = matmul_tn %_, %_ {batch=0, phase="backward"} : f32[64, 8]
    CHECK-NEXT: %8 = add %before, %7 {phase="backward"} : f32[64, 8]
    CHECK: %16 = matmul_tn
    CHECK-NEXT: %dw = add %8, %16 {phase="backward"} : f32[64, 8]
    CHECK-NOT: add)");
}

// Equal peaks: each microbatch counts for itself.
TEST(Chunk, InEachMicrobatch) {
  CheckPasses(R"(graph @g(%a: f32[4, 8], %b: f32[4, 8]) -> (%y, %z) {
    %w = param "w" : f32[8, 64]
    %0 = matmul %a, %w {microbatch=0} : f32[4, 64]
    %1 = exp %0 {microbatch=0} : f32[4, 64]
    %y = matmul_nt %1, %w {microbatch=0} : f32[4, 8]
    %2 = matmul %b, %w {microbatch=1} : f32[4, 64]
    %3 = exp %2 {microbatch=1} : f32[4, 64]
    %z = matmul_nt %3, %w {microbatch=1} : f32[4, 8]
  })",
              "chunk", R"(
    CHECK: = slice %a {limits=[2, 8], starts=[0, 0], steps=[1, 1], microbatch=0} : f32[2, 8]
    CHECK: %y = concat
    CHECK: = slice %b {limits=[2, 8], starts=[0, 0], steps=[1, 1], microbatch=1} : f32[2, 8]
    CHECK: %z = concat)");
}

// Scores and weights of an attention that nobody recognised, forward only: along the batch, for the
// rows of k are needed whole.
TEST(Chunk, ScoresThroughAReshape) {
  CheckPasses(R"(graph @g(%q: f32[4, 16, 2], %k: f32[4, 16, 2], %v: f32[4, 16, 2]) -> (%y) {
    %s = matmul_nt %q, %k : f32[4, 16, 16]
    %r = reshape %s {shape=[64, 16]} : f32[64, 16]
    %p = softmax %r {axis=1} : f32[64, 16]
    %b = reshape %p {shape=[4, 16, 16]} : f32[4, 16, 16]
    %y = matmul %b, %v : f32[4, 16, 2]
  })",
              "chunk", R"(
    CHECK: = matmul_nt %_, %_ : f32[2, 16, 16]
    CHECK: = reshape %_ {shape=[32, 16]} : f32[32, 16]
    CHECK: = softmax %_ {axis=1} : f32[32, 16]
    CHECK: = reshape %_ {shape=[2, 16, 16]} : f32[2, 16, 16]
    CHECK: = matmul_nt %_, %_ : f32[2, 16, 16]
    CHECK: %y = concat)");
}

// What the gradient is made of waits for the loss of all: the logits have to be kept.
TEST(Chunk, NotWhereTheWholeComesBetween) {
  CheckPasses(R"(graph @g(%h: f32[4, 8], %t: i64[4], %g: f32[4]) -> (%loss, %dh) {
    %w = param "w" : f32[64, 8]
    %x = matmul_nt %h, %w : f32[4, 64]
    %l, %lse = cross_entropy %x, %t : f32[4], f32[4]
    %loss = reduce_sum %l {axes=[0], keepdims=false} : f32[]
    %s = mul %g, %loss : f32[4]
    %dx = cross_entropy_grad %s, %x, %t, %lse : f32[4, 64]
    %dh = matmul %dx, %w : f32[4, 8]
  })",
              "chunk", "CHECK-NOT: slice");
}

TEST(Chunk, NotAcrossCollectivesNorWhatIsAnOutput) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%h: f32[4, 8], %t: i64[4]) -> (%sum, %e) {
    %w = param "w" : f32[64@tp, 8]
    %x = matmul_nt %h, %w : f32[4, 64@tp]
    %m = reduce_max %x {axes=[1], keepdims=false} : f32[4] partial_max(tp)
    %a = all_reduce %m {axes=["tp"], reduce="max"} : f32[4]
    %sum, %e = softmax_stats %x, %t, %a : f32[4] partial(tp), f32[4] partial(tp)
  })",
              "chunk", "CHECK-NOT: slice");
  CheckPasses(R"(graph @g(%h: f32[4, 8], %t: i64[4]) -> (%x, %l) {
    %w = param "w" : f32[64, 8]
    %x = matmul_nt %h, %w : f32[4, 64]
    %l, %lse = cross_entropy %x, %t : f32[4], f32[4]
  })",
              "chunk", "CHECK-NOT: slice");
}

// A batch that is cut over ranks is left alone: each rank's rows are cut along the next dim.
TEST(Chunk, CutDimsStay) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%h: f32[4@dp, 6, 8], %t: i64[4@dp, 6]) -> (%l) {
    %w = param "w" : f32[64, 8]
    %x = matmul_nt %h, %w : f32[4@dp, 6, 64]
    %l, %lse = cross_entropy %x, %t : f32[4@dp, 6], f32[4@dp, 6]
  })",
              "chunk", R"(
    CHECK: = matmul_nt %_, %w : f32[4@dp, 3, 64]
    CHECK: = cross_entropy %_, %_ {origin=[0, 0]}
    CHECK: = cross_entropy %_, %_ {origin=[0, 3]})");
}

// A running sum in bf16 would be rounded once a piece.
TEST(Chunk, SumsOfHalvesAreMadeInF32) {
  CheckPasses(R"(graph @g(%a: bf16[64, 2], %g: bf16[64, 4]) -> (%w) {
    %u = param "u" : bf16[2, 32]
    %0 = matmul %a, %u : bf16[64, 32]
    %w = matmul_tn %0, %g {batch=0} : bf16[32, 4]
  })",
              "chunk", R"(
    CHECK: %3 = matmul_tn %_, %_ {batch=0, out="f32"} : f32[32, 4]
    CHECK: %_ = add %3, %_ : f32[32, 4]
    CHECK-NEXT: %w = cast %_ {to="bf16"} : bf16[32, 4])");
}

// Also where they are added to others, or to more than they are.
TEST(Chunk, SumsThatDoNotGoOn) {
  constexpr std::string_view kText =
      R"(graph @g(%a: bf16[64, 2], %g: bf16[64, 4], %s: bf16[32, 4]) -> (%y) {
    %u = param "u" : bf16[2, 32]
    %before = exp %s : bf16[32, 4]
    %0 = matmul %a, %u : bf16[64, 32]
    %w = matmul_tn %0, %g {batch=0} : bf16[32, 4]
    %y = add %w, %before : bf16[32, 4]
  })";
  CheckPasses(kText, "chunk", R"(
    CHECK: matmul_tn %_, %_ {batch=0, out="f32"} : f32[32, 4]
    CHECK: %w = cast %_ {to="bf16"} : bf16[32, 4]
    CHECK-NEXT: %y = add %w, %before : bf16[32, 4])");
  CheckPasses(R"(graph @g(%a: f32[64, 2], %g: f32[64, 4], %s: f32[2, 32, 4]) -> (%y) {
    %u = param "u" : f32[2, 32]
    %before = exp %s : f32[2, 32, 4]
    %0 = matmul %a, %u : f32[64, 32]
    %w = matmul_tn %0, %g {batch=0} : f32[32, 4]
    %y = add %w, %before : f32[2, 32, 4]
  })",
              "chunk", R"(
    CHECK: matmul_tn %_, %_ {batch=0} : f32[32, 4]
    CHECK: %w = add %_, %_ : f32[32, 4]
    CHECK-NEXT: %y = add %w, %before : f32[2, 32, 4])");
  // What it is added to is made of the same pieces.
  CheckPasses(R"(graph @g(%a: f32[64, 2], %g: f32[64, 4], %h: f32[64, 4]) -> (%y) {
    %u = param "u" : f32[2, 32]
    %0 = matmul %a, %u : f32[64, 32]
    %w = matmul_tn %0, %g {batch=0} : f32[32, 4]
    %v = matmul_tn %0, %h {batch=0} : f32[32, 4]
    %1 = exp %v : f32[32, 4]
    %y = add %w, %1 : f32[32, 4]
  })",
              "chunk", R"(
    CHECK: %w = add %_, %_ : f32[32, 4]
    CHECK: %v = add %_, %_ : f32[32, 4]
    CHECK-NEXT: exp %v
    CHECK-NEXT: %y = add %w, %_ : f32[32, 4])");
}

// By itself only what is large, and only as far as products stay near their speed.
TEST(Chunk, SmallValuesStay) {
  constexpr char kText[] = R"(graph @g(%h: f32[512, 8], %t: i64[512]) -> (%l) {
    %w = param "w" : f32[64, 8]
    %x = matmul_nt %h, %w : f32[512, 64]
    %l, %lse = cross_entropy %x, %t : f32[512], f32[512]
  })";
  Graph small = ParseAndVerify(kText);
  Chunk(small);
  CheckGraph(small, "CHECK-NOT: slice");
  Graph few = ParseAndVerify(kText);
  Chunk(few, {.least_bytes = 1});
  EXPECT_LE(EmitProgram(few).arena_bytes, EmitProgram(small).arena_bytes);
}

TEST(Chunk, ThePeakFalls) {
  Graph graph = ParseAndVerify(R"(graph @g(%h: f32[4096, 64], %t: i64[4096]) -> (%l) {
    %w = param "w" : f32[4096, 64]
    %x = matmul_nt %h, %w : f32[4096, 4096]
    %l, %lse = cross_entropy %x, %t : f32[4096], f32[4096]
  })");
  int64_t before = EmitProgram(graph).arena_bytes;
  Chunk(graph);
  EXPECT_LT(EmitProgram(graph).arena_bytes, before / 4);
}

// Logits that are a tenth of what lives beside them.
TEST(Chunk, ASmallPartOfThePeak) {
  Graph graph = ParseAndVerify(
      R"(graph @g(%h: f32[4096, 512], %t: i64[4096], %b: f32[40960, 4096]) -> (%l, %k) {
    %w = param "w" : f32[4096, 512]
    %k = exp %b : f32[40960, 4096]
    %x = matmul_nt %h, %w : f32[4096, 4096]
    %l, %lse = cross_entropy %x, %t : f32[4096], f32[4096]
  })");
  Chunk(graph);
  int products = 0;
  for (const auto& op : graph.ops()) products += op->name() == "matmul_nt" ? 1 : 0;
  EXPECT_EQ(products, 2);
}

// Products of a parallel block: the second adds to a sum that stands after it, in memory that the
// first wrote. What other passes left in the values' ids is not read.
TEST(Chunk, SumsInPassingStandAfterTheirProducts) {
  Graph graph = ParseAndVerify(R"(graph @g(%x: f32[8, 16], %y: f32[8, 16]) -> (%z) {
    %w = param "w" : f32[16, 8]
    %u = param "u" : f32[16, 8]
    %v = param "v" : f32[16, 8]
    %a = exp %x : f32[8, 16]
    %0 = matmul %a, %w : f32[8, 8]
    %1 = matmul %y, %u : f32[8, 8]
    %2 = matmul %y, %v : f32[8, 8]
    %3 = add %0, %1 : f32[8, 8]
    %4 = add %3, %2 : f32[8, 8]
    %z = exp %4 : f32[8, 8]
  })");
  for (const auto& op : graph.ops()) {
    for (Value* r : op->results) r->id = std::numeric_limits<int>::max();
  }
  Chunk(graph, {.least_bytes = 1});
  CheckGraph(graph, "CHECK: %z = exp %4 : f32[8, 8]");
}

}  // namespace
}  // namespace shardc::testing
