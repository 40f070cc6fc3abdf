// A cut sequence: each rank's queries meet all keys and values, which are gathered, and their
// gradients are summed and cut again. Nothing else of a layer travels but sums of weights'
// gradients.
#include <gtest/gtest.h>

#include "ir/diagnostic.h"
#include "ir/text.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

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

// Two stretches of queries on each rank have no one place: they are gathered.
TEST(ContextParallelAttention, WantsOneStretchOfQueries) {
  const RunResult whole = RunAfterPast("", "serial");
  const RunResult r = RunAfterPast(
      "cp=2",
      "mesh { axis { name: 'cp' } }\n"
      "input { match: 'q' shard_spec { dims: 2 axes: 'cp' segments: 3 segments: 4 } }\n");
  EXPECT_LE(WorstDifference(r.outputs.at("o"), whole.outputs.at("o")), 1e-6);
  ASSERT_EQ(r.collectives.size(), 1u);
  EXPECT_EQ(r.collectives[0].op, "attention");
}

}  // namespace
}  // namespace shardc::testing
