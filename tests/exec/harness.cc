#include "tests/exec/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/shard_copy.h"
#include "ir/text.h"
#include "passes/check_programs.h"
#include "passes/emit.h"

namespace shardc::testing {

Spec SpecOf(const std::string& name) {
  return name.find('\n') == std::string::npos ? LoadSpec(name) : ParseSpec(name, "test.textproto");
}

std::string WithZero(const std::string& spec, int stage) {
  std::ifstream in(std::string(SHARDC_SOURCE_DIR) + "/specs/" + spec + ".textproto");
  std::stringstream text;
  text << in.rdbuf();
  SHARDC_CHECK(!text.str().empty(), "no shipped spec ", spec);
  return StrCat(text.str(), "\nzero_stage: ", stage, "\n");
}

std::vector<Program> ProgramsFor(const Graph& lowered) {
  const StagePrograms set = EmitStages(lowered);
  std::vector<Program> programs;
  for (int64_t r = 0; r < lowered.mesh.num_ranks(); ++r) {
    programs.push_back(set.stages[set.StageOf(r)]);
    programs.back().rank = r;
  }
  std::vector<const Program*> all;
  for (const Program& p : programs) all.push_back(&p);
  CheckProgramSet(all);
  return programs;
}

StateReader ReaderFor(const Graph& lowered) {
  return
      [&lowered](int64_t rank, const NamedBuffer& state, const Buffer& buffer, std::byte* local) {
        auto source = lowered.sources.find(state.name);
        HostTensor global(buffer.type.dtype, buffer.type.shape);
        if (source != lowered.sources.end()) {
          source->second->Read(Shape(buffer.type.shape.size(), 0), buffer.type.shape, global.raw());
        } else if (const Op* op = lowered.FindState(state.name)) {
          double init = op->attrs.Float("init", 0.0);
          for (int64_t i = 0; i < global.num_elements(); ++i) global.SetDouble(i, init);
        }
        GlobalToLocal(global.raw(), buffer.type, lowered.mesh, rank, local);
      };
}

RunResult CompileAndRun(Graph graph, const RunSetup& setup, const Tensors& inputs) {
  PipelineOptions pipeline = setup.pipeline;
  pipeline.verify_each = true;
  Spec spec = SpecOf(setup.spec);
  if (setup.zero > 0) spec.zero.stage = setup.zero;
  if (setup.microbatches > 0) spec.microbatches.count = setup.microbatches;
  if (setup.virtual_stages > 0) spec.pipeline.virtual_stages = setup.virtual_stages;
  CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse(setup.mesh)), pipeline);
  std::vector<Program> programs = ProgramsFor(graph);
  SessionOptions options = setup.session;
  options.poison = true;  // padding and recycled memory must never show
  Session session(programs, options, ReaderFor(graph));
  for (const auto& [name, value] : inputs) session.SetInput(name, value);
  RunResult result;
  std::vector<std::string> names = session.OutputNames();
  auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (int i = 0; i < setup.steps; ++i) {
    session.Step();
    if (has("loss")) result.losses.push_back(session.Output("loss").AsDouble(0));
    if (has("grad_norm")) result.grad_norms.push_back(session.Output("grad_norm").AsDouble(0));
  }
  for (const std::string& name : names) result.outputs[name] = session.Output(name);
  for (const std::string& name : session.StateNames()) result.states[name] = session.State(name);
  result.collectives = programs[0].collectives;
  result.lowered = PrintGraph(graph);
  return result;
}

Tensors RandomInputs(const Graph& graph, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tensors inputs;
  for (const auto& input : graph.inputs()) {
    HostTensor t(input->type.dtype, input->type.shape);
    for (int64_t i = 0; i < t.num_elements(); ++i) {
      uint64_t bits = random() >> 11;
      double unit = static_cast<double>(bits) / 9007199254740992.0;
      t.SetDouble(
          i, IsFloat(t.dtype()) ? 2 * unit - 1 : std::floor(unit * static_cast<double>(vocab)));
    }
    inputs[input->name] = std::move(t);
  }
  return inputs;
}

Tensors RandomTokens(const Graph& model, uint64_t seed) {
  Tensors inputs = RandomInputs(model, model.FindOutput("logits")->type.shape.back(), seed);
  inputs["labels"] = inputs["input_ids"];
  return inputs;
}

double WorstDifference(const HostTensor& got, const HostTensor& expected, double floor) {
  if (got.shape() != expected.shape()) return INFINITY;
  double worst = 0, largest = floor;
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    double a = got.AsDouble(i), b = expected.AsDouble(i);
    if (std::isfinite(b)) largest = std::max(largest, std::abs(b));
    if (a == b) continue;
    if (!std::isfinite(a) || !std::isfinite(b)) return INFINITY;
    worst = std::max(worst, std::abs(a - b));
  }
  return worst / largest;
}

}  // namespace shardc::testing
