#include "passes/zero.h"

#include <gtest/gtest.h>

#include "passes/apply_spec.h"
#include "passes/optimizer.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

Zero ZeroOver(AxisList axes, int stage = 2) {
  Zero zero;
  zero.stage = stage;
  zero.axes = axes;
  zero.why = "spec s:1:1: zero_stage";
  return zero;
}

void CheckCuts(std::string_view text, const AxisList& axes, std::string_view checks) {
  Graph graph = ParseAndVerify(text);
  Zero zero = ZeroOver(axes, 3);
  CutParams(graph, zero);
  CheckGraph(graph, checks);
}

// The first dim that divides; else the largest of which every rank gets something; never one of
// another axis where there is a free one.
TEST(CutParams, ChoosesADim) {
  CheckCuts(R"(mesh [dp=4, tp=2]
  graph @g() -> (%a, %b, %c, %d, %e, %f) {
    %a = param "a" : f32[8, 12]
    %b = param "b" : f32[10, 12]
    %c = param "c" : f32[7, 9]
    %d = param "d" : f32[8@tp, 12]
    %e = param "e" : f32[3, 3]
    %f = param "f" : f32[16@tp, 3]
  })",
            {0}, R"(
    CHECK: "a" : f32[8@dp, 12]
    CHECK: "b" : f32[10, 12@dp]
    CHECK: "c" : f32[7, 9@dp]
    CHECK: "d" : f32[8@tp, 12@dp]
    CHECK: "e" : f32[3, 3]
    CHECK: "f" : f32[16@tp, 3])");
}

// Not one that is merged with a dim of another axis before use, as heads and their elements are:
// what is cut both ways has no cut there.
TEST(CutParams, ADimThatViewsKeep) {
  CheckCuts(R"(mesh [dp=2, tp=2]
  graph @g() -> (%a, %b) {
    %0 = param "a" : f32[4@tp, 6, 24]
    %a = reshape %0 {shape=[24, 24]} : f32[24, 24]
    %1 = param "b" : f32[24, 4@tp, 6]
    %b = reshape %1 {shape=[24, 24]} : f32[24, 24]
  })",
            {0}, R"(
    CHECK: "a" : f32[4@tp, 6, 24@dp]
    CHECK: "b" : f32[24@dp, 4@tp, 6])");
}

// Behind an axis that is more major, in blocks that it left whole, the same dim will do.
TEST(CutParams, CutsADimFurther) {
  CheckCuts(R"(mesh [tp=2, dp=4]
  graph @g() -> (%a, %b, %c) {
    %a = param "a" : f32[16@tp, 3]
    %b = param "b" : f32[12@tp/3, 3]
    %c = param "c" : f32[20@tp%4, 3]
  })",
            {1}, R"(
    CHECK: "a" : f32[16@(tp,dp), 3]
    CHECK: "b" : f32[12@tp/3, 3]
    CHECK: "c" : f32[20@tp%4, 3])");
}

// Over several axes, or as many of them as fit; an axis that cuts the parameter already does not
// cut it again.
TEST(CutParams, SeveralAxes) {
  CheckCuts(R"(mesh [a=2, b=4]
  graph @g() -> (%u, %v, %w) {
    %u = param "u" : f32[16, 3]
    %v = param "v" : f32[6, 3]
    %w = param "w" : f32[16@a, 8]
  })",
            {0, 1}, R"(
    CHECK: "u" : f32[16@(a,b), 3]
    CHECK: "v" : f32[6@a, 3]
    CHECK: "w" : f32[16@(a,b), 8])");
}

TEST(CutParams, ShortVectorsAndIntegersStayWhole) {
  CheckCuts(R"(mesh [dp=2]
  graph @g() -> (%a, %b, %i) {
    %a = param "a" : f32[16384]
    %b = param "b" : f32[16385]
    %i = param "i" : i64[8, 8]
  })",
            {0}, R"(
    CHECK: "a" : f32[16384]
    CHECK: "b" : f32[16385@dp]
    CHECK: "i" : i64[8, 8])");
}

// Stages 1 and 2 keep what has no gradient as it is.
TEST(CutParams, WhatIsNotTrained) {
  for (int stage : {1, 2, 3}) {
    Graph graph = ParseAndVerify(R"(mesh [dp=2]
    graph @g(%dw: f32[4, 6]) -> (grad.w: %dw, %v) {
      %w = param "w" : f32[4, 6]
      %v = param "v" : f32[4, 6]
    })");
    Zero zero = ZeroOver({0}, stage);
    CutParams(graph, zero);
    EXPECT_EQ(zero.params.size(), stage == 3 ? 2u : 1u);
    CheckGraph(graph, StrCat("CHECK: \"w\" : f32[4@dp, 6]\nCHECK: \"v\" : f32[4",
                             stage == 3 ? "@dp" : "", ", 6]"));
  }
}

// y = x w, and its backward, in halves.
constexpr const char* kStep = R"(mesh [dp=2]
graph @g(%x: bf16[8@dp, 4], %dy: bf16[8@dp, 6]) -> (%dx, grad.w: %dw) {
  %w = param "w" {site="fc"} : f32[4, 6]
  %h = cast %w {to="bf16", site="fc"} : bf16[4, 6]
  %y = matmul %x, %h {site="fc"} : bf16[8, 6]
  %z = mul %y, %dy : bf16[8, 6]
  %dx = matmul_nt %z, %h {phase="backward", site="fc"} : bf16[8, 4]
  %d = matmul_tn %x, %z {batch=0, phase="backward", site="fc"} : bf16[4, 6]
  %dw = cast %d {to="f32", phase="backward", site="fc"} : f32[4, 6]
})";

void CheckStep(int stage, std::string_view checks) {
  Graph graph = ParseAndVerify(kStep);
  Zero zero = ZeroOver({0}, stage);
  CutParams(graph, zero);
  AddOptimizer(graph, {.kind = "adamw"});
  GatherParams(graph, zero);
  RunPasses(graph, "propagate,insert_reshards,optimize_reshards,lower_reshards");
  CheckGraph(graph, checks, true);
}

// The copy that is used is gathered; the optimizer reads and writes parts. What is left of a
// gradient's sum is reduced to as soon as it is there, in its own type.
TEST(Zero, Stages1And2GatherOnce) {
  for (int stage : {1, 2}) {
    CheckStep(stage, R"(
      CHECK: %w = param "w" {site="fc"} : f32[4@dp, 6]
      CHECK-NEXT: %h = cast %w {to="bf16", site="fc"} : bf16[4@dp, 6]
      CHECK-NEXT: %0 = all_gather %h {axes=["dp"], dim=0, for="cast", why=["spec s:1:1: zero_stage cuts dim 0 of parameter w over dp", "through cast at fc", "spec s:1:1: zero_stage gathers parameter w where it is used"], site="fc"} : bf16[4, 6]
      CHECK-NEXT: matmul %x, %0 {site="fc"} : bf16[8@dp, 6]
      CHECK-NOT: all_gather
      CHECK: %dx = matmul_nt %z, %0
      CHECK-NEXT: %d = matmul_tn %x, %z {batch=0, phase="backward", site="fc"} : bf16[4, 6] partial(dp)
      CHECK-NEXT: %1 = reduce_scatter %d {axes=["dp"], dim=0,
      CHECK-NEXT: %dw = cast %1 {to="f32", phase="backward", site="fc"} : f32[4@dp, 6]
      CHECK-NEXT: %2 = sum_squares %dw {phase="optimizer", site="optimizer"} : f32[] partial(dp)
      CHECK-NEXT: all_reduce %2
      CHECK: state "w.adamw.m" {dtype="f32", init=0.0, shape=[4, 6], phase="optimizer", site="fc"} : f32[4@dp, 6]
      CHECK: = adamw %w, %dw, %_, %_, %_, %_, %_ {
      CHECK-NOT: all_gather
      CHECK-NOT: reduce)");
  }
}

TEST(Zero, Stage3GathersForTheForwardAndForTheBackward) {
  CheckStep(3, R"(
      CHECK: %h = cast %w {to="bf16", site="fc"} : bf16[4@dp, 6]
      CHECK-NEXT: %0 = all_gather %h {
      CHECK-NEXT: %y = matmul %x, %0
      CHECK-NEXT: mul
      CHECK-NEXT: %1 = all_gather %h {
      CHECK-NEXT: %dx = matmul_nt %z, %1
      CHECK-NEXT: %d = matmul_tn
      CHECK-NEXT: reduce_scatter %d
      CHECK-NOT: all_gather)");
}

// A copy is not made of what is gathered later, where the parameter itself is read.
TEST(Zero, Stage3MakesACopyAgainOnlyOfWhatIsThere) {
  for (bool copy_first : {false, true}) {
    const char *copied = "%y = matmul %x, %h : bf16[8, 6]\n",
               *own = "%z = matmul %u, %w : f32[8, 6]\n";
    Graph graph = ParseAndVerify(StrCat(R"(mesh [dp=2]
    graph @g(%x: bf16[8@dp, 4], %u: f32[8@dp, 4]) -> (%y, %z) {
      %w = param "w" : f32[4, 6]
      %h = cast %w {to="bf16"} : bf16[4, 6]
)",
                                        copy_first ? copied : own, copy_first ? own : copied, "}"));
    Zero zero = ZeroOver({0}, 3);
    CutParams(graph, zero);
    GatherParams(graph, zero);
    CheckGraph(graph, copy_first ? R"(
      CHECK: %0 = sharding_constraint %h {
      CHECK-NEXT: %y = matmul %x, %0
      CHECK-NEXT: %1 = sharding_constraint %w {
      CHECK-NEXT: %z = matmul %u, %1)"
                                 : R"(
      CHECK: %0 = sharding_constraint %w {
      CHECK-NEXT: %1 = cast %0 {to="bf16"} : bf16[4, 6]
      CHECK-NEXT: %z = matmul %u, %0
      CHECK-NEXT: %y = matmul %x, %1)");
  }
}

// Also where sums of several are added.
TEST(Zero, TheGradientOfEachMicrobatchIsCut) {
  Graph graph = ParseAndVerify(R"(mesh [dp=2]
  graph @g(%x: f32[8@dp, 4], %dy: f32[8@dp, 6]) -> (grad.w: %dw) {
    %w = param "w" : f32[4, 6]
    %0 = matmul_tn %x, %dy {batch=0, phase="backward", microbatch=0} : f32[4, 6]
    %1 = matmul_tn %x, %dy {batch=0, phase="backward", microbatch=1} : f32[4, 6]
    %2 = add %0, %1 {phase="backward"} : f32[4, 6]
    %3 = matmul_tn %x, %dy {batch=0, phase="backward", microbatch=2} : f32[4, 6]
    %4 = matmul_tn %x, %dy {batch=0, phase="backward", microbatch=3} : f32[4, 6]
    %5 = add %3, %4 {phase="backward"} : f32[4, 6]
    %dw = add %2, %5 {phase="backward"} : f32[4, 6]
  })");
  Zero zero = ZeroOver({0}, 2);
  CutParams(graph, zero);
  CutGradients(graph, zero);
  CheckGraph(graph, R"(
    CHECK: sharding_constraint %0 {
    CHECK: sharding_constraint %_ {
    CHECK: add
    CHECK: sharding_constraint %_ {
    CHECK: sharding_constraint %_ {
    CHECK: %dw = add)");
}

// --- over which axes

constexpr const char* kInput = "input { match: '*' shard_spec { dims: 0 axes: 'dp' } }\n";

Zero Resolve(const std::string& mesh, const std::string& spec_text, bool optimizer = true,
             std::vector<std::string>* notes = nullptr) {
  Graph graph =
      ParseAndVerify("mesh [" + mesh + "]\n" + R"(graph @g(%x: f32[8, 4], %s: f32[]) -> (%y) {
    %y = mul %x, %s : f32[8, 4]
  })");
  Spec spec = ParseSpec("mesh { axis { name: 'dp' } axis { name: 'tp' } }\n" + spec_text, "s");
  ApplySpec(graph, spec);
  Zero zero = ResolveZero(graph, spec, optimizer);
  if (notes) *notes = graph.notes;
  return zero;
}

TEST(ResolveZero, TheAxesOfTheBatch) {
  Zero zero = Resolve("tp=2, dp=2", StrCat(kInput, "zero_stage: 2"));
  EXPECT_EQ(zero.stage, 2);
  EXPECT_EQ(zero.axes, AxisList{1});
  EXPECT_EQ(zero.why, "spec s:3:1: zero_stage 2");
  EXPECT_EQ(Resolve("dp=2", kInput).stage, 0);
  EXPECT_EQ(Resolve("dp=2", "zero_stage: 0 zero_axes: 'dp'").stage, 0);
  EXPECT_EQ(Resolve("dp=2", "zero_axes: 'dp'").stage, 0);
}

TEST(ResolveZero, OrThoseThatTheSpecNames) {
  EXPECT_EQ(Resolve("dp=2, tp=2", "zero_stage: 3 zero_axes: 'tp' zero_axes: 'dp'", false).axes,
            (AxisList{0, 1}));
  EXPECT_EQ(
      Resolve("dp=2, tp=1", StrCat(kInput, "zero_stage: 1 zero_axes: 'tp' zero_axes: 'dp'")).axes,
      AxisList{0});
}

// SplitAxes has made two axes of one.
TEST(ResolveZero, PartsOfANamedAxis) {
  EXPECT_EQ(Resolve("dp=2, tp.0=2, tp.1=2, tpx=2", "zero_stage: 3 zero_axes: 'tp'", false).axes,
            (AxisList{1, 2}));
}

TEST(ResolveZero, OneRankHasNothingToShare) {
  for (const char* mesh : {"dp=1, tp=2", "tp=2"}) {
    std::vector<std::string> notes;
    EXPECT_EQ(Resolve(mesh, StrCat(kInput, "zero_stage: 3"), true, &notes).stage, 0);
    EXPECT_EQ(notes, (std::vector<std::string>{
                         "zero_stage 3: the axes that it would cut over have one rank each"}));
  }
}

TEST(ResolveZero, Refuses) {
  auto refused = [](const std::string& spec, bool optimizer, std::string_view id,
                    std::string_view what) {
    ExpectThrown([&] { Resolve("dp=2, tp=2", spec, optimizer); }, id, what);
  };
  refused("zero_stage: 2 zero_axes: 'dpp'", true, "E2104", "did you mean 'dp'");
  refused("zero_stage: 2 zero_axes: 'dpp'", true, "E2104", "spec s:2:15");
  refused("zero_stage: 2 zero_axes: 'qqq'", true, "E2104", "axes: dp, tp");
  refused("zero_axes: 'dpp'", true, "E2104", "did you mean 'dp'");  // whoever adds a stage
  refused("zero_stage: 2", true, "E2108", "spec s:2:1");
  refused("zero_stage: 3", false, "E2108", "no axis cuts the first dim of an input");
  refused(StrCat(kInput, "zero_stage: 1"), false, "E2109", "spec s:3:1");
  refused(StrCat(kInput, "zero_stage: 2"), false, "E2109", "--optimizer adamw");
}

}  // namespace
}  // namespace shardc::testing
