#include "tests/exec/strangers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/diagnostic.h"

namespace shardc::testing {
namespace {

RunResult RunStranger(const Stranger& s, const char* spec, const char* mesh,
                      const char* precision = "f32", int microbatches = 1) {
  RunSetup setup;
  setup.pipeline.precision.compute = precision;
  setup.spec = spec;
  setup.mesh = mesh;
  setup.microbatches = microbatches;
  return RunStranger(s, setup);
}

class Strangers : public ::testing::TestWithParam<Stranger> {};

TEST_P(Strangers, EqualTheGoldenOnEveryMesh) {
  const Stranger& s = GetParam();
  const std::pair<const char*, const char*> settings[] = {
      {"serial", ""},           {"megatron", "tp=2"},
      {"megatron", "tp=3"},     {"megatron", "tp=4"},
      {"dp", "dp=2"},           {"megatron", "dp=2,tp=2"},
      {"megatron", "cp=2"},     {"megatron_sp", "cp=2,tp=2"},
      {"ulysses", "tp=2,cp=2"}, {"megatron", "tp=8"},
      {"megatron_sp", "tp=5"}};
  for (auto [spec, mesh] : settings) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    try {
      EXPECT_EQ(CompareWithGolden(s, RunStranger(s, spec, mesh)), "");
    } catch (const Diagnostic& d) {
      ADD_FAILURE() << d.what();
    }
  }
}

// Two stages of one layer each: masks, positions and tables are made on both, a table that both
// use is on both, and so are all weights of a layer that is run twice.
TEST_P(Strangers, EqualTheGoldenInAPipeline) {
  const Stranger& s = GetParam();
  for (auto [mesh, microbatches] : {std::pair("pp=2", 1), {"pp=2", 2}, {"pp=2,tp=2", 2}}) {
    SCOPED_TRACE(StrCat(mesh, ", ", microbatches, " microbatches"));
    RunResult got = RunStranger(s, "megatron", mesh, "f32", microbatches);
    EXPECT_NE(got.lowered.find("send_recv"), std::string::npos);
    EXPECT_EQ(CompareWithGolden(s, got), "");
  }
}

TEST_P(Strangers, HaveTheirAttentionRecovered) {
  const Stranger& s = GetParam();
  Graph graph = ImportFor(StrangerExport(s.model, s.file, s.loss), "b2_s8");
  auto attentions = std::count_if(graph.ops().begin(), graph.ops().end(),
                                  [](const auto& op) { return op->name() == "attention"; });
  EXPECT_EQ(attentions, GetParam().attentions);
}

bool IsLarge(const Collective& c, const Stranger& s) {
  return c.kind == CollectiveKind::kAllReduce && c.elements == 2 * 8 * s.hidden;
}

TEST_P(Strangers, CommunicateAsMegatronDoes) {
  const Stranger& s = GetParam();
  int64_t large = 0, others = 0;
  for (const Collective& c : RunStranger(s, "megatron", "tp=2").collectives) {
    // Where two branches are reduced once, behind their norms, the norms' weights are too.
    if (IsLarge(c, s)) {
      ++large;
    } else if (c.op != "layer_norm_grad") {
      ++others;
    }
  }
  EXPECT_EQ(large, s.large);
  if (s.only_those) {
    EXPECT_LE(others, 2);
  }
}

// Two kv heads for four ranks, in attention and where scores have more than it knows: each is on
// two ranks, and nothing but sums is sent.
TEST(Strangers, RepeatKvHeadsThatAreTooFew) {
  for (const Stranger& s : AllStrangers()) {
    const std::string model = s.model;
    if (model != "llama" && model != "gemma2") continue;
    for (const Collective& c : RunStranger(s, "megatron", "tp=4").collectives) {
      EXPECT_EQ(c.kind, CollectiveKind::kAllReduce) << model << ::testing::PrintToString(c.why);
    }
  }
}

// The sequence is cut wherever the model has it: nothing goes from one dim to another.
TEST_P(Strangers, KeepTheSequenceCut) {
  const Stranger& s = GetParam();
  if (!s.only_those) GTEST_SKIP() << "its blocks are others";
  for (const Collective& c : RunStranger(s, "megatron_sp", "tp=2").collectives) {
    EXPECT_NE(c.kind, CollectiveKind::kAllToAll) << ::testing::PrintToString(c.why);
  }
}

// Each rank has some of the experts, for all tokens, and whole or cut by columns and rows over
// another axis: a layer is reduced once forward and once backward, and the scores' gradients are
// gathered.
TEST(Strangers, ExpertsMayBeDealtOut) {
  const std::string spec = R"(mesh { axis { name: "dp" } axis { name: "ep" } axis { name: "tp" } }
    param { match: "*.experts.gate_up_proj*" shard_spec { dims: 0 axes: "ep" dims: -1 axes: "tp" } }
    param { match: "*.experts.down_proj" shard_spec { dims: 0 axes: "ep" dims: -2 axes: "tp" } }
    param { match: "*.experts.down_proj_bias" shard_spec { dims: 0 axes: "ep" } may_match_nothing: true }
    input { match: "*" shard_spec { dims: 0 axes: "dp" } }
    )";
  for (const Stranger& s : AllStrangers()) {
    const std::string model = s.model;
    if (model != "llama4" && model != "gpt_oss") continue;
    for (const char* mesh : {"ep=2", "ep=3", "ep=4", "dp=2,ep=2", "ep=2,tp=2"}) {
      SCOPED_TRACE(StrCat(model, " ", mesh));
      RunResult got = RunStranger(s, spec.c_str(), mesh);
      EXPECT_EQ(CompareWithGolden(s, got), "");
      if (std::string(mesh) != "ep=2") continue;
      auto large = std::count_if(got.collectives.begin(), got.collectives.end(),
                                 [&](const Collective& c) { return IsLarge(c, s); });
      EXPECT_EQ(large, 4);
      for (const Collective& c : got.collectives) EXPECT_TRUE(IsLarge(c, s) || c.elements < 384);
    }
  }
}

// Each layer has eight experts, of which a token goes to three: the gradients of those three
// weights travel, together.
TEST(Strangers, ScoresOfExpertsAreReducedOnceALayer) {
  for (const Stranger& s : AllStrangers()) {
    if (s.model != std::string("deepseek_v3")) continue;
    int64_t chosen = 0, of_one = 0;
    for (const Collective& c : RunStranger(s, "megatron", "tp=2").collectives) {
      chosen += c.elements == 2 * 8 * 3;
      of_one += c.elements == 2 * 8 && !c.max;
    }
    EXPECT_EQ(chosen, 2);
    EXPECT_EQ(of_one, 0);
  }
}

// What is added in f32 is reduced once, whatever the number of products that it comes from, and a
// cast is cut as what it casts.
TEST_P(Strangers, CommunicateNoMoreInMixedPrecision) {
  const Stranger& s = GetParam();
  if (s.tolerance > 1e-3) GTEST_SKIP() << "not a model in f32";
  auto count = [&](const char* spec, const char* precision) {
    return static_cast<int>(RunStranger(s, spec, "tp=2", precision).collectives.size());
  };
  // Of the filters of Mamba's B and C sums over all positions travel there, which are less than
  // what they are sums of.
  const int filters = s.model == std::string("bamba") ? 2 : 0;
  EXPECT_LE(count("megatron", "bf16"), count("megatron", "f32") + filters);
  EXPECT_LE(count("megatron_sp", "bf16"), count("megatron_sp", "f32") + 1);
}

INSTANTIATE_TEST_SUITE_P(All, Strangers, ::testing::ValuesIn(AllStrangers()),
                         [](const auto& info) { return std::string(info.param.model); });

}  // namespace
}  // namespace shardc::testing
