// Ten AdamW steps, plain and clipped, against PyTorch's float64 trajectory.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ir/safetensors.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

struct Case {
  Export e;
  const char* spec;
  const char* mesh;
};

class AdamW : public ::testing::TestWithParam<Case> {};

nlohmann::json Trajectory(const Export& e) {
  std::ifstream in(e.folder() + "/adamw.json");
  return nlohmann::json::parse(in);
}

RunResult Train(const Case& c, const nlohmann::json& t, double clip) {
  RunSetup setup;
  setup.spec = c.spec;
  setup.mesh = c.mesh;
  setup.pipeline.loss = c.e.loss;
  OptimizerOptions& o = setup.pipeline.optimizer;
  o.kind = "adamw";
  o.lr = t.at("lr");
  o.beta1 = t.at("betas")[0];
  o.beta2 = t.at("betas")[1];
  o.eps = t.at("eps");
  o.weight_decay = t.at("weight_decay");
  o.clip_norm = clip;
  setup.steps = 11;  // the last one shows the loss after ten updates
  std::string batch = t.at("batch");
  return CompileAndRun(ImportFor(c.e, batch), setup, InputsFor(c.e, batch));
}

void ExpectClose(const std::vector<double>& got, const nlohmann::json& want, double tolerance) {
  ASSERT_LE(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    double expected = want[i];
    EXPECT_NEAR(got[i], expected, tolerance * std::max(1.0, std::abs(expected))) << "step " << i;
  }
}

TEST_P(AdamW, FollowsPyTorch) {
  const Case& c = GetParam();
  nlohmann::json t = Trajectory(c.e);
  double tolerance = c.e.float64 ? 1e-9 : 2e-5;
  RunResult plain = Train(c, t, 0);
  ExpectClose(plain.losses, t.at("losses"), tolerance);
  ExpectClose(plain.grad_norms, t.at("grad_norms"), tolerance * 10);
  RunResult clipped = Train(c, t, t.at("clip_grad_norm"));
  ExpectClose(clipped.losses, t.at("clipped_losses"), tolerance);
  ExpectClose(clipped.grad_norms, t.at("clipped_grad_norms_before_clipping"), tolerance * 10);
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
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, AdamW, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = StrCat(info.param.e.model, "_", info.param.e.name, "_", info.param.spec, "_",
                            info.param.mesh);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace shardc::testing
