// Compiles and runs models in memory, for tests that compare results.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/host_tensor.h"
#include "ir/program.h"
#include "passes/pipeline.h"
#include "runtime/session.h"

namespace shardc::testing {

using Tensors = std::map<std::string, HostTensor>;

struct RunSetup {
  std::string spec = "serial";  // a shipped name, a path, or a spec's text (with a newline in it)
  std::string mesh;             // "dp=2,tp=2"
  PipelineOptions pipeline;
  SessionOptions session;
  int steps = 1;
  int zero = 0, microbatches = 0, virtual_stages = 0;  // where not 0 over the spec's
};

struct RunResult {
  Tensors outputs;                         // of the last step
  Tensors states;                          // after the last step
  std::vector<double> losses, grad_norms;  // of every step
  std::vector<Collective> collectives;     // of the program
  std::string lowered;                     // text of the sharded graph
};

Spec SpecOf(const std::string& name_or_text);
// The text of a shipped spec, with ZeRO.
std::string WithZero(const std::string& spec, int stage);
// One program per rank of the graph's mesh, proved.
std::vector<Program> ProgramsFor(const Graph& lowered);
// Reads shards straight from the graph's sources.
StateReader ReaderFor(const Graph& lowered);
RunResult CompileAndRun(Graph graph, const RunSetup& setup, const Tensors& inputs);
// i64 tokens in [0, vocab), floats in [-1, 1), by a fixed generator.
Tensors RandomInputs(const Graph& graph, int64_t vocab, uint64_t seed);
// The same of a model that gives `logits`: tokens of its vocabulary, which are their own labels.
Tensors RandomTokens(const Graph& model, uint64_t seed);

// The worst difference of the elements, relative to the larger of the expected tensor's largest
// element and `floor`.
double WorstDifference(const HostTensor& got, const HostTensor& expected, double floor = 1e-30);

}  // namespace shardc::testing
