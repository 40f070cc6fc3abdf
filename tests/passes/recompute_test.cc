#include "passes/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/text.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr char kMlp[] = R"(graph @g(%x: f32[8, 4]) -> (%loss) {
  %u = param "u" : f32[4, 16]
  %v = param "v" : f32[16, 4]
  %n, %mean, %rstd = layer_norm %x {eps=1e-05} : f32[8, 4], f32[8], f32[8]
  %a = matmul %n, %u {site="up"} : f32[8, 16]
  %h = gelu %a {approximate="tanh", site="act"} : f32[8, 16]
  %y = matmul %h, %v : f32[8, 4]
  %q = mul %y, %y : f32[8, 4]
  %loss = reduce_sum %q {axes=[0, 1], keepdims=false} : f32[]
})";

// gelu's result is made again just before the product that needs it, so is the norm's; %a, from
// which gelu's gradient is made too, is kept.
TEST(Recompute, SelectiveRepeatsWhatIsCheap) {
  CheckPasses(kMlp, "differentiate,recompute_selective", R"(
    CHECK: %n, %_, %_ = layer_norm %x
    CHECK-NEXT: %a = matmul %n, %u
    CHECK-NEXT: %h = gelu %a
    CHECK-NEXT: %y = matmul %h, %v
    CHECK: %6 = gelu %a {approximate="tanh", phase="backward", site="act"} : f32[8, 16]
    CHECK-NEXT: = matmul_tn %6, %_
    CHECK: = gelu_grad %_, %a
    CHECK-NEXT: %9, %10, %11 = layer_norm %x {eps=1e-05, phase="backward"}
    CHECK-NEXT: = matmul_tn %9, %8
    CHECK-NOT: layer_norm)");
}

// Merging equal ops leaves the copies alone.
TEST(Recompute, CanonicalizeDoesNotUndoIt) {
  CheckPasses(kMlp, "differentiate,recompute_selective,canonicalize", R"(
    CHECK: gelu %a {approximate="tanh", site="act"}
    CHECK: gelu %a {approximate="tanh", phase="backward", site="act"})");
}

// What is an output, or has no input that lives anyway, is kept: to make %b again would keep %a.
TEST(Recompute, SelectiveKeepsWhatFreesNothing) {
  CheckPasses(R"(graph @g(%x: f32[8, 4]) -> (%loss, %e) {
    %w = param "w" : f32[4, 4]
    %e = exp %w : f32[4, 4]
    %a = matmul %x, %w : f32[8, 4]
    %b = tanh %a : f32[8, 4]
    %c = matmul %b, %e : f32[8, 4]
    %loss = reduce_sum %c {axes=[0, 1], keepdims=false} : f32[]
  })",
              "differentiate,recompute_selective", R"(
    CHECK: %e = exp %w
    CHECK: %b = tanh %a
    CHECK-NOT: = exp
    CHECK-NOT: = tanh
    CHECK: = tanh_grad %_, %b)");
}

// A chain through values that the backward does not need, by way of another name of the memory.
TEST(Recompute, SelectiveRepeatsChains) {
  CheckPasses(R"(graph @g(%x: f32[8, 4]) -> (%loss) {
    %w = param "w" : f32[16, 4]
    %0 = neg %x : f32[8, 4]
    %1 = exp %x : f32[8, 4]
    %2 = concat %0, %1 {axis=0} : f32[16, 4]
    %3 = reshape %2 {shape=[4, 16]} : f32[4, 16]
    %y = matmul %3, %w : f32[4, 4]
    %loss = reduce_sum %y {axes=[0, 1], keepdims=false} : f32[]
  })",
              "differentiate,recompute_selective", R"(
    CHECK: matmul
    CHECK: %_ = neg %x {phase="backward"}
    CHECK-NEXT: %_ = exp %x {phase="backward"}
    CHECK-NEXT: %_ = concat %_, %_ {axis=0, phase="backward"}
    CHECK-NEXT: %_ = reshape %_ {shape=[4, 16], phase="backward"}
    CHECK-NEXT: matmul_tn)");
}

// Two layers, each with a sum over the ranks: it is repeated, and says why.
TEST(Recompute, FullKeepsTheInputsOfLayers) {
  constexpr char kLayers[] = R"(mesh [tp=2]
  graph @g(%x: f32[8, 4]) -> (%loss) {
    %u = param "u" : f32[4@tp, 4]
    %0 = local_slice %x {axes=["tp"], dim=1} : f32[8, 4@tp]
    %1 = matmul %0, %u : f32[8, 4] partial(tp)
    %2 = all_reduce %1 {axes=["tp"], why=["spec"]} : f32[8, 4]
    %3 = tanh %2 : f32[8, 4]
    %a = add %x, %3 : f32[8, 4]
    %4 = local_slice %a {axes=["tp"], dim=1} : f32[8, 4@tp]
    %5 = matmul %4, %u : f32[8, 4] partial(tp)
    %6 = all_reduce %5 {axes=["tp"], why=["spec"]} : f32[8, 4]
    %7 = tanh %6 : f32[8, 4]
    %b = add %a, %7 : f32[8, 4]
    %loss = reduce_sum %b {axes=[0, 1], keepdims=false} : f32[]
    %d = broadcast_to %loss {phase="backward", shape=[8, 4]} : f32[8, 4]
    %8 = tanh_grad %d, %7 {phase="backward"} : f32[8, 4]
    %9 = tanh_grad %8, %3 {phase="backward"} : f32[8, 4]
    %g = add %9, %x {phase="backward"} : f32[8, 4]
  })";
  Graph graph = ParseAndVerify(kLayers);
  graph.outputs.push_back({"g", graph.ops().back()->result()});
  RunPasses(graph, "recompute_full");
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_EQ(graph.notes[0], "--recompute full: keeps the inputs of 2 layers, the first of 5 ops");
  CheckGraph(graph, R"text(
    CHECK: %d = broadcast_to
    CHECK-NEXT: %_ = local_slice %a {axes=["tp"], dim=1, phase="backward"}
    CHECK-NEXT: %_ = matmul %_, %u {phase="backward"}
    CHECK-NEXT: %_ = all_reduce %_ {axes=["tp"], why=["spec", "computed again for the backward of layer 2 of 2, of which only the input is kept (--recompute full)"], phase="backward"}
    CHECK-NEXT: %_ = tanh %_ {phase="backward"}
    CHECK-NEXT: %_ = tanh_grad %d, %_ {phase="backward"}
    CHECK-NEXT: %_ = local_slice %x
    CHECK-NEXT: %_ = matmul
    CHECK-NEXT: %_ = all_reduce
    CHECK-NEXT: %_ = tanh
    CHECK-NEXT: %_ = tanh_grad
    CHECK-NEXT: %g = add
    CHECK-NEXT: })text");
}

// A cast that only the backward reads is the forward's, but moved to where it is read: in no layer.
TEST(Recompute, NoLayerHasWhatComesAfterTheForward) {
  Graph graph = ParseAndVerify(R"(graph @g(%x: f32[4, 4], %d: f32[4, 4]) -> (%loss, %g) {
    %w = param "w" : f32[4, 4]
    %0 = matmul %x, %w : f32[4, 4]
    %a = add %x, %0 : f32[4, 4]
    %1 = matmul %a, %w : f32[4, 4]
    %b = add %a, %1 : f32[4, 4]
    %loss = reduce_sum %b {axes=[0, 1], keepdims=false} : f32[]
    %2 = tanh_grad %d, %b {phase="backward"} : f32[4, 4]
    %3 = tanh %0 : f32[4, 4]
    %g = tanh_grad %2, %3 {phase="backward"} : f32[4, 4]
  })");
  RunPasses(graph, "recompute_full");
  EXPECT_THAT(graph.notes,
              ::testing::ElementsAre(::testing::HasSubstr("2 layers, the first of 2 ops")));
}

TEST(Recompute, FullSaysWhereThereAreNoLayers) {
  Graph graph = ParseAndVerify(kMlp);
  RunPasses(graph, "differentiate,recompute_full");
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_NE(graph.notes[0].find("no repeated layers"), std::string::npos);
  CheckGraph(graph, "CHECK: gelu %a {approximate=\"tanh\", phase=\"backward\"");
}

// The backward gathers again, of a part that is kept; or makes that again too, where it costs
// little. Weights stay gathered, and so does what frees less than it takes.
TEST(Recompute, GathersKeepsAPart) {
  constexpr char kGathers[] = R"(mesh [tp=2]
  graph @g(%x: f32[8@tp, 4], %d: f32[8, 4]) -> (%y, %dw, %du) {
    %u = param "u" : f32[4@tp, 4]
    %w = all_gather %u {axes=["tp"], dim=0} : f32[4, 4]
    %n = tanh %x : f32[8@tp, 4]
    %a = all_gather %n {axes=["tp"], dim=0, why=["spec"]} : f32[8, 4]
    %y = matmul %a, %w : f32[8, 4]
    %dw = matmul_tn %a, %d {phase="backward"} : f32[4, 4]
    %du = matmul_nt %d, %w {phase="backward"} : f32[8, 4]
  })";
  CheckPasses(kGathers, "recompute_gathers", R"text(
    CHECK: %y = matmul %a, %w
    CHECK-NEXT: %_ = all_gather %n {axes=["tp"], dim=0, why=["spec", "gathered again for the backward (--recompute gathers)"], phase="backward"} : f32[8, 4]
    CHECK-NEXT: %dw = matmul_tn %_, %d
    CHECK-NEXT: %du = matmul_nt %d, %w
    CHECK-NOT: all_gather)text");
  Graph graph = ParseAndVerify(kGathers);
  Recompute(graph, "selective,gathers");
  CheckGraph(graph, R"text(
    CHECK: %y = matmul %a, %w
    CHECK-NEXT: %_ = tanh %x {phase="backward"} : f32[8@tp, 4]
    CHECK-NEXT: %_ = all_gather %_ {
    CHECK-NEXT: %dw = matmul_tn %_, %d
    CHECK-NEXT: %du = matmul_nt %d, %w)text");
}

TEST(Recompute, NoneAndUnknown) {
  Graph graph = ParseAndVerify(kMlp);
  RunPasses(graph, "differentiate");
  std::string before = PrintGraph(graph);
  Recompute(graph, "none");
  EXPECT_EQ(PrintGraph(graph), before);
  ExpectThrown([&] { Recompute(graph, "some"); }, "E6109", "use none, selective, gathers or full");
  ExpectThrown([&] { Recompute(graph, "none,full"); }, "E6109", "--recompute none,full: 'none'");
  ExpectThrown([&] { Recompute(graph, "gathers,none"); }, "E6109", "give either");
}

}  // namespace
}  // namespace shardc::testing
