#include "passes/run_together.h"

#include <gtest/gtest.h>

#include "frontend/gpt_config.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "tests/exec/harness.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// Two microbatches with two sums each, as a pass left them: one after the other.
Graph TwoMicrobatches() {
  Graph graph = ParseAndVerify(R"(mesh [tp=2]
  graph @g(%x: f32[8, 4@tp], %y: f32[8, 4@tp]) -> (%s) {
    %w = param "w" : f32[4@tp, 4]
    %v = neg %w : f32[4@tp, 4]
    %0 = matmul %x, %v {site="a"} : f32[8, 4] partial(tp)
    %1 = all_reduce %0 {axes=["tp"], site="a"} : f32[8, 4]
    %2 = exp %x {site="a"} : f32[8, 4@tp]
    %3 = tanh %1 {site="a"} : f32[8, 4]
    %4 = matmul %y, %v {site="b"} : f32[8, 4] partial(tp)
    %5 = all_reduce %4 {axes=["tp"], site="b"} : f32[8, 4]
    %6 = exp %y {site="b"} : f32[8, 4@tp]
    %7 = tanh %5 {site="b"} : f32[8, 4]
    %s = add %3, %7 : f32[8, 4]
  })");
  for (const auto& op : graph.ops()) {
    if (op->site == "a") op->microbatch = 0;
    if (op->site == "b") op->microbatch = 1;
  }
  return graph;
}

TEST(RunTogether, OneComputesWhileTheOtherWaits) {
  Graph graph = TwoMicrobatches();
  RunPass(graph, "run_together");
  CheckGraph(graph, R"(
    CHECK: %v = neg %w
    CHECK-NEXT: %0 = matmul %x, %v
    CHECK-NEXT: %1 = all_reduce %0
    CHECK-NEXT: exp %x
    CHECK-NEXT: %3 = matmul %y, %v
    CHECK-NEXT: %4 = all_reduce %3
    CHECK-NEXT: exp %y
    CHECK-NEXT: %6 = tanh %1
    CHECK-NEXT: %7 = tanh %4
    CHECK-NEXT: %s = add %6, %7)");
}

TEST(RunTogether, WhatCannotIsRefused) {
  auto compile = [](const std::string& mesh, const std::string& more) {
    Spec spec = SpecOf("pipeline_axis: 'pp'\n" + more);
    Graph graph =
        BuildGpt(ParseBuiltin("builtin:gpt?layers=2,hidden=8,heads=2,vocab=16,seq=4,batch=4"));
    PipelineOptions options;
    options.loss = "lm";
    CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse(mesh)), options);
  };
  const std::string two = "microbatches: 2\nmicrobatches_together: ";
  compile("", two + "2");
  ExpectThrown([&] { compile("", two + "3"); }, "E2124", "3 microbatches cannot run together");
  ExpectThrown([&] { compile("", "microbatches_together: 2"); }, "E2124", "there is 1");
  ExpectThrown([&] { compile("pp=2", two + "2"); }, "E2124", "in a pipeline");
}

}  // namespace
}  // namespace shardc::testing
