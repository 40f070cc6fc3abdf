#include "passes/make_again.h"

#include <gtest/gtest.h>

#include "frontend/gpt_config.h"
#include "ir/op_def.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "tests/exec/harness.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// The weight's gradient waits for the norm's, which makes %n again.
TEST(MakeAgain, TheResultOfANorm) {
  CheckPasses(R"(graph @g(%x: f32[8, 4]) -> (%loss) {
    %u = param "u" : f32[4, 16]
    %v = param "v" : f32[16, 4]
    %w = param "w" : f32[4]
    %b = param "b" : f32[4]
    %e = exp %x : f32[8, 4]
    %n, %mean, %rstd = layer_norm %e, %w, %b {eps=1e-05} : f32[8, 4], f32[8], f32[8]
    %a = matmul %n, %u {site="up"} : f32[8, 16]
    %h = gelu %a {approximate="tanh", site="act"} : f32[8, 16]
    %y = matmul %h, %v : f32[8, 4]
    %q = mul %y, %y : f32[8, 4]
    %loss = reduce_sum %q {axes=[0, 1], keepdims=false} : f32[]
  })",
              "differentiate,make_again", R"(
    CHECK: %n, %mean, %rstd = layer_norm %e, %w, %b
    CHECK: %7 = gelu_grad %_, %a
    CHECK-NEXT: %8 = matmul_nt %7, %u
    CHECK-NEXT: %9, %10, %11, %12 = layer_norm_grad %8, %e, %mean, %rstd, %w, %b {bias=true, y="f32", phase="backward"} : f32[8, 4], f32[4], f32[4], f32[8, 4]
    CHECK-NEXT: %13 = matmul_tn %12, %7
    CHECK-NEXT: })");
}

// The readers of %x end in the gradient of %y's norm, which a reader before it waits for already.
TEST(MakeAgain, WhatMakesItsValueAgainIsNotMoved) {
  CheckPasses(R"(graph @g(%a: f32[8, 4], %b: f32[8, 4], %c: f32[8, 64]) -> (%loss) {
    %w = param "w" : f32[4]
    %v = param "v" : f32[4]
    %u = param "u" : f32[4, 4]
    %k = param "k" : f32[64]
    %d = exp %a : f32[8, 4]
    %e = exp %b : f32[8, 4]
    %x, %rx = rms_norm %d, %w {eps=1e-05} : f32[8, 4], f32[8]
    %y, %ry = rms_norm %e, %v {eps=1e-05} : f32[8, 4], f32[8]
    %h = matmul %y, %u : f32[8, 4]
    %s = mul %x, %h : f32[8, 4]
    %q = reduce_sum %s {axes=[0, 1], keepdims=false} : f32[]
    %f = mul %c, %k : f32[8, 64]
    %g = exp %f : f32[8, 64]
    %m = mul %g, %g : f32[8, 64]
    %p = reduce_sum %m {axes=[0, 1], keepdims=false} : f32[]
    %loss = add %q, %p : f32[]
  })",
              "differentiate,make_again", R"(
    CHECK: %10 = mul %8, %x
    CHECK: %12, %13, %14 = rms_norm_grad %11, %e, %ry, %v {y="f32", phase="backward"}
    CHECK-NEXT: %15 = matmul_tn %14, %10
    CHECK-NEXT: %16, %17 = rms_norm_grad %9, %d, %rx, %w {phase="backward"} : f32[8, 4], f32[4])");
}

// In the backward of a GPT of four layers: norms that their gradients make again, and copies.
std::pair<int, int> NormsOfBackward(const std::string& spec, const std::string& mesh,
                                    const std::string& recompute, int microbatches = 1) {
  Graph graph =
      BuildGpt(ParseBuiltin("builtin:gpt?layers=4,hidden=64,heads=4,vocab=96,seq=16,batch=64"));
  PipelineOptions options;
  options.recompute = recompute;
  options.precision.compute = "bf16";
  options.verify_each = true;
  Spec s = SpecOf(spec);
  s.microbatches.count = microbatches;
  CompileGraph(graph, s, MeshFor(s, Mesh::Parse(mesh)), options);
  int by_gradients = 0, copies = 0;
  for (const auto& op : graph.ops()) {
    if (op->phase != Phase::kBackward) continue;
    by_gradients += AgainResult(*op) ? 1 : 0;
    copies += op->name().ends_with("_norm") ? 1 : 0;
  }
  return {by_gradients, copies};
}

// All but perhaps the last, behind which the logits' gradient would have to wait; each microbatch
// its own.
TEST(MakeAgain, TheNormsOfAGpt) {
  for (const auto& [mesh, microbatches] : {std::pair{"dp=1", 1}, {"dp=2", 1}, {"dp=1", 2}}) {
    auto [by_gradients, copies] = NormsOfBackward("dp", mesh, "none", microbatches);
    EXPECT_GE(by_gradients, 8 * microbatches) << mesh;
    EXPECT_EQ(copies, 0) << mesh;
  }
}
// None of these is left for --recompute to copy, unless it copies whole layers.
TEST(MakeAgain, BeforeRecompute) {
  EXPECT_LE(NormsOfBackward("dp", "dp=1", "selective").second, 1);
  EXPECT_EQ(NormsOfBackward("dp", "dp=1", "full").first, 0);
}
// The gradients of weights are computed while what the norms' gradients need travels.
TEST(MakeAgain, NotInTheWayOfOverlap) {
  EXPECT_EQ(NormsOfBackward("megatron", "tp=2", "none").first, 0);
  EXPECT_EQ(NormsOfBackward("megatron_sp", "tp=2", "none").first, 0);
}

// What is read is a cast of it, seen as a matrix; of the view the backward has its own. A sum that
// reads a reader's result goes behind with it.
constexpr char kViewed[] = R"(graph @g(%x: f32[2, 4, 4], %t: bf16[8, 64]) -> (%s, %dx, %dw) {
  %w = param "w" : f32[4]
  %e = exp %x : f32[2, 4, 4]
  %n, %rstd = rms_norm %e, %w {eps=1e-05} : f32[2, 4, 4], f32[2, 4]
  %c = cast %n {to="bf16"} : bf16[2, 4, 4]
  %m = reshape %c {shape=[8, 4]} : bf16[8, 4]
  %p = matmul_tn %m, %t {batch=0, out="f32"} : f32[4, 64]
  %h = exp %p : f32[4, 64]
  %s = reduce_sum %h {axes=[0, 1], keepdims=false} : f32[]
  %d = sin %x {phase="backward"} : f32[2, 4, 4]
  %z = cast %d {to="bf16", phase="backward"} : bf16[2, 4, 4]
  %r = reshape %z {shape=[8, 4], phase="backward"} : bf16[8, 4]
  %g = matmul_tn %m, %r {batch=0, out="f32", phase="backward"} : f32[4, 4]
  %sum = add %g, %g {phase="backward"} : f32[4, 4]
  %dx, %dw = rms_norm_grad %d, %e, %rstd, %w {phase="backward"} : f32[2, 4, 4], f32[4]
  %more = mul %sum, %sum {phase="backward"} : f32[4, 4]
  %out = param "out" : f32[4, 4]
  update "out" %more {phase="backward"}
})";

TEST(MakeAgain, CastAndSeenInAnotherShape) {
  CheckPasses(kViewed, "make_again", R"(
    CHECK: %z = cast %d
    CHECK-NEXT: %r = reshape %z
    CHECK-NEXT: %dx, %dw, %0 = rms_norm_grad %d, %e, %rstd, %w {y="bf16", phase="backward"} : f32[2, 4, 4], f32[4], bf16[2, 4, 4]
    CHECK-NEXT: %1 = reshape %0 {shape=[8, 4], phase="backward"} : bf16[8, 4]
    CHECK-NEXT: %g = matmul_tn %1, %r
    CHECK-NEXT: %sum = add %g, %g
    CHECK-NEXT: %more = mul %sum, %sum)");
}

void ExpectUnchanged(std::string text) {
  Graph graph = ParseGraph(text, "test");
  const std::string before = PrintGraph(graph);
  MakeAgain(graph);
  EXPECT_EQ(PrintGraph(graph), before);
}
std::string With(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(MakeAgain, NotWhatMustLiveAnyway) {
  ExpectUnchanged(With(kViewed, "(%s, %dx, %dw)", "(%s, %dx, %dw, %m)"));
  ExpectUnchanged(With(kViewed, "(%s, %dx, %dw)", "(%s, %dx, %dw, %n)"));
  // In two types.
  ExpectUnchanged(
      With(With(kViewed, "%dx, %dw)", "%dx, %dw, %q)"), "%more = mul %sum, %sum {",
           "%q = exp %n {phase=\"backward\"} : f32[2, 4, 4]\n  %more = mul %sum, %sum {"));
}

// Kernels give a norm's result in its own type, and that of f32 in halves.
TEST(MakeAgain, NotInTypesThatKernelsDoNotGive) {
  std::string text = kViewed;
  for (size_t at; (at = text.find("bf16")) != std::string::npos;) text.replace(at, 4, "f64");
  for (size_t at; (at = text.find(", out=\"f32\"")) != std::string::npos;) text.erase(at, 11);
  for (const char* v : {"%p = ", "%h = ", "%s = ", "%g = ", "%sum = ", "%more = ", "%out = "}) {
    const size_t type = text.find(": f32", text.find(v));
    text.replace(type, 5, ": f64");
  }
  ExpectUnchanged(text);
}

// Which runs for no microbatch, whatever it says.
TEST(MakeAgain, NotInTheOptimizersPhase) {
  std::string text = kViewed;
  constexpr std::string_view kPhase = "phase=\"backward\"";
  for (size_t at; (at = text.find(kPhase)) != std::string::npos;) {
    text.replace(at, kPhase.size(), "phase=\"optimizer\", microbatch=0");
  }
  ExpectUnchanged(text);
}

// The gradient reads other statistics, or what a reader makes.
TEST(MakeAgain, NotOfAnotherNorm) {
  ExpectUnchanged(With(kViewed, "rms_norm_grad %d, %e", "rms_norm_grad %d, %x"));
  ExpectUnchanged(
      With(With(kViewed, "%d, %e, %rstd, %w", "%d, %e, %rstd, %v"), "%d = sin",
           "%v = reduce_sum %m {axes=[0], keepdims=false, out=\"f32\", phase=\"backward\"} : "
           "f32[4]\n  %d = sin"));
}

// The peak is where the value is not there yet.
TEST(MakeAgain, NotWhereThePeakStays) {
  ExpectUnchanged(
      With(kViewed, "%e = exp %x : f32[2, 4, 4]",
           "%k = pad %x {high=[0, 0, 996], low=[0, 0, 0], value=0.0} : f32[2, 4, 1000]\n"
           "  %l = sin %k : f32[2, 4, 1000]\n"
           "  %e = slice %l {limits=[2, 4, 4], starts=[0, 0, 0], steps=[1, 1, 1]} : f32[2, 4, 4]"));
  // Or where it is there again: between the gradient and a reader that is far behind it.
  const std::string reader =
      "  %g = matmul_tn %m, %r {batch=0, out=\"f32\", phase=\"backward\"} : f32[4, 4]\n"
      "  %sum = add %g, %g {phase=\"backward\"} : f32[4, 4]\n";
  ExpectUnchanged(
      With(With(kViewed, reader, ""), "  %more = ",
           "  %k = pad %d {high=[0, 0, 996], low=[0, 0, 0], value=0.0, phase=\"backward\"} : "
           "f32[2, 4, 1000]\n"
           "  %l = reduce_sum %k {axes=[0, 1, 2], keepdims=false, phase=\"backward\"} : f32[]\n"
           "  %last = param \"last\" : f32[]\n"
           "  update \"last\" %l {phase=\"backward\"}\n" +
               reader + "  %more = "));
}

}  // namespace
}  // namespace shardc::testing
