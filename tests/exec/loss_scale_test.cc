// Training in f16 whose first loss scales overflow: steps are left out until one fits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/exec/harness.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// Gradients are whole numbers, the largest 4 times the scale: f16 holds that up to 2^13.
constexpr const char* kText = R"(graph @g(%x: f32[4, 8]) -> (%y) {
  %w = param "w" : f32[8, 6]
  %y = matmul %x, %w : f32[4, 6]
})";
constexpr const char* kCutWeight = R"(
mesh { axis { name: "dp" } axis { name: "tp" } }
param { match: "w" shard_spec { dims: 1 axes: "tp" } }
input { match: "*" shard_spec { dims: 0 axes: "dp" } }
)";

Tensors Inputs() {
  HostTensor x(DType::kF32, {4, 8}), cotangent(DType::kF32, {4, 6});
  for (int64_t i = 0; i < 32; ++i) x.SetDouble(i, i % 3 - 1);
  for (int64_t i = 0; i < 24; ++i) cotangent.SetDouble(i, i % 5 == 0 ? -4 : 1);
  return {{"x", x}, {"cotangent", cotangent}};
}

struct Case {
  const char* name;
  const char* optimizer;
  double clip_norm;
  const char *spec, *mesh;
  int zero = 0, microbatches = 0;
  bool reference = false;
};

RunResult Train(const Case& c, const char* precision, int steps) {
  RunSetup setup;
  setup.spec = c.spec;
  setup.mesh = c.mesh;
  setup.zero = c.zero;
  setup.microbatches = c.microbatches;
  setup.steps = steps;
  setup.session.reference_kernels = c.reference;
  setup.pipeline.loss = "dot";
  setup.pipeline.precision.compute = precision;
  OptimizerOptions& o = setup.pipeline.optimizer;
  o.kind = c.optimizer;
  o.rate.lr = 1.0 / 64;
  o.momentum = o.kind == "sgd" ? 0.5 : 0;
  o.clip_norm = c.clip_norm;
  o.loss_scale_window = 2;
  return CompileAndRun(ParseAndVerify(kText), setup, Inputs());
}

class LossScales : public ::testing::TestWithParam<Case> {};

TEST_P(LossScales, StepsThatOverflowChangeNothing) {
  constexpr double kScales[] = {32768, 16384, 8192, 8192, 16384, 8192, 8192, 16384, 8192};
  const Case& c = GetParam();
  int updates = 0;
  for (int steps = 1; steps <= 9; ++steps) {
    SCOPED_TRACE(steps);
    const RunResult half = Train(c, "f16", steps);
    const double scale = kScales[steps - 1];
    EXPECT_EQ(half.outputs.at("loss_scale").AsDouble(0), scale);
    EXPECT_EQ(std::isfinite(half.grad_norms.back()), scale <= 8192);
    updates += scale <= 8192;
    EXPECT_EQ(half.states.at("optimizer.step").AsDouble(0), updates);
    if (updates == 0) {
      for (const auto& [name, got] : half.states) {
        if (name == "optimizer.loss_scale") continue;
        EXPECT_EQ(WorstDifference(got, HostTensor(got.dtype(), got.shape())), 0) << name;
      }
      continue;
    }
    for (const auto& [name, want] : Train(c, "f32", updates).states) {
      EXPECT_EQ(WorstDifference(half.states.at(name), want), 0) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LossScales,
    ::testing::Values(Case{"sgd", "sgd", 0, "serial", ""}, Case{"adamw", "adamw", 1, "serial", ""},
                      Case{"reference_sgd", "sgd", 1, "serial", "", 0, 0, true},
                      Case{"reference_adamw", "adamw", 0, "serial", "", 0, 0, true},
                      Case{"cut", "adamw", 1, kCutWeight, "dp=2,tp=2"},
                      Case{"microbatches", "adamw", 0, kCutWeight, "dp=2,tp=3", 0, 2},
                      Case{"zero_1", "adamw", 0, kCutWeight, "dp=2,tp=1", 1},
                      Case{"zero_3", "sgd", 1, kCutWeight, "dp=4,tp=1", 3}),
    [](const auto& info) { return std::string(info.param.name); });

// Nor do those of a gradient that is NaN, whatever the precision.
TEST(Updates, AreLeftOutWhereGradientsAreNotFinite) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    for (double bad : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
      RunSetup setup;
      setup.pipeline.loss = "dot";
      setup.pipeline.optimizer.kind = optimizer;
      setup.pipeline.optimizer.weight_decay = 0.5;
      setup.pipeline.optimizer.rate.warmup_steps = 1;
      Tensors inputs = Inputs();
      inputs.at("x").SetDouble(3, bad);
      const RunResult r = CompileAndRun(ParseAndVerify(kText), setup, inputs);
      EXPECT_FALSE(std::isfinite(r.grad_norms[0]));
      for (const auto& [name, got] : r.states) {
        EXPECT_EQ(WorstDifference(got, HostTensor(got.dtype(), got.shape())), 0) << name;
      }
      EXPECT_FALSE(r.outputs.contains("loss_scale"));
    }
  }
}

}  // namespace
}  // namespace shardc::testing
