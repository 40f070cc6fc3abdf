#include "passes/insert_reshards.h"

#include <gtest/gtest.h>

#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr const char* kPasses = "propagate,insert_reshards";

TEST(InsertReshards, RowParallelProductIsReducedOnce) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 6]) -> (%y, %z) {
    %w = param "w" : f32[6, 12@tp]
    %v = param "v" : f32[12@tp, 6]
    %a = matmul %x, %w : f32[8, 12]
    %p = matmul %a, %v {site="proj"} : f32[8, 6]
    %y = exp %p : f32[8, 6]
    %z = tanh %p : f32[8, 6]
  })",
              kPasses, R"(
    CHECK: %a = matmul %x, %w : f32[8, 12@tp]
    CHECK-NEXT: %p = matmul %a, %v {site="proj"} : f32[8, 6] partial(tp)
    CHECK-NEXT: %0 = reshard %p {for="matmul", why=["through matmul", "matmul at proj sums over a dim that is cut: partial", "exp needs it as [8, 6]"], site="proj"} : f32[8, 6]
    CHECK-NEXT: %y = exp %0
    CHECK-NEXT: %z = tanh %0
    CHECK-NEXT: })");
}

// What is asked over tp is done over tp; the batch stays cut over dp.
TEST(InsertReshards, AConstraintSpeaksOfItsAxes) {
  CheckPasses(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[8@dp, 4, 12]) -> (%y, %z) {
    %v = param "v" : f32[12@tp, 6]
    %w = param "w" : f32[12, 6@tp]
    %p = matmul %x, %v {site="proj"} : f32[8, 4, 6]
    %0 = sharding_constraint %p {axes=["tp"], why=["spec s:1:1"]} : f32[8, 4@tp, 6]
    %y = exp %0 : f32[8, 4, 6]
    %q = matmul %x, %w : f32[8, 4, 6]
    %1 = sharding_constraint %q {axes=["tp"], why=["spec s:2:1"]} : f32[8, 4, 6]
    %z = exp %1 : f32[8, 4, 6]
  })",
              kPasses, R"(
    CHECK: %p = matmul %_, %v {site="proj"} : f32[8@dp, 4, 6] partial(tp)
    CHECK-NEXT: %_ = reshard %p {for="matmul", why=["matmul at proj sums over a dim that is cut: partial", "spec s:1:1"], site="proj"} : f32[8@dp, 4@tp, 6]
    CHECK-NEXT: %y = exp %_ : f32[8@dp, 4@tp, 6]
    CHECK-NEXT: %q = matmul %x, %w : f32[8@dp, 4, 6@tp]
    CHECK-NEXT: %_ = reshard %q {for="matmul", why=["through matmul", "spec s:2:1"]} : f32[8@dp, 4, 6]
    CHECK-NEXT: %z = exp %_ : f32[8@dp, 4, 6]
    CHECK-NOT: sharding_constraint)");
}

// A dim that b cuts cannot be sliced over a, which comes first: it would be gathered. That is a
// weight here, and the result is moved instead.
TEST(InsertReshards, NoSliceInFrontOfAnotherAxis) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[6, 4]) -> (%y) {
    %w = param "w" : f32[4, 12@b]
    %0 = matmul %x, %w : f32[6, 12]
    %1 = sharding_constraint %0 {axes=["a"], why=["spec s:1:1"]} : f32[6, 12@a]
    %y = neg %1 : f32[6, 12]
  })",
              kPasses, R"(
    CHECK: %0 = matmul %x, %w : f32[6, 12@b]
    CHECK-NEXT: %1 = reshard %0 {
    CHECK-NEXT: %y = neg %1 : f32[6, 12@(a,b)])");
}

// What a constraint asks for over one axis goes before how another axis happens to cut the operand.
TEST(InsertReshards, ConstraintsAreMetWhateverTheOperandIs) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[6, 24@a/3]) -> (%y) {
    %w = param "w" : f32[24@a, 8]
    %0 = sharding_constraint %x {axes=["b"], why=["spec s:1:1"]} : f32[6, 24@b]
    %y = matmul %0, %w : f32[6, 8]
  })",
              kPasses, R"(
    CHECK: = reshard %x {for="input", why=["through sharding_constraint", "spec s:1:1"]} : f32[6, 24@(a,b)]
    CHECK: matmul)");
}

// A sum that shall be cut over b behind a: as b alone cuts, each rank would have other rows.
TEST(InsertReshards, AMinorAxisDoesNotCutBeforeItsMajor) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[8, 4@a] partial(b)) -> (%y) {
    %y = neg %x : f32[8@(a,b), 4]
  })",
              "insert_reshards", R"(
    CHECK: %y = neg %x : f32[8, 4@a] partial(b)
    CHECK-NEXT: = reshard %y)");
}

// Nor where it could slice: then what a leaves to sum would be summed whole, and b's part gathered.
TEST(InsertReshards, AMinorAxisDoesNotReduceBeforeItsMajor) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%x: f32[8, 4] partial(a,b), %u: f32[8, 4] partial(a)) -> (%y) {
    %y = add %x, %u : f32[8@(a,b), 4]
  })",
              "insert_reshards", R"(
    CHECK: = reshard %x
    CHECK-NEXT: %y = add %_, %u : f32[8, 4] partial(a)
    CHECK-NEXT: = reshard %y)");
}

// What the axes cost together counts, whichever of them has more ranks.
TEST(InsertReshards, HalvesAreScatteredBeforeTheyAreWidened) {
  for (const char* mesh : {"mesh [a=2, b=4]", "mesh [a=4, b=2]"}) {
    SCOPED_TRACE(mesh);
    CheckPasses(StrCat(mesh, R"(
  graph @g(%x: bf16[16, 4] partial(a,b)) -> (%y) {
    %y = cast %x {to="f32"} : f32[16@(a,b), 4]
  })"),
                "insert_reshards", R"(
    CHECK: : bf16[16@(a,b), 4]
    CHECK-NEXT: %y = cast %_ {to="f32"} : f32[16@(a,b), 4]
    CHECK-NOT: reshard)");
  }
}

// As gradients are where parameters are cut over one of the axes that the batch is cut over.
TEST(InsertReshards, HalvesAreReducedBeforeTheyAreWidened) {
  for (const char* mesh : {"mesh [a=2, b=4]", "mesh [a=4, b=2]"}) {
    SCOPED_TRACE(mesh);
    CheckPasses(StrCat(mesh, R"(
  graph @g(%x: bf16[16, 4] partial(a,b)) -> (%y) {
    %y = cast %x {to="f32"} : f32[16@b, 4]
  })"),
                "insert_reshards", R"(
    CHECK: : bf16[16@b, 4]
    CHECK-NEXT: %y = cast %_ {to="f32"} : f32[16@b, 4]
    CHECK-NOT: reshard)");
  }
}

// Partial sums pass linear ops; the smallest value of the chain is reduced.
TEST(InsertReshards, ReducesAtTheCheapestPointOfALinearChain) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 12@tp]) -> (%y) {
    %v = param "v" : f32[12@tp, 6]
    %0 = matmul %x, %v : f32[8, 6]
    %1 = reshape %0 {shape=[2, 4, 6]} : f32[2, 4, 6]
    %2 = reduce_sum %1 {axes=[1], keepdims=false} : f32[2, 6]
    %y = exp %2 : f32[2, 6]
  })",
              kPasses, R"(
    CHECK: matmul %x, %v : f32[8, 6] partial(tp)
    CHECK-NEXT: reshape %0 {shape=[2, 4, 6]} : f32[2, 4, 6] partial(tp)
    CHECK-NEXT: reduce_sum %1 {axes=[1], keepdims=false} : f32[2, 6] partial(tp)
    CHECK-NEXT: reshard %2 {for="reduce_sum",
    CHECK-NEXT: exp %3 : f32[2, 6])");
}

// Not after a linear op that makes it larger.
TEST(InsertReshards, ReducesBeforeABroadcast) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[1, 12@tp]) -> (%y) {
    %v = param "v" : f32[12@tp, 6]
    %0 = matmul %x, %v : f32[1, 6]
    %1 = broadcast_to %0 {shape=[8, 6]} : f32[8, 6]
    %y = exp %1 : f32[8, 6]
  })",
              kPasses, R"(
    CHECK: matmul %x, %v : f32[1, 6] partial(tp)
    CHECK-NEXT: %1 = reshard %0 {
    CHECK-NEXT: broadcast_to %1 {shape=[8, 6]} : f32[8, 6])");
}

// The bias is added once, after the sum.
TEST(InsertReshards, AddOfPartialAndWholeReducesFirst) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 12@tp], %r: f32[8, 6]) -> (%y) {
    %v = param "v" : f32[12@tp, 6]
    %b = param "b" : f32[6]
    %0 = matmul %x, %v : f32[8, 6]
    %1 = add %0, %b : f32[8, 6]
    %y = add %r, %1 : f32[8, 6]
  })",
              kPasses, R"(
    CHECK: matmul %x, %v : f32[8, 6] partial(tp)
    CHECK-NEXT: %1 = reshard %0 {
    CHECK-NEXT: %2 = add %1, %b : f32[8, 6]
    CHECK-NEXT: %y = add %r, %2 : f32[8, 6]
    CHECK-NEXT: })");
}

TEST(InsertReshards, AddOfTwoPartialsIsPartial) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 12@tp], %z: f32[8, 12@tp]) -> (%y) {
    %v = param "v" : f32[12@tp, 6]
    %0 = matmul %x, %v : f32[8, 6]
    %1 = matmul %z, %v : f32[8, 6]
    %2 = add %0, %1 : f32[8, 6]
    %y = exp %2 : f32[8, 6]
  })",
              kPasses, R"(
    CHECK: %2 = add %0, %1 : f32[8, 6] partial(tp)
    CHECK-NEXT: %3 = reshard %2 {
    CHECK-NEXT: %y = exp %3)");
}

// Only the maximum and the sum of each row travel.
TEST(InsertReshards, SoftmaxOverACutAxisExchangesStatistics) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 4]) -> (%s) {
    %w = param "w" : f32[4, 12@tp]
    %0 = matmul %x, %w : f32[8, 12]
    %s = softmax %0 {axis=1} : f32[8, 12]
  })",
              kPasses, R"(
    CHECK-NOT: softmax
    CHECK: %1 = reduce_max %0 {axes=[1], keepdims=true} : f32[8, 1] partial_max(tp)
    CHECK-NEXT: %2 = reshard %1 {for="reduce_max"
    CHECK-NOT: reshard %0
    CHECK: %5 = reduce_sum %4 {axes=[1], keepdims=true} : f32[8, 1] partial(tp)
    CHECK-NEXT: %6 = reshard %5
    CHECK-NEXT: %7 = div %4, %6 : f32[8, 12@tp]
    CHECK-NOT: reshard)");
}

TEST(InsertReshards, LayerNormOverACutDimExchangesStatistics) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 64@tp]) -> (%y) {
    %w = param "w" : f32[64@tp]
    %b = param "b" : f32[64@tp]
    %y, %m, %r = layer_norm %x, %w, %b {eps=1e-05} : f32[8, 64], f32[8], f32[8]
  })",
              kPasses, R"(
    CHECK-NOT: layer_norm
    CHECK-NOT: reshard %x
    CHECK: reduce_sum %x {axes=[1], keepdims=true} : f32[8, 1] partial(tp)
    CHECK: : f32[8, 1]
    CHECK-NOT: : f32[8, 64]
    CHECK: add %14, %b : f32[8, 64@tp])");
}

TEST(InsertReshards, CrossEntropyNeverGathersTheLogits) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 4], %labels: i64[8]) -> (%l) {
    %w = param "w" : f32[4, 12@tp]
    %0 = matmul %x, %w : f32[8, 12]
    %l, %lse = cross_entropy %0, %labels {ignore_index=-100} : f32[8], f32[8]
  })",
              kPasses, R"(
    CHECK-NOT: reshard %0
    CHECK: %3, %4 = softmax_stats %0, %labels, %2 {ignore_index=-100} : f32[8] partial(tp), f32[8] partial(tp)
    CHECK-NEXT: reshard %3
    CHECK-NEXT: reshard %4
    CHECK-NEXT: cross_entropy_combine %2,
    CHECK-NOT: reshard)");
}

// A vocabulary-cut embedding: masked local lookup.
TEST(InsertReshards, EmbeddingOfACutVocabularyIsPartial) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%ids: i64[2, 3]) -> (%y) {
    %wte = param "wte" : f32[9@tp, 4]
    %0 = embedding %wte, %ids {site="wte"} : f32[2, 3, 4]
    %y = exp %0 : f32[2, 3, 4]
  })",
              kPasses, R"(
    CHECK: embedding %wte, %ids {site="wte"} : f32[2, 3, 4] partial(tp)
    CHECK-NEXT: reshard %0 {for="embedding")");
}

// Gradients over dp: each rank sums its batch, then all sum.
TEST(InsertReshards, GradientsAreReducedToTheShardingOfTheirState) {
  CheckPasses(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[8@dp, 6], %dy: f32[8@dp, 12]) -> (grad.w: %dw) {
    %w = param "w" : f32[6, 12@tp]
    %dw = matmul_tn %x, %dy {batch=0, phase="backward"} : f32[6, 12]
  })",
              kPasses, R"(
    CHECK: (grad.w: %1)
    CHECK: %0 = reshard %dy {for="matmul_tn"
    CHECK-NEXT: %dw = matmul_tn %x, %0 {batch=0, phase="backward"} : f32[6, 12@tp] partial(dp)
    CHECK-NEXT: %1 = reshard %dw {
    CHECK-NEXT: })");
}

// x and dy lie ready for a product whose sum is reduced to parts, though to move them would be
// fewer bytes.
TEST(InsertReshards, AWishForAResultDoesNotMoveWhatLiesReady) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%x: f32[2@dp, 64], %dy: f32[2@dp, 64]) -> (grad.w: %dw) {
    %w = param "w" : f32[64@dp, 64]
    %dw = matmul_tn %x, %dy {batch=0, phase="backward"} : f32[64, 64]
  })",
              kPasses, R"(
    CHECK: %dw = matmul_tn %x, %dy {batch=0, phase="backward"} : f32[64, 64] partial(dp)
    CHECK-NEXT: reshard %dw {
    CHECK-NEXT: })");
}

// What is reduced to parts is reduced as soon as it is made, and used in parts; what a later phase
// uses is reduced as soon as it is made.
TEST(InsertReshards, SumsBeginEarly) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%x: f32[8@dp, 6], %dy: f32[8@dp, 6]) -> (grad.w: %dw, grad.b: %db, %n, %m, %y) {
    %w = param "w" : f32[6@dp, 6]
    %b = param "b" : f32[6]
    %db = reduce_sum %dy {axes=[0], keepdims=false, phase="backward"} : f32[6]
    %dw = matmul_tn %x, %dy {batch=0, phase="backward"} : f32[6, 6]
    %y = exp %dy {phase="backward"} : f32[8, 6]
    %n = sum_squares %dw {phase="optimizer"} : f32[]
    %m = sum_squares %db {phase="optimizer"} : f32[]
  })",
              kPasses, R"(
    CHECK: %db = reduce_sum %dy {axes=[0], keepdims=false, phase="backward"} : f32[6] partial(dp)
    CHECK-NEXT: %0 = reshard %db {
    CHECK-NEXT: %dw = matmul_tn
    CHECK-NEXT: %1 = reshard %dw {
    CHECK-NEXT: %y = exp
    CHECK-NEXT: %n = sum_squares %1 {phase="optimizer"} : f32[] partial(dp)
    CHECK: sum_squares %0 {phase="optimizer"} : f32[])");
}

// An update keeps the state's sharding; the weight itself is not moved.
TEST(InsertReshards, UpdatesAreCutLikeTheirState) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 8]) -> (%y) {
    %s = state "s" {dtype="f32", init=0.0, shape=[6, 8]} : f32[6@tp, 8]
    %0 = cumsum %x {axis=0, exclusive=false, reverse=false} : f32[6, 8]
    %y = exp %0 : f32[6, 8]
    update "s" %0
  })",
              kPasses, R"(
    CHECK: %0 = cumsum %x {axis=0, exclusive=false, reverse=false} : f32[6, 8]
    CHECK-NEXT: %1 = reshard %0 {
    CHECK: update "s" %1)");
}

// The gradient is made as its parameter is before anything reads it, and not the update's results
// behind it.
TEST(InsertReshards, UpdatesReadTheGradientThatIsAnOutput) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%dy: f32[6, 8@tp]) -> (grad.w: %dw, %n) {
    %w = param "w" : f32[8]
    %m = state "m" {dtype="f32", init=0.0, shape=[8]} : f32[8]
    %dw = reduce_sum %dy {axes=[0], keepdims=false} : f32[8]
    %n = sum_squares %dw : f32[]
    %one = constant {value=tensor<f32[]: 1>} : f32[]
    %0, %1 = sgd %w, %dw, %one, %one, %m, %one {momentum=0.9} : f32[8], f32[8]
    update "w" %0
    update "m" %1
  })",
              kPasses, R"(
    CHECK: %dw = reduce_sum %dy {axes=[0], keepdims=false} : f32[8@tp]
    CHECK-NEXT: reshard %dw {
    CHECK-NOT: reshard
    CHECK: update "m" %2)");
}

// Also where the op that makes it is rewritten, as the gradient of a norm over a cut dim.
TEST(InsertReshards, UpdatesReadTheGradientOfANormOverACutDim) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%dy: f32[6, 8@tp], %x: f32[6, 8@tp], %rstd: f32[6]) -> (grad.w: %dw, %dx) {
    %w = param "w" : f32[8]
    %m = state "m" {dtype="f32", init=0.0, shape=[8]} : f32[8]
    %dx, %dw = rms_norm_grad %dy, %x, %rstd, %w : f32[6, 8@tp], f32[8]
    %one = constant {value=tensor<f32[]: 1>} : f32[]
    %0, %1 = sgd %w, %dw, %one, %one, %m, %one {momentum=0.9} : f32[8], f32[8]
    update "w" %0
    update "m" %1
  })",
              kPasses, R"(
    CHECK-NOT: update
    CHECK: = sgd
    CHECK-NEXT: update "w"
    CHECK-NEXT: update "m")");
}

// The gradient of a product, cut along its columns where both factors' gradients would rather have
// its rows cut: to move it costs more than to gather x, but it serves both.
TEST(InsertReshards, MovesWhatSeveralRead) {
  const std::string other =
      "    %0 = matmul_nt %d, %w : f32[4, 64, 16]\n    %dx = add %0, %x : f32[4, 64, 16]\n";
  const std::string text = R"(mesh [cp=2]
  graph @g(%x: f32[4, 64@cp, 16], %d: f32[4, 64, 48@cp]) -> (%dwOTHERS) {
    %w = param "w" : f32[16, 48]
    %dw = matmul_tn %x, %d {batch=0} : f32[16, 48]
BODY  })";
  auto with = [&](std::string others, std::string body) {
    std::string t = text;
    t.replace(t.find("OTHERS"), 6, others);
    t.replace(t.find("BODY"), 4, body);
    return t;
  };
  CheckPasses(with(", %dx", other), kPasses, R"(
    CHECK: reshard %d {
    CHECK-NEXT: %dw = matmul_tn %x, %_ {batch=0} : f32[16, 48] partial(cp)
    CHECK: = matmul_nt %_, %w : f32[4, 64@cp, 16]
    CHECK: %dx = add)");
  CheckPasses(with("", ""), kPasses, R"(
    CHECK: reshard %x {
    CHECK-NEXT: %dw = matmul_tn %_, %d {batch=0} : f32[16, 48@cp])");
}

TEST(InsertReshards, OutputsAreNeverPartial) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 12@tp]) -> (%y) {
    %y = reduce_sum %x {axes=[1], keepdims=false} : f32[8]
  })",
              kPasses, R"(
    CHECK: -> (y: %0)
    CHECK: reduce_sum %x {axes=[1], keepdims=false} : f32[8] partial(tp)
    CHECK-NEXT: %0 = reshard %y {for="reduce_sum", why=["reduce_sum sums over a dim that is cut: partial", "an output of the graph is [8]"]} : f32[8])");
}

}  // namespace
}  // namespace shardc::testing
