#include "passes/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ir/interpreter.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// The rates of the first steps.
void ExpectRates(const LearningRateOptions& options, const std::vector<double>& expected) {
  CheckLearningRate(options);
  Graph graph = ParseAndVerify("graph @g(%n: i64[]) -> (%n) {\n}");
  Builder b(graph);
  Value* rate = LearningRate(b, options, graph.inputs()[0].get(), DType::kF64);
  for (size_t n = 0; n < expected.size(); ++n) {
    Values values =
        Interpret(graph, {{graph.inputs()[0].get(), HostTensor::Scalar(static_cast<int64_t>(n))}});
    EXPECT_NEAR(values.at(rate).AsDouble(0), expected[n], 1e-11) << "step " << n;
  }
}

// What schedulers of torch 2.9.1 and transformers 4.57.1 give; the cosine of transformers goes up
// again after its end, where Megatron-LM stays at the lowest rate.
TEST(LearningRate, FollowsTheirSchedules) {
  // get_cosine_schedule_with_warmup(num_warmup_steps=3, num_training_steps=8)
  ExpectRates({.lr = 0.5, .decay = "cosine", .warmup_steps = 3, .decay_steps = 8},
              {0, 0.166666666667, 0.333333333333, 0.5, 0.452254248594, 0.327254248594,
               0.172745751406, 0.0477457514063, 0, 0});
  // get_linear_schedule_with_warmup(3, 8)
  ExpectRates({.lr = 0.5, .decay = "linear", .warmup_steps = 3, .decay_steps = 8},
              {0, 0.166666666667, 0.333333333333, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0});
  // get_constant_schedule_with_warmup(3)
  ExpectRates({.lr = 0.5, .warmup_steps = 3}, {0, 0.5 / 3, 1.0 / 3, 0.5, 0.5});
  // CosineAnnealingLR(T_max=5, eta_min=0.1).
  ExpectRates({.lr = 0.5, .decay = "cosine", .decay_steps = 5, .min_lr = 0.1},
              {0.5, 0.461803398875, 0.361803398875, 0.238196601125, 0.138196601125, 0.1});
}

// In f32, which does not have the number of the step.
TEST(LearningRate, CountsManySteps) {
  constexpr int64_t kMany = int64_t{1} << 24;
  Graph graph = ParseAndVerify("graph @g(%n: i64[]) -> (%n) {\n}");
  Builder b(graph);
  const LearningRateOptions options = {
      .lr = 1, .decay = "linear", .warmup_steps = kMany - 3, .decay_steps = kMany + 5};
  Value* rate = LearningRate(b, options, graph.inputs()[0].get(), DType::kF32);
  Values values = Interpret(graph, {{graph.inputs()[0].get(), HostTensor::Scalar(kMany + 1)}});
  EXPECT_EQ(values.at(rate).AsDouble(0), 0.5);
}

TEST(LearningRate, ConstantIsOneConstant) {
  Graph graph = ParseAndVerify("graph @g(%n: i64[]) -> (%n) {\n}");
  Builder b(graph);
  LearningRate(b, {.lr = 0.5}, graph.inputs()[0].get(), DType::kF32);
  CheckGraph(graph, R"(
    CHECK: constant {value=tensor<f32[]: 0.5>}
    CHECK-NEXT: })");
}

TEST(LearningRate, RefusesWhatMakesNoSchedule) {
  auto refused = [](const LearningRateOptions& options, const std::string& what) {
    ExpectThrown([&] { CheckLearningRate(options); }, "E6102", what);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused({.lr = -1}, "learning rate -1 is not a number from 0 on");
  refused({.lr = nan}, "learning rate");
  refused({.lr = 1e39}, "that f32 can hold");
  refused({.lr = std::numeric_limits<double>::infinity()}, "learning rate");
  refused({.decay = "wsd"}, "--lr-decay: unknown decay 'wsd'; use constant, linear or cosine");
  refused({.warmup_steps = -1}, "--lr-warmup-steps: the number of steps, -1, is negative");
  refused({.decay_steps = 5}, "--lr-decay-steps: belongs to a decay");
  refused({.min_lr = 1e-4}, "--min-lr: belongs to a decay");
  refused({.min_lr = 1e-4}, "add --lr-decay linear or cosine");
  refused({.decay = "cosine", .warmup_steps = 3},
          "--lr-decay-steps: is missing or 0: --lr-decay cosine");
  refused({.decay = "linear", .warmup_steps = 9, .decay_steps = 9}, "warm-up with step 9");
  refused({.lr = 1e-3, .decay = "linear", .decay_steps = 5, .min_lr = 1e-2}, "not between 0 and");
  refused({.lr = 1e-3, .decay = "linear", .decay_steps = 5, .min_lr = nan}, "not between 0 and");
}

}  // namespace
}  // namespace shardc::testing
