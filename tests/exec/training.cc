#include "tests/exec/training.h"

#include <gtest/gtest.h>

#include <cctype>

#include "frontend/gpt_config.h"
#include "passes/loss.h"

namespace shardc::testing {

std::string TestName(std::string text) {
  for (char& c : text) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return text;
}

Graph BuildKeys(const std::string& keys) { return BuildGpt(ParseBuiltin("builtin:gpt?" + keys)); }

PipelineOptions TrainingOptions(const std::string& words) {
  auto has = [&](const char* word) { return words.find(word) != std::string::npos; };
  PipelineOptions options;
  options.loss = has("masked") ? "masked_lm" : "lm";
  // Where a gradient is zero in exact arithmetic its rounding must not become a step.
  options.optimizer = {.kind = "adamw", .rate = {.lr = 1e-2}, .eps = 1e-2, .weight_decay = 0.1};
  if (has("sgd")) options.optimizer = {.kind = "sgd", .rate = {.lr = 0.05}};
  if (has("momentum")) options.optimizer.momentum = 0.9;
  if (!has("unclipped")) options.optimizer.clip_norm = 0.5;
  if (has("selective")) options.recompute = "selective";
  if (has("full")) options.recompute = "full";
  if (has("f16")) options.precision.compute = has("bf16") ? "bf16" : "f16";
  if (has("chunk")) {
    options.chunk = {.least_bytes = 1, .pieces = 2};
    options.drop = {"logits"};
  }
  return options;
}

Tensors TrainingInputs(const std::string& keys, const PipelineOptions& options) {
  Graph shapes = BuildKeys(keys);
  AttachLoss(shapes, options.loss, "");
  return RandomInputs(shapes, 50, 7);
}

void ExpectTensors(const Tensors& got, const Tensors& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, value] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_LE(WorstDifference(got.at(name), value, 1e-3), tolerance) << name;
  }
}

}  // namespace shardc::testing
