// What is recorded of a step, and what the tables make of it.
#include "runtime/profile.h"

#include <gmock/gmock.h>

#include <limits>
#include <memory>

#include "frontend/gpt_config.h"
#include "passes/pipeline.h"
#include "runtime/session.h"
#include "tests/exec/harness.h"
#include "tests/ir/cpu_time.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

using ::testing::ElementsAre;

TEST(Profile, LayerIsTheShortestPrefixThatEndsInANumber) {
  EXPECT_EQ(LayerOf("transformer.h.3.attn.c_attn"), "transformer.h.3");
  EXPECT_EQ(LayerOf("transformer.h.11"), "transformer.h.11");
  EXPECT_EQ(LayerOf("h.0.experts.2.up"), "h.0");
  EXPECT_EQ(LayerOf("/model/layers.12/mlp/MatMul"), "/model/layers.12");
  EXPECT_EQ(LayerOf("7"), "7");
  // Numbers that only tell ops apart are no layers.
  EXPECT_EQ(LayerOf("node_linear_8"), "");
  EXPECT_EQ(LayerOf("lm_head/MatMul_1"), "");
  EXPECT_EQ(LayerOf("h.0a"), "");
  EXPECT_EQ(LayerOf("a..b"), "");
  EXPECT_EQ(LayerOf(""), "");
}

TEST(Profile, RecordsAsManyStepsAsWereAsked) {
  RankProfile profile;
  EXPECT_EQ(profile.NextStep(), nullptr);
  profile.Start(2, 3);
  TimeSpan* first = profile.NextStep();
  ASSERT_NE(first, nullptr);
  first[2] = {5, 9};
  TimeSpan* second = profile.NextStep();
  EXPECT_EQ(second, first + 3);
  EXPECT_EQ(profile.NextStep(), nullptr);
  std::vector<TimeSpan> spans = profile.Take();
  ASSERT_EQ(spans.size(), 6u);
  EXPECT_EQ(spans[2].ns(), 4);
  EXPECT_EQ(profile.NextStep(), nullptr);

  profile.Start(4, 3);
  profile.NextStep();
  EXPECT_EQ(profile.Take().size(), 3u);
}

TEST(Profile, HoldsNoMoreThanItsRoom) {
  constexpr size_t kInstructions = 100'000;
  RankProfile profile;
  profile.Start(1'000'000, kInstructions);
  int64_t steps = 0;
  while (profile.NextStep()) ++steps;
  EXPECT_GT(steps, 30);
  EXPECT_LE(steps * static_cast<int64_t>(kInstructions * sizeof(TimeSpan)), RankProfile::kMaxBytes);
  // One step always has room, or there would be no profile.
  profile.Start(1, RankProfile::kMaxBytes / sizeof(TimeSpan) + 1);
  EXPECT_NE(profile.NextStep(), nullptr);
}

// Two readings of the clock an instruction: what a step pays. The bound is wide, for sanitizers;
// the smallest kernels take some microseconds.
TEST(Profile, RecordingIsCheap) {
  constexpr size_t kInstructions = 100'000;
  RankProfile profile;
  profile.Start(5, kInstructions);
  double best = std::numeric_limits<double>::infinity();
  while (TimeSpan* spans = profile.NextStep()) {
    const double start = CpuSeconds();
    for (size_t i = 0; i < kInstructions; ++i) {
      spans[i].begin_ns = RankProfile::Now();
      spans[i].end_ns = RankProfile::Now();
    }
    best = std::min(best, CpuSeconds() - start);
  }
  const double ns = 1e9 * best / kInstructions;
  RecordProperty("ns_per_instruction", static_cast<int>(ns));
  EXPECT_LT(ns, 500);
}

// A matmul, an all_reduce over tp, a matmul of the backward pass, on dp=2,tp=2.
class HandMade : public ::testing::Test {
 protected:
  void SetUp() override {
    Program p;
    p.mesh = Mesh::Parse("dp=2,tp=2");
    auto add = [&](const char* op, Phase phase, const char* site, int64_t flops, int64_t bytes) {
      Instruction& i = p.instructions.emplace_back();
      i.op = op;
      i.phase = phase;
      i.site = site;
      i.flops = flops;
      i.bytes = bytes;
    };
    add("matmul", Phase::kForward, "h.0.up", 1000, 40);
    add("all_reduce", Phase::kForward, "h.0.down", 0, 24);
    add("matmul", Phase::kBackward, "h.0.up", 3000, 80);
    add("matmul", Phase::kForward, "lm_head", 500, 8);
    p.instructions[1].collective = 0;
    Collective& c = p.collectives.emplace_back();
    c.axes = {1};
    for (int64_t r = 0; r < 4; ++r) {
      p.rank = r;
      programs_.push_back(p);
    }
    profile_.programs = programs_;
    // Two equal steps, but for the all_reduce, where ranks differ.
    for (int64_t r = 0; r < 4; ++r) {
      std::vector<TimeSpan> spans;
      for (int64_t s = 0; s < 2; ++s) {
        int64_t t = 1000 * s, reduce = kReduce[r] * (s + 1);
        spans.insert(
            spans.end(),
            {{t, t + 100}, {t + 100, t + 100 + reduce}, {t + 500, t + 700}, {t + 800, t + 850}});
      }
      profile_.ranks.push_back(spans);
    }
  }

  static constexpr int64_t kReduce[4] = {10, 30, 80, 60};
  std::vector<Program> programs_;
  Profile profile_;
};

TEST_F(HandMade, WaitIsAgainstTheFastestOfTheGroup) {
  EXPECT_EQ(profile_.steps(), 2u);
  // Groups are {0, 1} and {2, 3}.
  EXPECT_EQ(profile_.WaitNs(0, 0, 1), 0);
  EXPECT_EQ(profile_.WaitNs(1, 0, 1), 20);
  EXPECT_EQ(profile_.WaitNs(2, 0, 1), 20);
  EXPECT_EQ(profile_.WaitNs(3, 0, 1), 0);
  EXPECT_EQ(profile_.WaitNs(1, 1, 1), 40);
  EXPECT_EQ(profile_.WaitNs(1, 1, 0), 0);

  std::vector<CollectiveRow> rows = ProfileCollectives(profile_);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1].op, "all_reduce");
  EXPECT_EQ(rows[1].rank, 1u);
  EXPECT_EQ(rows[1].calls, 1);
  EXPECT_EQ(rows[1].bytes, 24);
  EXPECT_NEAR(rows[1].seconds, 45e-9, 1e-15);
  EXPECT_NEAR(rows[1].wait_seconds, 30e-9, 1e-15);
  EXPECT_EQ(rows[3].wait_seconds, 0);
}

// Of a transfer each end waits until the other comes; a send that was only begun, later.
TEST(TransferProfile, WaitIsUntilTheOtherEndComes) {
  std::vector<Program> programs(2);
  for (int r = 0; r < 2; ++r) {
    Program& p = programs[r];
    p.mesh = Mesh::Parse("pp=2");
    p.rank = r;
    p.instructions.resize(2);
    p.collectives.resize(2);
    for (int i = 0; i < 2; ++i) {
      p.instructions[i].op = "send_recv";
      p.instructions[i].collective = i;
      Collective& c = p.collectives[i];
      c.id = i;
      c.kind = CollectiveKind::kSendRecv;
      c.axes = {0};
      c.from = 0;
      c.to = 1;
    }
  }
  Profile profile;
  profile.programs = programs;
  profile.ranks = {{{100, 101}, {400, 480}, {900, 901}, {950, 960}},
                   {{60, 120}, {450, 480}, {900, 910}, {950, 960}}};
  profile.workers = {{{0, 0, 1, {100, 101}}, {0, 0, 0, {300, 340}}, {1, 0, 0, {940, 946}}}, {}};
  EXPECT_EQ(profile.WaitNs(0, 0, 0), 40);
  EXPECT_EQ(profile.WaitNs(1, 0, 0), 40);
  EXPECT_EQ(profile.WaitNs(0, 0, 1), 50);
  EXPECT_EQ(profile.WaitNs(1, 0, 1), 0);
  EXPECT_EQ(profile.WaitNs(0, 1, 0), 6);
  const std::vector<CollectiveRow> rows = ProfileCollectives(profile);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NEAR(rows[0].seconds, (1 + 40 + 80 + 1 + 6 + 10) / 2 * 1e-9, 1e-15);
  EXPECT_NEAR(rows[0].wait_seconds, (40 + 50 + 6) / 2 * 1e-9, 1e-15);
}

TEST_F(HandMade, RowsAreMeansOfRanksAndSteps) {
  std::vector<ProfileRow> rows = ProfileByOp(profile_);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "matmul");
  EXPECT_EQ(rows[0].phase, Phase::kBackward);
  EXPECT_NEAR(rows[0].seconds, 200e-9, 1e-15);
  EXPECT_EQ(rows[1].phase, Phase::kForward);
  EXPECT_EQ(rows[1].calls, 2);
  EXPECT_NEAR(rows[1].seconds, 150e-9, 1e-15);
  EXPECT_EQ(rows[1].flops, 1500);
  EXPECT_EQ(rows[1].bytes, 48);
  EXPECT_NEAR(rows[2].seconds, 67.5e-9, 1e-15);

  std::vector<std::string> names;
  for (const ProfileRow& row : ProfileByLayer(profile_)) {
    names.push_back(row.name + " " + std::string(PhaseName(row.phase)));
  }
  EXPECT_THAT(names, ElementsAre("h.0 forward", "h.0 backward", "lm_head forward"));
}

TEST(Profile, OfNothingIsEmpty) {
  Profile none;
  EXPECT_EQ(none.steps(), 0u);
  EXPECT_TRUE(ProfileByOp(none).empty());
  EXPECT_TRUE(ProfileCollectives(none).empty());
}

struct Compiled {
  Graph graph;
  std::vector<Program> programs;
  Tensors inputs;

  explicit Compiled(const std::string& spec_name, const std::string& mesh)
      : graph(BuildGpt(
            ParseBuiltin("builtin:gpt?layers=2,hidden=32,heads=4,vocab=96,seq=16,batch=2"))) {
    inputs = RandomInputs(graph, 96, 1);
    inputs["labels"] = inputs.at("input_ids");
    Spec spec = SpecOf(spec_name);
    CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse(mesh)), PipelineOptions());
    programs = ProgramsFor(graph);
  }

  std::unique_ptr<Session> MakeSession(const SessionOptions& options = {}) const {
    auto session = std::make_unique<Session>(programs, options, ReaderFor(graph));
    for (const auto& [name, value] : inputs) session->SetInput(name, value);
    return session;
  }
};

TEST(Profile, OfASessionIsInOrder) {
  Compiled c("megatron", "dp=1,tp=2");
  std::unique_ptr<Session> session = c.MakeSession();
  session->Step();
  session->StartProfile(3);
  for (int i = 0; i < 4; ++i) session->Step();
  Profile profile = session->TakeProfile();
  EXPECT_EQ(profile.steps(), 3u);
  ASSERT_EQ(profile.ranks.size(), 2u);
  for (const std::vector<TimeSpan>& spans : profile.ranks) {
    int64_t last = 0;
    for (const TimeSpan& span : spans) {
      ASSERT_GT(span.begin_ns, 0);
      ASSERT_GE(span.begin_ns, last);
      ASSERT_GE(span.end_ns, span.begin_ns);
      last = span.end_ns;
    }
  }
  // One clock: no rank leaves an all_reduce before the other has come.
  for (size_t i = 0; i < profile.instructions(0); ++i) {
    if (profile.programs[0].instructions[i].op != "all_reduce") continue;
    EXPECT_GE(profile.at(0, 1, i).end_ns, profile.at(1, 1, i).begin_ns);
    EXPECT_GE(profile.at(1, 1, i).end_ns, profile.at(0, 1, i).begin_ns);
  }
  int64_t bytes = 0;
  for (const CollectiveRow& row : ProfileCollectives(profile)) {
    EXPECT_GE(row.wait_seconds, 0);
    EXPECT_LT(row.wait_seconds, row.seconds);
    if (row.rank == 0) bytes += row.bytes;
  }
  EXPECT_EQ(bytes, session->collective_bytes());
  // Nothing is recorded any more.
  session->Step();
  EXPECT_EQ(session->TakeProfile().steps(), 0u);
}

// The threads of a rank's team are within the instructions that they work for, one after the other.
TEST(Profile, OfTheWorkers) {
  if (std::getenv("OMP_THREAD_LIMIT")) GTEST_SKIP() << "teams of one, as the tsan preset has them";
  Compiled c("serial", "");
  SessionOptions options;
  options.threads = 3;
  std::unique_ptr<Session> session = c.MakeSession(options);
  session->StartProfile(2);
  for (int i = 0; i < 3; ++i) session->Step();
  Profile profile = session->TakeProfile();
  ASSERT_EQ(profile.workers.size(), 1u);
  ASSERT_FALSE(profile.workers[0].empty());
  std::map<int, int64_t> last;
  for (const WorkerSpan& w : profile.workers[0]) {
    ASSERT_LT(w.step, 2u);
    ASSERT_GE(w.thread, 1);
    ASSERT_LE(w.thread, 2);
    const TimeSpan& whole = profile.at(0, w.step, w.instruction);
    EXPECT_GE(w.span.begin_ns, whole.begin_ns);
    EXPECT_LE(w.span.end_ns, whole.end_ns);
    EXPECT_GE(w.span.begin_ns, last[w.thread]);
    last[w.thread] = w.span.end_ns;
  }
}

// Also those of oneDNN's own teams.
TEST(Profile, OfTheThreadsOfAProduct) {
  if (std::getenv("OMP_THREAD_LIMIT")) GTEST_SKIP() << "teams of one, as the tsan preset has them";
  Graph graph = ParseAndVerify(R"(graph @g(%a: f32[512, 512], %b: f32[512, 512]) -> (%y) {
    %y = matmul %a, %b : f32[512, 512]
  })");
  std::vector<Program> programs = ProgramsFor(graph);
  SessionOptions options;
  options.threads = 2;
  Session session(programs, options, ReaderFor(graph));
  for (const auto& [name, value] : RandomInputs(graph, 1, 1)) session.SetInput(name, value);
  session.Step();
  session.Step();
  session.StartProfile(1);
  session.Step();
  Profile profile = session.TakeProfile();
  ASSERT_EQ(profile.instructions(0), 1u);
  ASSERT_EQ(profile.workers[0].size(), 1u);
  const WorkerSpan& worker = profile.workers[0][0];
  EXPECT_EQ(worker.thread, 1);
  EXPECT_GE(worker.span.begin_ns, profile.at(0, 0, 0).begin_ns);
  EXPECT_GT(worker.span.ns(), 0);
  EXPECT_LE(worker.span.end_ns, profile.at(0, 0, 0).end_ns);
}

TEST(Profile, PeaksAreMeasured) {
  Compiled c("megatron", "dp=1,tp=2");
  std::unique_ptr<Session> session = c.MakeSession();
  MachinePeaks peaks = session->MeasurePeaks();
  EXPECT_GT(peaks.gemm_flops, 1e8);
  EXPECT_LT(peaks.gemm_flops, 1e14);
  EXPECT_GT(peaks.copy_bytes, 1e8);
  EXPECT_LT(peaks.copy_bytes, 1e13);
}

int64_t MatmulFlops(const Program& program) {
  int64_t flops = 0;
  for (const Instruction& i : program.instructions) {
    if (i.op.starts_with("matmul")) flops += i.flops;
  }
  return flops;
}

// Matrix products of a GPT: 6 * tokens * (12 h^2 layers + h vocabulary), attention is an op of its
// own. Megatron cuts all of them in half over two ranks; dp cuts the tokens.
TEST(Profile, FlopsAreThoseOfOneRank) {
  int64_t all = 6 * 32 * (12 * 32 * 32 * 2 + 32 * 96);
  auto flops = [&](const char* spec, const char* mesh) {
    Compiled c(spec, mesh);
    int64_t linear = 0;
    for (const Instruction& i : c.programs[0].instructions) {
      // A linear also adds its bias: one operation per element.
      if (i.op == "linear") {
        linear += i.flops - NumElements(c.programs[0].buffers[i.results[0]].local_shape);
      }
    }
    return MatmulFlops(c.programs[0]) + linear;
  };
  EXPECT_EQ(flops("serial", ""), all);
  EXPECT_EQ(flops("megatron", "dp=1,tp=2"), all / 2);
  EXPECT_EQ(flops("megatron", "dp=2,tp=2"), all / 4);
}

// An embedding reads the rows that it returns, not its whole table.
TEST(Profile, BytesOfALookupAreThoseOfItsRows) {
  Compiled c("serial", "");
  const Program& p = c.programs[0];
  int found = 0;
  for (const Instruction& i : p.instructions) {
    if (i.op != "embedding" || p.buffers[i.operands[0]].type.shape[0] != 96) continue;
    ++found;
    EXPECT_EQ(i.bytes, 2 * p.buffers[i.results[0]].bytes + p.buffers[i.operands[1]].bytes);
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace shardc::testing
