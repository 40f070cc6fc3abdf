// Ten AdamW steps, plain and clipped, also with ZeRO, against PyTorch's float64 trajectory.
#include <gtest/gtest.h>

#include "tests/exec/models.h"
#include "tests/exec/training.h"

namespace shardc::testing {
namespace {

struct Case {
  Export e;
  const char* spec;
  const char* mesh;
  int zero = 0;
};

class AdamW : public ::testing::TestWithParam<Case> {};

RunResult Train(const Case& c, const AdamWGolden& golden, double clip) {
  RunSetup setup;
  setup.spec = c.spec;
  setup.mesh = c.mesh;
  setup.zero = c.zero;
  setup.pipeline.loss = c.e.loss;
  setup.pipeline.optimizer = golden.options;
  setup.pipeline.optimizer.clip_norm = clip;
  setup.steps = 11;  // the last one shows the loss after ten updates
  return CompileAndRun(ImportFor(c.e, golden.batch), setup, InputsFor(c.e, golden.batch));
}

TEST_P(AdamW, FollowsPyTorch) {
  const Case& c = GetParam();
  const AdamWGolden golden = AdamWGoldenOf(c.e);
  double tolerance = c.e.float64 ? 1e-9 : 2e-5;
  RunResult plain = Train(c, golden, 0);
  EXPECT_EQ(CompareSteps(plain.losses, golden.losses, tolerance), "");
  EXPECT_EQ(CompareSteps(plain.grad_norms, golden.grad_norms, tolerance * 10), "");
  RunResult clipped = Train(c, golden, golden.clip_norm);
  EXPECT_EQ(CompareSteps(clipped.losses, golden.clipped_losses, tolerance), "");
  EXPECT_EQ(CompareSteps(clipped.grad_norms, golden.clipped_grad_norms, tolerance * 10), "");
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Export& e : AllExports()) {
    // A parameter that the file lacks is not trained.
    if (!e.missing.empty() || e.batches.empty()) continue;
    if (e.name.find("attention_mask") != std::string::npos) continue;
    for (auto [spec, mesh] : {std::pair("serial", ""),
                              {"megatron", "tp=2"},
                              {"megatron", "dp=2,tp=2"},
                              {"dp", "dp=2"}}) {
      cases.push_back({e, spec, mesh});
    }
    if (e.name != "torchscript_static" && !e.float64) continue;
    for (int zero : {1, 3}) {
      for (auto [spec, mesh] : {std::pair("dp", "dp=2"), {"megatron", "dp=2,tp=2"}}) {
        cases.push_back({e, spec, mesh, zero});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, AdamW, ::testing::ValuesIn(Cases()), [](const auto& info) {
  const Case& c = info.param;
  return TestName(StrCat(c.e.model, "_", c.e.name, "_", c.spec, "_", c.mesh,
                         c.zero ? StrCat("_zero", c.zero) : ""));
});

}  // namespace
}  // namespace shardc::testing
