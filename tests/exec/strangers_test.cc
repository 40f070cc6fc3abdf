// Models that the importer was not written for: other architectures of transformers, two layers of
// 24, from both exporters, against goldens computed by PyTorch in float64.
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/diagnostic.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

struct Stranger {
  const char *model, *file, *loss;
  int64_t large;       // all_reduces of batch * sequence * hidden with tp=2
  bool only_those;     // but for the cross entropy's two
  int attentions = 2;  // a bias of the scores that is trained makes it none
  double tolerance = 1e-4;
};

// What each one brings: LLaMA (GQA, RoPE, SwiGLU), NeoX (parallel residual, qkv by heads), BERT (no
// causality, a folded mask of zeros, folded segment rows, a loss without shift), OPT (folded
// positions with the batch in them), Falcon (multi-query, positions picked by GatherND), BLOOM
// (a slope per head, added to flattened heads), ALBERT (one layer run twice), T5 (learned biases of
// the scores), GPT-J in f16 (scores in f32, one norm for two branches that are added).
const Stranger kStrangers[] = {
    {"llama", "torchscript_dynamic", "lm", 10, true},
    {"neox", "dynamo_static", "lm", 8, true},  // its branches are reduced once, forward
    {"bert", "dynamo_static", "ce", 10, true},
    {"opt", "dynamo_static", "lm", 10, true},
    {"falcon", "dynamo_static", "lm", 6, false},
    {"bloom", "dynamo_dynamic", "lm", 10, true},
    {"albert", "dynamo_static", "ce", 8, false},
    {"t5enc", "torchscript_dynamic", "dot", 9, false, 0},
    {"gptj_half", "dynamo_static", "lm", 6, true, 2, 1e-2},
};

constexpr char kBatch[] = "b2_s8";

Export ExportOf(const Stranger& s) {
  Export e;
  e.model = StrCat("../strangers/", s.model);
  e.name = s.file;
  e.dynamic = e.name.ends_with("dynamic");
  e.loss = s.loss;
  return e;
}

RunResult RunStranger(const Stranger& s, const char* spec, const char* mesh) {
  Export e = ExportOf(s);
  RunSetup setup;
  setup.spec = spec;
  setup.mesh = mesh;
  setup.pipeline.loss = e.loss;
  Tensors inputs = InputsFor(e, kBatch);
  if (e.loss == "dot") inputs.erase("labels");
  return CompileAndRun(ImportFor(e, kBatch), setup, inputs);
}

class Strangers : public ::testing::TestWithParam<Stranger> {};

TEST_P(Strangers, EqualTheGoldenOnEveryMesh) {
  const Stranger& s = GetParam();
  const std::pair<const char*, const char*> settings[] = {
      {"serial", ""},       {"megatron", "tp=2"}, {"megatron", "tp=3"},
      {"megatron", "tp=4"}, {"dp", "dp=2"},       {"megatron", "dp=2,tp=2"}};
  for (auto [spec, mesh] : settings) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    try {
      EXPECT_EQ(CompareWithGolden(ExportOf(s), kBatch, RunStranger(s, spec, mesh), s.tolerance),
                "");
    } catch (const Diagnostic& d) {
      ADD_FAILURE() << d.what();
    }
  }
}

TEST_P(Strangers, HaveTheirAttentionRecovered) {
  Graph graph = ImportFor(ExportOf(GetParam()), kBatch);
  auto attentions = std::count_if(graph.ops().begin(), graph.ops().end(),
                                  [](const auto& op) { return op->name() == "attention"; });
  EXPECT_EQ(attentions, GetParam().attentions);
}

TEST_P(Strangers, CommunicateAsMegatronDoes) {
  const Stranger& s = GetParam();
  int64_t large = 0, others = 0;
  for (const Collective& c : RunStranger(s, "megatron", "tp=2").collectives) {
    (c.kind == CollectiveKind::kAllReduce && c.elements == 2 * 8 * 24 ? large : others) += 1;
  }
  EXPECT_EQ(large, s.large);
  if (s.only_those) {
    EXPECT_LE(others, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Strangers, ::testing::ValuesIn(kStrangers),
                         [](const auto& info) { return std::string(info.param.model); });

}  // namespace
}  // namespace shardc::testing
