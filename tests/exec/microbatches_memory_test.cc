// What a rank holds does not grow with the number of microbatches.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "frontend/gpt_config.h"
#include "passes/emit.h"
#include "passes/pipeline.h"
#include "tests/exec/training.h"

namespace shardc::testing {
namespace {

struct Case {
  const char *spec, *mesh, *precision = "f32", *recompute = "none";
  int zero = 0, virtual_stages = 1;
  bool clip = false;
  int together = 1;
};

class MicrobatchesMemoryOf : public ::testing::TestWithParam<Case> {};

int64_t ArenaOf(const Case& c, int microbatches, const std::string& form,
                const std::string& optimizer = "") {
  Graph graph = BuildGpt(ParseBuiltin(
      StrCat("builtin:gpt?hidden=32,heads=4,vocab=61,seq=16,batch=", 4 * microbatches, ",", form)));
  Spec spec = LoadSpec(c.spec);
  spec.microbatches.count = microbatches;
  spec.microbatches.together = c.together;
  spec.pipeline.virtual_stages = c.virtual_stages;
  if (c.zero > 0) spec.zero.stage = c.zero;
  PipelineOptions options;
  options.loss = "lm";
  options.drop = {"logits"};
  options.precision.compute = c.precision;
  options.recompute = c.recompute;
  options.optimizer.kind = c.zero > 0 || c.clip ? "adamw" : optimizer;
  if (c.clip) options.optimizer.clip_norm = 1;
  CompileGraph(graph, spec, Mesh::Parse(c.mesh), options);
  int64_t largest = 0;
  for (const Program& p : EmitStages(graph).stages) largest = std::max(largest, p.arena_bytes);
  return largest;
}

// Token ids and masks of the whole batch are held, and little else.
TEST_P(MicrobatchesMemoryOf, DoesNotGrowWithTheirNumber) {
  for (const char* form :
       {"layers=4",
        "layers=4,tied=false,qkv=separate,kv_heads=2,activation=swiglu,norm=rms_norm,"
        "positions=rope"}) {
    SCOPED_TRACE(form);
    std::vector<std::pair<const char*, int>> plans = {{"sgd", 6}};
    // From 12 on: until then buffers of a pipeline come to lie otherwise.
    if (GetParam().zero == 0 && !GetParam().clip) plans.emplace_back("", 12);
    for (const auto& [optimizer, few] : plans) {
      SCOPED_TRACE(StrCat(optimizer, few));
      const auto with_few = static_cast<double>(ArenaOf(GetParam(), few, form, optimizer));
      EXPECT_LT(static_cast<double>(ArenaOf(GetParam(), 2 * few, form, optimizer)),
                1.05 * with_few);
    }
  }
}

// Sums of f32 gradients are cut over 4 ranks, from the first microbatch on.
TEST(MicrobatchesMemory, ZerosSecondStageHoldsNoWholeGradients) {
  for (const char* precision : {"f32", "bf16"}) {
    SCOPED_TRACE(precision);
    constexpr const char* kForm = "layers=4,tied=false";
    const int64_t one = ArenaOf({"megatron", "dp=4", precision, "none", 1}, 4, kForm);
    const int64_t two = ArenaOf({"megatron", "dp=4", precision, "none", 2}, 4, kForm);
    constexpr int64_t kProducts = 4 * 12 * 32 * 32;  // elements of the layers' weights
    EXPECT_LT(two, one - kProducts * 4 / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MicrobatchesMemoryOf,
    ::testing::Values(
        Case{"megatron", "dp=2"}, Case{"megatron", "dp=2", "bf16"},
        Case{"megatron", "dp=2,tp=2", "bf16"}, Case{"megatron_sp", "dp=2,tp=2", "bf16"},
        Case{"megatron", "tp=4", "bf16"}, Case{"megatron", "dp=2", "bf16", "full"},
        Case{"megatron", "dp=2", "f32", "selective"}, Case{"megatron", "dp=2", "bf16", "none", 1},
        Case{"megatron", "dp=2", "bf16", "none", 2}, Case{"megatron", "dp=2", "bf16", "none", 3},
        Case{"megatron", "dp=2,tp=2", "bf16", "none", 0, 1, true},
        Case{"megatron_sp", "dp=2,tp=2", "bf16", "none", 3, 1, false, 2},
        Case{"megatron", "tp=2", "f32", "full", 0, 1, true, 3},
        Case{"megatron", "pp=2,dp=2", "bf16"}, Case{"megatron", "pp=2,dp=2", "bf16", "none", 0, 2},
        Case{"megatron_sp", "pp=2,dp=2,tp=2", "bf16", "full", 1}),
    [](const auto& info) {
      const Case& c = info.param;
      return TestName(StrCat(c.spec, "_", c.mesh, "_", c.precision, "_", c.recompute,
                             c.zero ? StrCat("_zero", c.zero) : "",
                             c.virtual_stages > 1 ? "_virtual" : "", c.clip ? "_clip" : "",
                             c.together > 1 ? "_together" : ""));
    });

}  // namespace
}  // namespace shardc::testing
