// A cut sequence: each rank's queries meet all keys and values, which are gathered, and their
// gradients are summed and cut again; or ranks exchange tokens for heads. Nothing else of a layer
// travels but sums of weights' gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "frontend/gpt_config.h"
#include "ir/attention_part.h"
#include "ir/diagnostic.h"
#include "ir/text.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;

Export ExportOf(const std::string& model, const std::string& name) {
  for (const Export& e : AllExports()) {
    if (e.model == model && e.name == name) return e;
  }
  throw InternalError(StrCat("no ", model, "/", name));
}

struct Model {
  const char *model, *name;
  int64_t layers, keys;  // elements of the keys of a layer
};

class ContextParallel : public ::testing::TestWithParam<Model> {};

TEST_P(ContextParallel, GathersKeysAndValuesAlone) {
  const Model& m = GetParam();
  const Export e = ExportOf(m.model, m.name);
  RunSetup setup;
  setup.spec = "megatron";
  setup.mesh = "cp=2";
  setup.pipeline.loss = e.loss;
  const RunResult r = CompileAndRun(ImportFor(e, "b2_s32"), setup, InputsFor(e, "b2_s32"));
  int64_t gathers = 0, scatters = 0;
  for (const Collective& c : r.collectives) {
    if (c.kind == CollectiveKind::kAllReduce) continue;
    const bool gather = c.kind == CollectiveKind::kAllGather;
    (gather ? gathers : scatters) += c.elements == m.keys;
    // The gradient of a table of positions has no batch.
    EXPECT_TRUE(c.elements == m.keys || (gather && c.elements < m.keys)) << c.op << c.elements;
  }
  EXPECT_EQ(gathers, 2 * m.layers);
  EXPECT_EQ(scatters, 2 * m.layers);
}

INSTANTIATE_TEST_SUITE_P(Exports, ContextParallel,
                         ::testing::Values(Model{"hf_gpt2", "dynamo_static", 3, 2 * 32 * 4 * 16},
                                           Model{"gqa_swiglu", "dynamo_static", 2, 2 * 32 * 2 * 8}),
                         [](const auto& info) { return std::string(info.param.model); });

// Ulysses: q, k and v change from all heads of some tokens to some heads of all tokens, and what
// attention makes changes back; gradients go the other way. With many tokens, as else a gradient of
// a weight may be made in parts.
TEST(Ulysses, ExchangesHeadsForTokens) {
  constexpr int64_t kTokens = 8 * 128, kQuery = 48, kKey = 16, kLayers = 2;
  const std::string model = "builtin:gpt?layers=2,hidden=48,heads=6,seq=128,batch=8";
  for (auto [more, key] : {std::pair(",qkv=fused", kQuery),
                           {",qkv=separate,bias=false", kQuery},
                           {",qkv=separate,kv_heads=2,positions=rope", kKey}}) {
    SCOPED_TRACE(more);
    RunSetup setup;
    setup.pipeline.loss = "lm";
    Graph graph = BuildGpt(ParseBuiltin(model + more));
    Tensors inputs = RandomTokens(graph, 3);
    const RunResult serial = CompileAndRun(BuildGpt(ParseBuiltin(model + more)), setup, inputs);
    setup.spec = "ulysses";
    setup.mesh = "cp=2";
    const RunResult r = CompileAndRun(std::move(graph), setup, inputs);
    EXPECT_LE(WorstDifference(r.outputs.at("loss"), serial.outputs.at("loss")), 1e-5);
    int64_t exchanged = 0;
    for (const Collective& c : r.collectives) {
      if (c.kind == CollectiveKind::kAllToAll) exchanged += c.elements;
      // Gradients of biases, and of a table of positions.
      if (c.kind == CollectiveKind::kAllGather) {
        EXPECT_LE(c.elements, 128 * 48) << c.op;
      }
      EXPECT_NE(c.kind, CollectiveKind::kReduceScatter) << c.op;
    }
    // Of what a rank has, forward and backward.
    EXPECT_EQ(exchanged, 2 * kLayers * kTokens / 2 * (2 * kQuery + 2 * key));
  }
}

struct Heads {
  const char *heads, *mesh;
  bool dealt;  // whether queries can be dealt out to all ranks of tp and cp
};

class UlyssesHeads : public ::testing::TestWithParam<Heads> {};

// Where kv heads are fewer than the ranks each is repeated on some; where heads cannot be dealt out
// to the ranks at all, keys and values are gathered and no query travels.
TEST_P(UlyssesHeads, EqualTheSerialModel) {
  const auto& [heads, mesh, dealt] = GetParam();
  for (const char* qkv : {"fused", "separate"}) {
    SCOPED_TRACE(qkv);
    const std::string model = StrCat(
        "builtin:gpt?layers=1,hidden=48,seq=64,batch=4,positions=rope,init_std=0.3,qkv=", qkv, ",",
        heads);
    RunSetup setup;
    setup.pipeline.loss = "lm";
    const Tensors inputs = RandomTokens(BuildGpt(ParseBuiltin(model)), 3);
    const RunResult serial = CompileAndRun(BuildGpt(ParseBuiltin(model)), setup, inputs);
    setup.spec = "ulysses";
    setup.mesh = mesh;
    const RunResult r = CompileAndRun(BuildGpt(ParseBuiltin(model)), setup, inputs);
    for (const auto& [name, expected] : serial.outputs) {
      EXPECT_LE(WorstDifference(r.outputs.at(name), expected), 2e-5) << name;
    }
    const auto exchanges = std::ranges::count_if(
        r.collectives, [](const Collective& c) { return c.kind == CollectiveKind::kAllToAll; });
    // Of queries and of what attention makes, forward and backward, and of keys that are cut too.
    EXPECT_TRUE(dealt ? exchanges >= 4 : exchanges == 0) << exchanges;
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, UlyssesHeads,
                         ::testing::Values(Heads{"heads=6,kv_heads=3", "cp=2", true},
                                           Heads{"heads=6,kv_heads=2", "cp=3", true},
                                           Heads{"heads=6,kv_heads=1", "tp=2,cp=3", true},
                                           Heads{"heads=6,kv_heads=2", "tp=2,cp=3", true},
                                           Heads{"heads=6,kv_heads=2", "tp=2,cp=2", true},
                                           Heads{"heads=12,kv_heads=4", "tp=2,cp=2", true},
                                           Heads{"heads=12,kv_heads=4", "tp=2,cp=4", true},
                                           Heads{"heads=12,kv_heads=4", "cp=4,tp=2", true},
                                           Heads{"heads=12,kv_heads=2", "tp=4,cp=3", true},
                                           Heads{"heads=8,kv_heads=4", "cp=8", true},
                                           Heads{"heads=6,kv_heads=3", "tp=2,cp=2", false},
                                           Heads{"heads=6", "tp=2,cp=4", false}),
                         [](const auto& info) {
                           std::string name = StrCat(info.param.heads, "_", info.param.mesh);
                           std::erase_if(name, [](char c) { return c == ',' || c == '='; });
                           return name;
                         });

// A rank's queries after the past: all three parts see all of it.
constexpr char kAfterPast[] =
    R"(graph @g(%q: f32[2, 4, 7, 3], %k: f32[2, 2, 12, 3], %v: f32[2, 2, 12, 3]) -> (o: %o) {
  %o, %lse = attention %q, %k, %v {causal=true, scale=0.5} : f32[2, 4, 7, 3], f32[2, 4, 7]
}
)";

RunResult RunAfterPast(const std::string& mesh, const std::string& spec) {
  Graph graph = ParseGraph(kAfterPast, "after past");
  const Tensors inputs = RandomInputs(graph, 1, 7);
  RunSetup setup;
  setup.mesh = mesh;
  setup.spec = spec;
  setup.pipeline.loss = "none";
  return CompileAndRun(std::move(graph), setup, inputs);
}

TEST(ContextParallelAttention, KnowsItsPlaceAfterThePast) {
  const RunResult whole = RunAfterPast("", "serial");
  const RunResult r = RunAfterPast("cp=3",
                                   "mesh { axis { name: 'cp' } }\n"
                                   "input { match: 'q' shard_spec { dims: 2 axes: 'cp' } }\n");
  EXPECT_LE(WorstDifference(r.outputs.at("o"), whole.outputs.at("o")), 1e-6);
  EXPECT_TRUE(r.collectives.empty());
}

// Two stretches of queries on each rank: an attention for each, and nothing travels.
TEST(ContextParallelAttention, RunsOnceForEachStretchOfQueries) {
  const RunResult whole = RunAfterPast("", "serial");
  const RunResult r = RunAfterPast(
      "cp=2",
      "mesh { axis { name: 'cp' } }\n"
      "input { match: 'q' shard_spec { dims: 2 axes: 'cp' segments: 3 segments: 4 } }\n");
  EXPECT_LE(WorstDifference(r.outputs.at("o"), whole.outputs.at("o")), 1e-6);
  EXPECT_TRUE(r.collectives.empty());
  EXPECT_THAT(r.lowered, HasSubstr("origin=[0, 0, 3, 0]"));
}

// Of the scores of a causal attention every rank has about as many to compute.
TEST(ContextParallelAttention, IsShared) {
  Graph graph = BuildGpt(ParseBuiltin("builtin:gpt?layers=1,hidden=16,heads=2,seq=64,batch=1"));
  RunSetup setup;
  setup.mesh = "cp=4";
  setup.spec = "megatron";
  setup.pipeline.loss = "lm";
  Tensors inputs = RandomTokens(graph, 3);
  const RunResult r = CompileAndRun(std::move(graph), setup, inputs);
  // Of four segments with 16 queries rank k has queries 4 k to 4 k + 3: of the whole, the first
  // sees as many keys as its place says.
  const Graph lowered = ParseGraph(r.lowered, "lowered");
  std::vector<double> scores(4);
  for (const auto& op : lowered.ops()) {
    if (op->name() != "attention") continue;
    const int64_t queries = op->out().shape[1];
    EXPECT_EQ(op->out().sharding.dims[1].axes.size(), 1);
    EXPECT_TRUE(op->out().sharding.dims[1].segments.empty());
    for (int64_t i = 0; i < queries; ++i) {
      scores[i * 4 / queries] +=
          static_cast<double>(i + 1 + CausalDiagonal(op->attrs, queries, op->in(1).shape[1]));
    }
  }
  const auto [least, most] = std::minmax_element(scores.begin(), scores.end());
  EXPECT_EQ(std::accumulate(scores.begin(), scores.end(), 0.0), 64 * 65 / 2);
  EXPECT_LE(*most, 1.5 * *least);
}

}  // namespace
}  // namespace shardc::testing
