// How long the stages of a pipeline wait for each other, by the flops of their programs.
#include <gtest/gtest.h>

#include <algorithm>

#include "frontend/gpt_config.h"
#include "passes/emit.h"
#include "passes/pipeline.h"
#include "runtime/accesses.h"
#include "tests/passes/makespan.h"

namespace shardc::testing {
namespace {

double FlopsOf(const Instruction& i) { return static_cast<double>(i.flops); }

std::vector<Program> StagesOf(const std::string& form, const std::string& mesh, int microbatches,
                              const std::string& recompute = "none", int virtual_stages = 1) {
  Graph graph = BuildGpt(ParseBuiltin("builtin:gpt?hidden=64,heads=4,seq=32,batch=16," + form));
  Spec spec = LoadSpec("megatron");
  spec.microbatches.count = microbatches;
  spec.pipeline.virtual_stages = virtual_stages;
  PipelineOptions options;
  options.recompute = recompute;
  options.optimizer.kind = "sgd";
  CompileGraph(graph, spec, Mesh::Parse(mesh), options);
  return EmitStages(graph).stages;
}

double Work(const Program& program) {
  double work = 0;
  for (const Instruction& i : program.instructions) work += FlopsOf(i);
  return work;
}

double Largest(const std::vector<Program>& stages) {
  double largest = 0;
  for (const Program& stage : stages) largest = std::max(largest, Work(stage));
  return largest;
}

// Where the stages do the same work nothing but the bubble of one forward, one backward is lost.
TEST(Bubble, IsThatOfOneForwardOneBackward) {
  for (const char* recompute : {"none", "full"}) {
    for (int p : {2, 4}) {
      for (int m : {1, 2, 4, 8, 16}) {
        SCOPED_TRACE(StrCat(recompute, ", ", p, " stages, ", m, " microbatches"));
        const std::vector<Program> stages =
            StagesOf("layers=8,vocab=8,tied=false", StrCat("pp=", p), m, recompute);
        double work = 0;
        for (const Program& stage : stages) work += Work(stage);
        EXPECT_LT(Largest(stages) * p, 1.01 * work);
        const double ideal = Largest(stages) * (m + p - 1) / m;
        EXPECT_LT(Makespan(stages, {FlopsOf}), 1.01 * ideal);
        EXPECT_LT(Makespan(stages, {FlopsOf, true}), 1.01 * ideal);
        EXPECT_LT(MakespanOfStreams(stages, FlopsOf), 1.01 * ideal);
      }
    }
  }
}

// V virtual stages make the bubble V times smaller.
TEST(Bubble, OfVirtualStages) {
  for (const char* recompute : {"none", "full"}) {
    for (auto [p, v, m] : {std::tuple(2, 2, 4), {2, 4, 8}, {4, 2, 4}, {4, 2, 8}, {4, 2, 16}}) {
      SCOPED_TRACE(StrCat(recompute, ", ", p, " stages of ", v, ", ", m, " microbatches"));
      const std::vector<Program> stages =
          StagesOf("layers=8,vocab=8,tied=false", StrCat("pp=", p), m, recompute, v);
      const double ideal = Largest(stages) * (m + static_cast<double>(p - 1) / v) / m;
      EXPECT_LT(Makespan(stages, {FlopsOf}), 1.02 * ideal);
      EXPECT_LT(MakespanOfStreams(stages, FlopsOf), 1.01 * ideal);
    }
  }
}

// A head makes the last stage slower: the others need not wait until it takes what they send.
TEST(Bubble, IsLessWhereSendsDoNotWait) {
  for (int m : {4, 16}) {
    SCOPED_TRACE(m);
    const std::vector<Program> stages = StagesOf("layers=8,vocab=512", "pp=4", m, "full");
    const double ideal = Largest(stages) * (m + 3) / m;
    EXPECT_LT(Makespan(stages, {FlopsOf}), ideal);
    EXPECT_GT(Makespan(stages, {FlopsOf, true}), ideal);
  }
}

// What is sent is not written over before the receiver was heard of, if ever it is: to wait for
// that is not to wait for a peer.
TEST(Bubble, NobodyWaitsForMemory) {
  for (const Program& p : StagesOf("layers=8,vocab=512", "pp=4", 8)) {
    auto transfer = [&](int i) -> const Collective& {
      return p.collectives[static_cast<size_t>(p.instructions[static_cast<size_t>(i)].collective)];
    };
    auto receives = [&](int from, int begin, int end) {
      int n = 0;
      for (int i = begin; i < end; ++i) {
        const Instruction& instruction = p.instructions[static_cast<size_t>(i)];
        n +=
            instruction.collective >= 0 && instruction.operands.empty() && transfer(i).from == from;
      }
      return n;
    };
    const auto finish = SendsToFinish(p);
    for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
      for (int send : finish[static_cast<size_t>(i)]) {
        const int to = transfer(send).to;
        const int end = static_cast<int>(p.instructions.size());
        EXPECT_TRUE(receives(to, send, i) > 0 || receives(to, i, end) == 0)
            << "instruction " << i << " writes over what " << send << " sends";
      }
    }
  }
}

}  // namespace
}  // namespace shardc::testing
