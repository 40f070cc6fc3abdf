// Pipeline stages: exports against PyTorch, and any stages against the serial model.
#include <gtest/gtest.h>

#include <random>

#include "ir/op_def.h"
#include "tests/exec/models.h"
#include "tests/exec/training.h"

namespace shardc::testing {
namespace {

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
