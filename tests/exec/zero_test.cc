// ZeRO: what is cut, what travels, and what is held.
#include <gtest/gtest.h>

#include "frontend/gpt_config.h"
#include "ir/text.h"
#include "passes/emit.h"
#include "passes/loss.h"
#include "tests/exec/models.h"
#include "tests/exec/training.h"

namespace shardc::testing {
namespace {

// A vector that is too large to stay whole, and does not divide.
TEST(Zero, LongVectors) {
  auto build = [] {
    return ParseGraph(R"(graph @g(%x: f32[6, 20001]) -> (y: %y) {
      %w = param "w" : f32[20001]
      %y = mul %x, %w : f32[6, 20001]
    })",
                      "long.shardc");
  };
  RunSetup setup;
  setup.pipeline.loss = "dot";
  setup.pipeline.optimizer = {.kind = "adamw", .rate = {.lr = 0.1}, .eps = 1e-3, .clip_norm = 1};
  setup.steps = 3;
  Graph shapes = build();
  AttachLoss(shapes, "dot", "");
  const Tensors inputs = RandomInputs(shapes, 0, 3);
  RunResult want = CompileAndRun(build(), setup, inputs);
  for (int stage : {1, 3}) {
    for (const char* mesh : {"dp=2", "dp=3"}) {
      setup.spec = WithZero("dp", stage);
      setup.mesh = mesh;
      RunResult got = CompileAndRun(build(), setup, inputs);
      EXPECT_NE(got.lowered.find("param \"w\" : f32[20001@dp]"), std::string::npos) << got.lowered;
      EXPECT_EQ(CompareSteps(got.grad_norms, want.grad_norms, 1e-5), "");
      ExpectTensors(got.states, want.states, 1e-5);
    }
  }
}

// --- what travels

struct Traffic {
  int64_t count = 0, elements = 0;
  bool operator==(const Traffic&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Traffic& t) {
  return out << t.count << " of " << t.elements << " elements";
}

struct Compiled {
  Graph graph;
  Program program;

  Traffic Of(CollectiveKind kind, Phase phase, size_t smallest = 2) const {
    Traffic sum;
    for (const Instruction& i : program.instructions) {
      if (i.collective < 0) continue;
      const Collective& c = program.collectives[i.collective];
      if (c.kind != kind || i.phase != phase || c.elements < static_cast<int64_t>(smallest))
        continue;
      ++sum.count;
      sum.elements += c.elements;
    }
    return sum;
  }

  int64_t StateBytes(const char* op) const {
    int64_t bytes = 0;
    for (const auto& o : graph.ops()) {
      if (o->name() == op) bytes += LocalBytes(o->out(), graph.mesh);
    }
    return bytes;
  }
};

Compiled CompileFor(const std::string& model, const std::string& spec, const std::string& mesh,
                    const PipelineOptions& options) {
  Compiled c{BuildGpt(ParseBuiltin(model)), {}};
  Spec parsed = SpecOf(spec);
  CompileGraph(c.graph, parsed, MeshFor(parsed, Mesh::Parse(mesh)), options);
  c.program = EmitProgram(c.graph);
  return c;
}

// Matrices that the backward reads again, and that it does not (embeddings); vectors.
struct Weights {
  Traffic read_again, looked_up, vectors;
};

Weights WeightsOfGpt(int64_t layers, int64_t h, int64_t vocab, int64_t positions) {
  return {{4 * layers + 1, layers * 12 * h * h + vocab * h},
          {1, positions * h},
          {10 * layers + 2, layers * (2 * h + 3 * h + h + 2 * h + 4 * h + h) + 2 * h}};
}

class ZeroTraffic : public ::testing::TestWithParam<int> {};

// One reduce_scatter and one all_gather of each matrix in the place of an all_reduce; in stage 3
// another all_gather. The vectors' gradients travel together.
TEST_P(ZeroTraffic, PerStage) {
  const int64_t layers = 3, h = 64, vocab = 256, positions = 16;
  const std::string model =
      "builtin:gpt?layers=3,hidden=64,heads=4,vocab=256,seq=16,batch=8,tied=true";
  const int dp = GetParam();
  const std::string mesh = StrCat("dp=", dp);
  const Weights w = WeightsOfGpt(layers, h, vocab, positions);
  const Traffic matrices{w.read_again.count + w.looked_up.count,
                         w.read_again.elements + w.looked_up.elements};
  PipelineOptions options;
  options.optimizer.kind = "adamw";
  const Compiled plain = CompileFor(model, "dp", mesh, options);
  for (int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const Compiled c = CompileFor(model, WithZero("dp", stage), mesh, options);
    EXPECT_EQ(c.Of(CollectiveKind::kReduceScatter, Phase::kBackward), matrices);
    EXPECT_EQ(c.Of(CollectiveKind::kAllGather, Phase::kForward), matrices);
    EXPECT_EQ(c.Of(CollectiveKind::kAllGather, Phase::kBackward),
              stage == 3 ? w.read_again : Traffic());
    EXPECT_EQ(c.Of(CollectiveKind::kAllReduce, Phase::kBackward), (Traffic{1, w.vectors.elements}));
    // The norm of what is cut, a scalar.
    EXPECT_EQ(c.Of(CollectiveKind::kAllReduce, Phase::kOptimizer, 1), (Traffic{1, 1}));
    EXPECT_EQ(c.Of(CollectiveKind::kAllGather, Phase::kOptimizer, 1), Traffic());

    const int64_t kept = 4 * (matrices.elements / dp + w.vectors.elements);
    EXPECT_EQ(c.StateBytes("param"), kept);
    EXPECT_EQ(c.StateBytes("state"), 2 * kept + 8);  // and the count of steps
    auto total = [](const Compiled& x) {
      return x.StateBytes("param") + x.StateBytes("state") + x.program.arena_bytes;
    };
    EXPECT_LT(total(c), total(plain));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZeroTraffic, ::testing::Values(2, 4, 8));

// What is gathered is what the products read.
TEST(Zero, GathersHalves) {
  PipelineOptions options;
  options.optimizer.kind = "adamw";
  options.precision.compute = "bf16";
  const Compiled c =
      CompileFor("builtin:gpt?layers=2,hidden=64,heads=4,vocab=256,seq=16,batch=8,tied=false",
                 WithZero("dp", 3), "dp=2", options);
  Traffic halves, whole;
  for (const Collective& x : c.program.collectives) {
    if (x.kind != CollectiveKind::kAllGather) continue;
    Traffic& sum = x.dtype == DType::kBF16 ? halves : whole;
    ++sum.count;
    sum.elements += x.elements;
  }
  const int64_t read = 2 * 12 * 64 * 64 + 256 * 64;
  EXPECT_EQ(halves, (Traffic{2 * 9, 2 * read}));
  EXPECT_EQ(whole, (Traffic{2, (256 + 16) * 64}));  // tables of embeddings
}

// A table that is read in f32 and, tied, by a product in bf16 is gathered in f32 and cast in stage
// 3, and the backward's product has it gathered in bf16.
TEST(Zero, GathersATiedTable) {
  PipelineOptions options;
  options.optimizer.kind = "adamw";
  options.precision.compute = "bf16";
  for (int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    const Compiled c =
        CompileFor("builtin:gpt?layers=2,hidden=64,heads=4,vocab=256,seq=16,batch=8,tied=true",
                   WithZero("dp", stage), "dp=2", options);
    int64_t halves = 0, whole = 0;
    for (const Collective& x : c.program.collectives) {
      if (x.kind != CollectiveKind::kAllGather) continue;
      (x.dtype == DType::kBF16 ? halves : whole) += x.elements;
    }
    const int64_t layers = 2 * 12 * 64 * 64, table = 256 * 64;
    EXPECT_EQ(halves, (stage == 3 ? 2 : 1) * layers + table);
    EXPECT_EQ(whole, table + 16 * 64);
  }
}

// With few tokens it is weights and gradients that take the room. In stage 3 they are never all
// whole, also where the backward makes layers again: it gathers what these read once.
TEST(Zero, Stage3FreesWhatItGathered) {
  const std::string model = "builtin:gpt?layers=12,hidden=64,heads=4,vocab=64,seq=2,batch=2";
  const Weights w = WeightsOfGpt(12, 64, 64, 2);
  const int64_t whole = 4 * w.read_again.elements;
  PipelineOptions options;
  options.optimizer.kind = "adamw";
  EXPECT_GT(CompileFor(model, WithZero("dp", 2), "dp=2", options).program.arena_bytes, whole);
  for (const char* recompute : {"none", "selective", "full"}) {
    SCOPED_TRACE(recompute);
    options.recompute = recompute;
    const Compiled c = CompileFor(model, WithZero("dp", 3), "dp=2", options);
    // Gradients, half of them here, and what is whole of two layers at most.
    EXPECT_LT(c.program.arena_bytes, whole / 2 + whole / 6);
    EXPECT_EQ(c.Of(CollectiveKind::kAllGather, Phase::kForward).count, w.read_again.count + 1);
    EXPECT_EQ(c.Of(CollectiveKind::kAllGather, Phase::kBackward), w.read_again);
  }
}

// A weight is moved rather than what few tokens make, whatever is fewer bytes: data parallelism.
TEST(Zero, FewTokens) {
  PipelineOptions options;
  options.optimizer.kind = "adamw";
  const Compiled c = CompileFor("builtin:gpt?layers=1,hidden=64,heads=4,vocab=256,seq=2,batch=2",
                                WithZero("dp", 2), "dp=2", options);
  EXPECT_EQ(c.Of(CollectiveKind::kReduceScatter, Phase::kBackward).count, 6);
  EXPECT_EQ(c.Of(CollectiveKind::kAllGather, Phase::kForward).count, 6);
  EXPECT_EQ(c.Of(CollectiveKind::kAllGather, Phase::kBackward), Traffic());
  EXPECT_EQ(c.Of(CollectiveKind::kAllToAll, Phase::kBackward), Traffic());
}

}  // namespace
}  // namespace shardc::testing
