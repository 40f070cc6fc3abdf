// The exported models of tests/data/models: their batches, goldens, and what each tensor of a file
// is.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tests/exec/harness.h"

namespace shardc::testing {

struct Export {
  std::string model, name;  // "hf_gpt2", "dynamo_static"
  bool dynamic = false, float64 = false;
  std::vector<std::string> batches;     // those that this file can run
  std::vector<std::string> missing;     // parameters that are not in the file
  std::string loss;                     // "lm" or "dot", for PipelineOptions
  std::map<std::string, int64_t> bind;  // what the shapes of the inputs leave open
  std::vector<std::string> drop;        // outputs that are not compared
  std::string folder() const;
  std::string path() const { return folder() + "/" + name + ".onnx"; }
};

std::vector<Export> AllExports();
// One of tests/data/strangers: folder "llama", file "dynamo_static"; its batch is b2_s8.
Export StrangerExport(const std::string& folder, const std::string& file,
                      const std::string& loss = "lm");

// The recovered serial graph for a batch ("b2_s32").
Graph ImportFor(const Export& e, const std::string& batch);
// Inputs of the model and of its loss.
Tensors InputsFor(const Export& e, const std::string& batch);

// A result and what the golden says it is, as tensors of one shape.
struct GoldenPair {
  std::string name;  // "logits", "y", "loss", "grad.<tensor of the file>"
  HostTensor got, want;
  double floor;  // for WorstDifference
};
// One for each output, the loss and each gradient; what is missing or left over on either side is
// appended to `problems`.
std::vector<GoldenPair> PairWithGolden(const Export& e, const std::string& batch,
                                       const RunResult& result, std::string* problems);

// Outputs, loss and every gradient against the golden, in the measure of the models' README: each
// difference is relative to the tensor's largest element, gradients at least to 1e-2 of the largest
// of all. Returns the problems found, empty when all is within `tolerance`; `worst` gets the
// largest difference.
std::string CompareWithGolden(const Export& e, const std::string& batch, const RunResult& result,
                              double tolerance, double* worst = nullptr);

// For results computed in bf16 or f16: the loss within 1%, every gradient within 3% in norm and of
// cosine 0.999, but for those that are zero in exact arithmetic. Returns the problems found.
std::string CompareHalvesWithGolden(const Export& e, const std::string& batch,
                                    const RunResult& result);

// PyTorch's float64 steps of AdamW on the export's model.
struct AdamWGolden {
  std::string batch;
  OptimizerOptions options;  // without clipping
  double clip_norm = 0;
  std::vector<double> losses, grad_norms, clipped_losses,
      clipped_grad_norms;  // the latter before clipping
};
AdamWGolden AdamWGoldenOf(const Export& e);
// The values of the wanted steps, relative to what is wanted where that is over 1. Returns the
// problems found.
std::string CompareSteps(const std::vector<double>& got, const std::vector<double>& want,
                         double tolerance);

}  // namespace shardc::testing
