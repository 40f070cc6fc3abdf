// How long the stages of a pipeline wait for each other, by the flops of their programs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

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

// What a stage can know of the others: for each of its instructions, and for its end, how many
// instructions each stage has behind it at least, by what was received before.
using Knowledge = std::vector<std::vector<int>>;  // [instruction][stage]

std::vector<Knowledge> KnowledgeOf(const std::vector<Program>& stages) {
  std::vector<Knowledge> known(stages.size());
  std::map<int, std::vector<int>> sent;  // by collective: what the sender knew
  std::vector<std::vector<int>> now(stages.size(), std::vector<int>(stages.size(), 0));
  auto step = [&](size_t s) {
    const Program& p = stages[s];
    if (known[s].size() > p.instructions.size()) return false;
    if (known[s].size() < p.instructions.size()) {
      const Instruction& i = p.instructions[known[s].size()];
      const Collective* c = i.collective < 0 ? nullptr : &p.collectives[i.collective];
      const bool receives = c && c->kind == CollectiveKind::kSendRecv && i.operands.empty();
      if (receives && !sent.contains(c->id)) return false;
      known[s].push_back(now[s]);
      if (receives) {
        const std::vector<int>& told = sent.at(c->id);
        for (size_t t = 0; t < stages.size(); ++t) now[s][t] = std::max(now[s][t], told[t]);
      } else if (c && c->kind == CollectiveKind::kSendRecv) {
        sent[c->id] = now[s];
      }
      now[s][s] = static_cast<int>(known[s].size());
    } else {
      known[s].push_back(now[s]);
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      while (step(s)) moved = true;
    }
  }
  return known;
}

// What is sent is not written over before the receiver was heard of, if ever it is: to wait for
// that is not to wait for a peer.
TEST(Bubble, NobodyWaitsForMemory) {
  const std::vector<Program> stages = StagesOf("layers=8,vocab=512", "pp=4", 8);
  const std::vector<Knowledge> known = KnowledgeOf(stages);
  std::map<int, int> received;  // by collective: at which instruction of the receiver
  auto transfer = [](const Program& p, int at) -> const Collective& {
    const int c = p.instructions[at].collective;
    return p.collectives[c];
  };
  for (const Program& p : stages) {
    for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
      const Instruction& instruction = p.instructions[i];
      if (instruction.collective < 0 || !instruction.operands.empty()) continue;
      received[transfer(p, i).id] = i;
    }
  }
  int told = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Program& p = stages[s];
    ASSERT_EQ(known[s].size(), p.instructions.size() + 1) << "stage " << s << " waits for ever";
    const auto finish = SendsToFinish(p);
    for (size_t i = 0; i < p.instructions.size(); ++i) {
      for (int send : finish[i]) {
        const Collective& c = transfer(p, send);
        const auto to = static_cast<size_t>(c.to);
        auto heard = [&](size_t at) { return known[s][at][to] > received.at(c.id); };
        told += heard(i);
        EXPECT_TRUE(heard(i) || !heard(p.instructions.size()))
            << "instruction " << i << " of stage " << s << " writes over what " << send << " sends";
      }
    }
  }
  EXPECT_GT(told, 0);
}

}  // namespace
}  // namespace shardc::testing
