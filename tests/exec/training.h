// Training of small builtin models, for tests that compare a plan with the serial one.
#pragma once

#include <string>

#include "tests/exec/harness.h"

namespace shardc::testing {

// Letters and digits as they are, all else as '_': for names of test cases.
std::string TestName(std::string text);

// "layers=2,hidden=40,...": keys of builtin:gpt.
Graph BuildKeys(const std::string& keys);

// By words: masked (loss masked_lm), sgd, momentum, unclipped, selective, full (recomputation),
// bf16 or f16, chunk (all that can be cut in pieces is, and logits are dropped). Without words:
// AdamW, clipped, in f32.
PipelineOptions TrainingOptions(const std::string& words);

// Inputs of the model and of the options' loss; tokens below 50.
Tensors TrainingInputs(const std::string& keys, const PipelineOptions& options);

// The same names, and WorstDifference within the tolerance, with a floor of 1e-3.
void ExpectTensors(const Tensors& got, const Tensors& want, double tolerance);

}  // namespace shardc::testing
