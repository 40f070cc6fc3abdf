#include "passes/differentiate.h"

#include <gtest/gtest.h>

#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

TEST(Differentiate, AProductOfAWeight) {
  CheckPasses(R"(graph @g(%x: f32[4, 6]) -> (loss: %1) {
    %w = param "w" : f32[6, 8]
    %0 = matmul %x, %w {site="fc"} : f32[4, 8]
    %1 = sum_squares %0 : f32[]
  })",
              "differentiate", R"(
    CHECK: graph @g(%x: f32[4, 6]) -> (loss: %1, grad.w: %_)
    CHECK: %1 = sum_squares %0
    CHECK: %_ = matmul_tn %x, %_ {batch=0, phase="backward", site="fc"} : f32[6, 8])");
}

// x is an input: no matmul_nt for its gradient; frozen's users get none either.
TEST(Differentiate, ComputesOnlyWhatIsNeeded) {
  CheckPasses(R"(graph @g(%x: f32[4, 6], %i: i64[4]) -> (loss: %3, %y) {
    %w = param "w" : f32[6, 8]
    %n = param "n" : i64[4]
    %0 = exp %x : f32[4, 6]
    %1 = matmul %0, %w : f32[4, 8]
    %y = tanh %1 : f32[4, 8]
    %2 = add %n, %i : i64[4]
    %3 = reduce_sum %1 {axes=[0, 1], keepdims=false} : f32[]
  })",
              "differentiate", R"(
    CHECK: -> (loss: %_, %y, grad.w: %_)
    CHECK-NOT: matmul_nt
    CHECK-NOT: tanh_grad
    CHECK: matmul_tn
    CHECK-NOT: matmul_nt
    CHECK-NOT: exp)");
}

// Of halves in f32, and none of what is not trained.
TEST(Differentiate, OutputsAreOfWhatIsTrained) {
  CheckPasses(R"(graph @g(%x: bf16[4, 6]) -> (loss: %3) {
    %w = param "w" : bf16[6, 8]
    %v = param "v" {trained=false} : bf16[8, 2]
    %0 = matmul %x, %w : bf16[4, 8]
    %1 = matmul %0, %v : bf16[4, 2]
    %2 = cast %1 {to="f32"} : f32[4, 2]
    %3 = sum_squares %2 : f32[]
  })",
              "differentiate", R"(
    CHECK: graph @g(%x: bf16[4, 6]) -> (loss: %3, grad.w: %11) {
    CHECK: %10 = matmul_tn %x, %_ {batch=0, phase="backward"} : bf16[6, 8]
    CHECK-NEXT: %11 = cast %10 {to="f32", phase="backward"} : f32[6, 8])");
}

TEST(Differentiate, GradientsBelongWhereTheirOpDoes) {
  CheckPasses(R"(graph @g(%x: f32[4, 6]) -> (loss: %2) {
    %w = param "w" {stage=0} : f32[6, 8]
    %0 = matmul %x, %w {site="fc", stage=0, microbatch=1} : f32[4, 8]
    %1 = sum_squares %0 {stage=1, microbatch=1} : f32[]
    %2 = neg %1 : f32[]
  })",
              "differentiate", R"(
    CHECK: neg %_ {phase="backward"}
    CHECK: mul %_, %_ {phase="backward", stage=1, microbatch=1}
    CHECK: matmul_tn %x, %_ {batch=0, phase="backward", site="fc", stage=0, microbatch=1})");
}

// As microbatches sum what is a half in the whole batch.
TEST(Differentiate, SumsOfHalvesInAnotherType) {
  CheckPasses(R"(graph @g(%x: f16[4, 6], %r: bool[4]) -> (loss: %6) {
    %w = param "w" : f16[6, 8]
    %v = param "v" : f16[4, 8]
    %0 = matmul %x, %w {out="f32"} : f32[4, 8]
    %1 = matmul_rows %x, %w, %r {out="f32"} : f32[4, 8]
    %2 = matmul_tn %x, %v {out="f32"} : f32[6, 8]
    %3 = reduce_sum %v {axes=[0], out="f32"} : f32[8]
    %4 = add %0, %1 : f32[4, 8]
    %5 = add %2, %3 : f32[6, 8]
    %7 = reduce_sum %4 {axes=[0, 1]} : f32[]
    %8 = sum_squares %5 : f32[]
    %6 = add %7, %8 : f32[]
  })",
              "differentiate", R"(
    CHECK: %_ = cast %_ {to="f16", phase="backward"} : f16[8]
    CHECK: matmul %x, %_ {phase="backward"} : f16[4, 8]
    CHECK: matmul_rows_tn %x, %_, %r {phase="backward"} : f16[6, 8]
    CHECK: matmul_tn %x, %_ {batch=0, phase="backward"} : f16[6, 8])");
}

TEST(Differentiate, GradientsOfSeveralUsesAreSummed) {
  CheckPasses(R"(graph @g() -> (loss: %3) {
    %w = param "w" : f32[4]
    %0 = exp %w : f32[4]
    %1 = mul %w, %0 : f32[4]
    %2 = add %1, %w : f32[4]
    %3 = reduce_sum %2 {axes=[0], keepdims=false} : f32[]
  })",
              "differentiate", R"(
    CHECK: grad.w: %11)
    CHECK: %6 = broadcast_to
    CHECK-NEXT: %7 = mul %6, %0
    CHECK-NEXT: %8 = mul %6, %w
    CHECK-NEXT: %9 = add %6, %7
    CHECK-NEXT: %10 = mul %8, %0
    CHECK-NEXT: %11 = add %9, %10
    CHECK-NEXT: })");
}

// lm_head and wte are one parameter, one gradient.
TEST(Differentiate, TiedWeights) {
  CheckPasses(R"(graph @g(%ids: i64[2, 3]) -> (loss: %2) {
    %wte = param "wte" : f32[7, 4]
    %0 = embedding %wte, %ids : f32[2, 3, 4]
    %1 = matmul_nt %0, %wte : f32[2, 3, 7]
    %2 = sum_squares %1 : f32[]
  })",
              "differentiate", R"(
    CHECK: -> (loss: %2, grad.wte: %10)
    CHECK: %8 = matmul_tn %_, %0 {batch=0
    CHECK-NEXT: %9 = embedding_grad %_, %ids {rows=7
    CHECK-NEXT: %10 = add %8, %9)");
}

TEST(Differentiate, BroadcastDimsAreSummed) {
  CheckPasses(R"(graph @g(%x: f32[4, 6]) -> (loss: %1) {
    %b = param "b" : f32[6]
    %0 = add %x, %b : f32[4, 6]
    %1 = sum_squares %0 : f32[]
  })",
              "differentiate", R"(
    CHECK: %_ = reduce_sum %_ {axes=[0], keepdims=false, phase="backward"} : f32[6])");
}

TEST(Differentiate, WhatTheLossDoesNotDependOnHasZeros) {
  CheckPasses(R"(graph @g(%x: f32[4]) -> (loss: %0) {
    %w = param "unused" : f32[2, 3]
    %0 = sum_squares %x : f32[]
  })",
              "differentiate", R"(
    CHECK: -> (loss: %0, grad.unused: %2)
    CHECK: %1 = constant {value=tensor<f32[]: 0>
    CHECK-NEXT: %2 = broadcast_to %1 {shape=[2, 3], phase="backward"} : f32[2, 3])");
}

// PyTorch's optimizers pass them over: weight decay, too, would change them.
TEST(Differentiate, NotesWhatTheLossDoesNotDependOn) {
  Graph graph = ParseAndVerify(R"(graph @g(%x: f32[4]) -> (loss: %4) {
    %w = param "w" : f32[4]
    %a = param "a" : f32[4]
    %b = param "b" : f32[4]
    %0 = add %a, %b : f32[4]
    %1 = floor %0 : f32[4]
    %2 = mul %x, %w : f32[4]
    %3 = add %1, %2 : f32[4]
    %4 = sum_squares %3 : f32[]
  })");
  AddGradients(graph, graph.FindOutput("loss"));
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_EQ(graph.notes[0],
            "the loss does not depend on 2 parameters, 'a' the first: an optimizer leaves them as "
            "they were");
  EXPECT_TRUE(graph.FindState("b")->attrs.Has("decay"));
  EXPECT_FALSE(graph.FindState("w")->attrs.Has("decay"));
}

TEST(Differentiate, RefusesOpsWithoutGradient) {
  Graph graph = ParseAndVerify(R"(graph @g(%i: i64[2, 1]) -> (loss: %1) {
    %w = param "w" : f32[2, 1]
    %0 = gather_grad %w, %i {axis=0, size=4, site="h.0.pick"} : f32[4]
    %1 = sum_squares %0 : f32[]
  })");
  Diagnostic d = Thrown([&] { AddGradients(graph, graph.FindOutput("loss")); });
  EXPECT_EQ(d.id(), "E1104");
  EXPECT_EQ(d.code(), ExitCode::kBadModel);
  EXPECT_EQ(d.where(), "op 'gather_grad' at h.0.pick");
  EXPECT_NE(d.message().find("has no gradient: "), std::string::npos);
  EXPECT_FALSE(d.message().ends_with(": ")) << "the reason";
}

// A step function passes nothing on, which is no error.
TEST(Differentiate, GradientsThatAreZeroEnd) {
  CheckPasses(R"(graph @g(%x: f32[4]) -> (loss: %1) {
    %w = param "w" : f32[4]
    %0 = floor %w : f32[4]
    %1 = sum_squares %0 : f32[]
  })",
              "differentiate", "CHECK: %_ = broadcast_to %_ {shape=[4]");
}

TEST(Differentiate, RefusesANameThatTheModelHasGiven) {
  ExpectThrown(
      [] {
        Graph graph = ParseAndVerify(R"(graph @g(%x: f32[4]) -> (loss: %0, grad.w: %x) {
          %w = param "w" : f32[4]
          %0 = sum_squares %w : f32[]
        })");
        RunPasses(graph, "differentiate");
      },
      "E1603", "leave it out with --drop grad.w");
}

TEST(Differentiate, NeedsALoss) {
  ExpectThrown(
      [] {
        Graph graph = ParseAndVerify("graph @g(%x: f32[4]) -> (%x) {\n}");
        RunPasses(graph, "differentiate");
      },
      "E1601", "the graph has no output \"loss\"");
}

// Of any scalar, with respect to any values.
TEST(Differentiate, ByInputsAndResults) {
  Graph graph = ParseAndVerify(R"(graph @g(%x: f32[4]) -> (%y, %z) {
    %y = neg %x : f32[4]
    %z = sum_squares %y : f32[]
  })");
  std::vector<Value*> values = {graph.FindInput("x"), graph.FindOutput("y")};
  std::vector<Value*> grads = Differentiate(graph, graph.FindOutput("z"), values);
  ASSERT_EQ(grads.size(), 2u);
  graph.outputs = {{"dx", grads[0]}, {"dy", grads[1]}};
  CheckGraph(graph, R"(
    CHECK: %y = neg %x
    CHECK: %_ = mul
    CHECK: %_ = neg %_ {phase="backward"} : f32[4]
    CHECK-NEXT: })");
}

}  // namespace
}  // namespace shardc::testing
