// Pipeline stages: the same training as the serial model's, each stage with its own layers.
#include <gtest/gtest.h>

#include <random>

#include "frontend/gpt_config.h"
#include "ir/op_def.h"
#include "passes/loss.h"
#include "tests/exec/models.h"
#include "tests/exec/training.h"

namespace shardc::testing {
namespace {

constexpr const char* kTied = "layers=4,hidden=40,heads=5,vocab=97,seq=6,batch=4";
constexpr const char* kUntied = "layers=4,hidden=40,heads=4,vocab=97,seq=6,batch=4,tied=false";
constexpr const char* kLlama =
    "layers=4,hidden=32,heads=4,vocab=50,seq=6,batch=4,tied=false,qkv=separate,activation=swiglu,"
    "norm=rms_norm,positions=rope,kv_heads=2";

const char* FormOf(const char* model) {
  return model == kTied ? "tied" : model == kUntied ? "untied" : "llama";
}

struct Case {
  const char* model;
  const char* spec;
  const char* mesh;
  std::string more;
  int zero = 0;
  int microbatches = 1, virtual_stages = 1;
};

class Pipeline : public ::testing::TestWithParam<Case> {};

TEST_P(Pipeline, TrainsAlike) {
  const Case& c = GetParam();
  RunSetup setup;
  setup.pipeline = TrainingOptions(c.more);
  setup.steps = 5;
  const Tensors inputs = TrainingInputs(c.model, setup.pipeline);
  const bool half = setup.pipeline.precision.compute != "f32";
  RunResult want = CompileAndRun(BuildKeys(c.model), setup, inputs);
  setup.mesh = c.mesh;
  setup.spec = c.spec;
  setup.zero = c.zero;
  setup.microbatches = c.microbatches;
  setup.virtual_stages = c.virtual_stages;
  RunResult got = CompileAndRun(BuildKeys(c.model), setup, inputs);
  EXPECT_NE(got.lowered.find("send_recv"), std::string::npos);
  EXPECT_EQ(CompareSteps(got.losses, want.losses, half ? 1e-2 : 1e-5), "");
  EXPECT_EQ(CompareSteps(got.grad_norms, want.grad_norms, half ? 2e-2 : 1e-4), "");
  if (half) return;  // single elements of later steps say nothing
  ExpectTensors(got.outputs, want.outputs, 2e-5);
  ExpectTensors(got.states, want.states, 2e-5);
}

INSTANTIATE_TEST_SUITE_P(
    All, Pipeline,
    ::testing::Values(
        Case{kTied, "megatron", "pp=2", ""}, Case{kTied, "megatron", "pp=4", ""},
        Case{kTied, "megatron", "pp=3", ""}, Case{kTied, "megatron", "pp=2,tp=2", ""},
        Case{kTied, "megatron", "pp=2,dp=2", ""}, Case{kTied, "megatron", "pp=2,dp=2,tp=2", ""},
        Case{kTied, "megatron", "dp=2,pp=2", "masked"},
        Case{kTied, "megatron", "tp=2,pp=2", "full"},
        Case{kTied, "megatron", "pp=2,dp=2", "momentum_sgd"},
        Case{kTied, "megatron", "pp=3", "sgd_unclipped"},
        Case{kTied, "megatron", "pp=2", "selective"}, Case{kTied, "megatron", "pp=2,tp=2", "bf16"},
        Case{kTied, "megatron", "pp=2,dp=2,tp=2", "bf16", 1},
        Case{kTied, "megatron", "pp=2,dp=2", "", 1}, Case{kTied, "megatron", "pp=2,dp=2", "", 3},
        Case{kTied, "megatron_sp", "pp=2,tp=2", "full"}, Case{kUntied, "megatron", "pp=4", ""},
        Case{kUntied, "megatron", "pp=2,dp=2,tp=2", "full", 1},
        Case{kLlama, "megatron", "pp=4", ""}, Case{kLlama, "megatron", "pp=2,tp=4", "full"},
        Case{kLlama, "megatron_sp", "pp=2,dp=2,tp=2", "", 1},
        Case{kTied, "megatron", "pp=2", "", 0, 2}, Case{kTied, "megatron", "pp=2", "", 0, 4},
        Case{kTied, "megatron", "pp=4", "masked", 0, 4},
        Case{kTied, "megatron", "pp=4", "full", 0, 2},
        Case{kTied, "megatron", "pp=2,dp=2", "", 1, 2},
        Case{kTied, "megatron", "pp=2,dp=2,tp=2", "full_bf16", 1, 2},
        Case{kUntied, "megatron", "pp=2,dp=2,tp=2", "", 0, 2},
        Case{kUntied, "megatron", "pp=3", "selective", 0, 4},
        Case{kLlama, "megatron_sp", "pp=2,tp=2", "full", 0, 2},
        Case{kLlama, "megatron", "pp=4,tp=2", "", 0, 4},
        Case{kTied, "megatron", "pp=2", "", 0, 1, 2}, Case{kTied, "megatron", "pp=2", "", 0, 4, 2},
        Case{kTied, "megatron", "pp=2,dp=2,tp=2", "full_bf16", 1, 2, 2},
        Case{kUntied, "megatron", "pp=2,tp=2", "masked", 0, 4, 2},
        Case{kLlama, "megatron_sp", "pp=2,dp=2,tp=2", "selective", 3, 2, 2}),
    [](const auto& info) {
      const Case& c = info.param;
      return TestName(
          StrCat(FormOf(c.model), "_", c.spec, "_", c.mesh, "_", c.more,
                 c.zero ? StrCat("_zero", c.zero) : "",
                 c.microbatches > 1 ? StrCat("_", c.microbatches, "_microbatches") : "",
                 c.virtual_stages > 1 ? StrCat("_", c.virtual_stages, "_virtual") : ""));
    });

// --- exports of several architectures, against PyTorch

struct ExportCase {
  Export e;
  const char* mesh;
  const char* recompute;
};

class PipelineExports : public ::testing::TestWithParam<ExportCase> {};

TEST_P(PipelineExports, AgreeWithGoldens) {
  const ExportCase& c = GetParam();
  RunSetup setup;
  setup.spec = "megatron";
  setup.mesh = c.mesh;
  setup.pipeline.loss = c.e.loss;
  setup.pipeline.recompute = c.recompute;
  for (const std::string& batch : c.e.batches) {
    RunResult got = CompileAndRun(ImportFor(c.e, batch), setup, InputsFor(c.e, batch));
    EXPECT_NE(got.lowered.find("send_recv"), std::string::npos);
    EXPECT_EQ(CompareWithGolden(c.e, batch, got, c.e.float64 ? 1e-10 : 1e-4), "") << batch;
  }
}

std::vector<ExportCase> ExportCases() {
  std::vector<ExportCase> cases;
  for (const Export& e : AllExports()) {
    // The mlp is no more than one layer.
    if (e.batches.empty() || e.dynamic || e.model == "mlp") continue;
    for (auto [mesh, recompute] : {std::pair("pp=2", "none"), {"pp=2,tp=2", "full"}}) {
      cases.push_back({e, mesh, recompute});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, PipelineExports, ::testing::ValuesIn(ExportCases()),
                         [](const auto& info) {
                           const ExportCase& c = info.param;
                           return TestName(
                               StrCat(c.e.model, "_", c.e.name, "_", c.mesh, "_", c.recompute));
                         });

// Numbers of stages say where work is best done, never what is right.
TEST(PipelineStages, AnyAreRight) {
  RunSetup setup;
  setup.pipeline = TrainingOptions("");
  setup.steps = 2;
  const std::string model = "layers=2,hidden=16,heads=2,vocab=53,seq=4,batch=2";
  const Tensors inputs = TrainingInputs(model, setup.pipeline);
  RunResult want = CompileAndRun(BuildKeys(model), setup, inputs);
  setup.mesh = "pp=3";
  setup.spec = "dp";
  std::mt19937 random(3);
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(i);
    setup.microbatches = 1 + i % 2;
    Graph graph = BuildKeys(model);
    graph.mesh = Mesh::Parse(setup.mesh);
    graph.pipeline_axis = "pp";
    for (const auto& op : graph.ops()) {
      if (op->def->is_state || random() % 5 == 0) continue;
      op->stage = static_cast<int>(random() % 3);
      op->virtual_stage = static_cast<int>(random() % 2);
    }
    RunResult got = CompileAndRun(std::move(graph), setup, inputs);
    EXPECT_EQ(CompareSteps(got.losses, want.losses, 1e-5), "");
    ExpectTensors(got.outputs, want.outputs, 2e-5);
    ExpectTensors(got.states, want.states, 2e-5);
  }
}

}  // namespace
}  // namespace shardc::testing
