// Random graphs of all ops: gradients are those that differences give, fast kernels do what the
// reference ones do, and sharded equals serial, or is refused with advice.
//
// SHARDC_FUZZ_CASES and SHARDC_FUZZ_SEED as in fuzz_test.cc; SHARDC_FUZZ_OPS is how large a graph
// may be, SHARDC_FUZZ_WIDE how many percent are f64; with SHARDC_FUZZ_MINIMIZE a failure is made
// smaller before it is shown, with SHARDC_FUZZ_VERBOSE refusals are shown too.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <regex>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/text.h"
#include "passes/differentiate.h"
#include "passes/find_layers.h"
#include "tests/exec/minimize.h"
#include "tests/exec/random_graph.h"
#include "tests/ir/data_source.h"
#include "tests/ir/interpreter.h"

namespace shardc::testing {
namespace {

constexpr double kF64Tolerance = 1e-9, kF32Tolerance = 1e-3, kHalvesTolerance = 0.2;
// Values are about 1; what is far smaller is a zero with rounding.
constexpr double kLeast = 1e-3;

// The model's outputs, and its gradients where they are asked for, by the references of the ops as
// they stand: no pass has seen them but differentiation.
RunResult Interpreted(const Graph& graph, const Tensors& data, bool gradients) {
  Graph g = CopyOf(graph);
  if (gradients) AddGradients(g, g.FindOutput("loss"));
  const Values values = Interpret(g, ByName(g, data));
  RunResult result;
  for (const Output& o : g.outputs) result.outputs[o.name] = values.at(o.value);
  result.losses = {result.outputs.at("loss").AsDouble(0)};
  return result;
}

// All params (and inputs) moved by `step` times directions; the same for the same seed.
Tensors Moved(const RandomModelGraph& model, uint64_t seed, double step, bool inputs,
              Tensors* directions = nullptr) {
  Dice dice(seed);
  Tensors data = DataOf(model);
  for (auto& [name, t] : data) {
    if (!IsFloat(t.dtype()) || (!inputs && model.inputs.contains(name))) continue;
    HostTensor direction(t.dtype(), t.shape());
    for (int64_t i = 0; i < t.num_elements(); ++i) {
      const double d = static_cast<double>(dice.Between(-1000, 1000)) / 1000;
      direction.SetDouble(i, d);
      t.SetDouble(i, t.AsDouble(i) + step * d);
    }
    if (directions) (*directions)[name] = std::move(direction);
  }
  return data;
}

// The gradients along one direction against differences of the loss, in f64.
std::string CheckGradients(const RandomModelGraph& model, const RunResult& expected) {
  double slope = 0, scale = 1e-3;
  Tensors directions;
  Moved(model, 77, 0, false, &directions);
  for (const auto& [param, direction] : directions) {
    const HostTensor& grad = expected.outputs.at(GradientName(param));
    slope += Dot(grad, direction);
    scale += std::sqrt(Dot(grad, grad));
  }
  double worst = INFINITY, other = 0;
  for (const double step : {1e-5, 1e-6, 1e-4}) {
    const double up = Interpreted(model.graph, Moved(model, 77, step, false), false).losses[0];
    const double down = Interpreted(model.graph, Moved(model, 77, -step, false), false).losses[0];
    const double by_difference = (up - down) / (2 * step);
    if (std::abs(by_difference - slope) < worst) {
      worst = std::abs(by_difference - slope);
      other = by_difference;
    }
    if (worst < 1e-6 * scale) return "";
  }
  return StrCat("the gradients say ", slope, ", differences ", other, "\n");
}

// Compiled for one rank, and run with this data: by the reference kernels in f64, by the fast ones
// in f32.
RunResult SerialSteps(const FuzzCase& c, const Tensors& data) {
  const bool wide = c.model.graph.FindOutput("loss")->type.dtype == DType::kF64;
  RunSetup serial = c.setup;
  serial.mesh = "";
  serial.spec = "serial";
  serial.pipeline.recompute = "none";
  serial.pipeline.chunk = {};
  serial.session.reference_kernels = wide;
  Graph graph = CopyOf(c.model.graph);
  Tensors inputs = data;
  for (const Op* param : graph.Params()) {
    const std::string& name = param->attrs.String("name");
    graph.sources[name] = std::make_shared<DataSource>(data.at(name));
    inputs.erase(name);
  }
  return CompileAndRun(std::move(graph), serial, inputs);
}

// Whether changes of the data by rounding change results by as much as is tolerated.
bool IllConditioned(const FuzzCase& c, const RunResult& want, double tolerance, double least) {
  const bool steps = c.setup.steps > 1;
  const double step = tolerance == kF64Tolerance ? 1e-14 : tolerance == kF32Tolerance ? 1e-6 : 4e-3;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Tensors data = Moved(c.model, seed, step, true);
    RunResult moved =
        steps ? SerialSteps(c, data) : Interpreted(c.model.graph, data, c.setup.pipeline.gradients);
    if (!Differences(moved, want, tolerance / 10, least).empty()) return true;
  }
  return false;
}

// The size of what is rounded to nothing.
double LeastOf(const RunResult& expected, bool halves) {
  if (!halves) return kLeast;
  double least = 1;
  for (const auto& [name, t] : expected.outputs) {
    if (ParamOfGradient(name).empty()) continue;
    for (int64_t i = 0; i < t.num_elements(); ++i) {
      least = std::max(least, std::abs(t.AsDouble(i)));
    }
  }
  return 0.1 * least;
}

struct Verdict {
  std::string problems, refusal;
};

// What is wrong with one case, in all ways.
Verdict Judge(const FuzzCase& c, bool wide) {
  Verdict v;
  const bool halves = c.setup.pipeline.precision.compute != "f32";
  const double tolerance = wide ? kF64Tolerance : halves ? kHalvesTolerance : kF32Tolerance;
  const Tensors data = DataOf(c.model);
  try {
    const RunResult expected = Interpreted(c.model.graph, data, c.setup.pipeline.gradients);
    const double least = LeastOf(expected, halves);
    if (wide && c.setup.pipeline.gradients) v.problems = CheckGradients(c.model, expected);
    const bool steps = c.setup.steps > 1;
    const RunResult serial = SerialSteps(c, data);
    if (!steps) {
      const std::string d = Differences(serial, expected, tolerance, least);
      if (!d.empty()) v.problems += "serial:\n" + d;
    } else if (!(std::abs(serial.losses[0] - expected.losses[0]) <=
                 tolerance * (1 + std::abs(expected.losses[0])))) {
      v.problems += "serial:\nthe loss of the first step differs\n";
    }
    const RunResult& want = steps ? serial : expected;
    std::string sharded = CheckSharded(CopyOf(c.model.graph), c.setup, c.model.inputs, want,
                                       tolerance, v.refusal, least);
    if (!sharded.empty()) v.problems += "sharded:\n" + sharded;
    if (v.problems.find("differs") != std::string::npos &&
        IllConditioned(c, want, tolerance, least)) {
      v.problems.clear();
    }
  } catch (const std::exception& e) {
    v.problems += StrCat("serial: ", e.what(), "\n");
  }
  return v;
}

// The kind of a failure: where, and a diagnostic's id.
std::string KindOf(const std::string& problems) {
  static const std::regex id("E[0-9]{4}|differs|no advice|differences");
  std::smatch found;
  std::string kind = problems.substr(0, problems.find(':'));
  if (std::regex_search(problems, found, id)) kind += found.str();
  return kind;
}

// What it has found, so that it stays found whatever the generator draws.
TEST(OpsFuzzFound, StaysFixed) {
  struct Case {
    std::string graph, mesh, spec;
  };
  const std::vector<Case> cases = {
      // The gradient of the bias of a norm without rows is the gradient that arrives, which lies as
      // it was made and not as the bias.
      {R"(graph @main(%x: f64[12]) -> (loss: %loss) {
        %w = param "w" : f64[12]
        %b = param "b" : f64[12]
        %y, %mean, %rstd = layer_norm %x, %w, %b {eps=0.1} : f64[12], f64[], f64[]
        %z = reshape %y {shape=[3, 4]} : f64[3, 4]
        %loss = reduce_sum %z {axes=[0, 1]} : f64[]
      })",
       "a=2", "param { match: 'w' shard_spec { dims: 0 axes: 'a' } }\n"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat(c.graph, " ", c.mesh, "\n", c.spec));
    FuzzCase fuzz;
    fuzz.model.graph = ParseGraph(c.graph, "graph");
    fuzz.model.inputs = RandomInputs(fuzz.model.graph, 2, 1);
    AddRandomData(fuzz.model.graph, 2);
    fuzz.setup.pipeline.loss = "output:loss";
    fuzz.setup.mesh = c.mesh;
    fuzz.setup.spec = c.spec;
    const Verdict v = Judge(fuzz, true);
    EXPECT_EQ(v.problems, "");
    EXPECT_EQ(v.refusal, "");
  }
}

int64_t LayersOf(const Graph& graph) { return static_cast<int64_t>(FindLayers(graph).size()); }

class OpsFuzz : public ::testing::TestWithParam<int> {};

TEST_P(OpsFuzz, RandomGraphs) {
  const int64_t n = EnvironmentOr("SHARDC_FUZZ_CASES", 60);
  const int64_t first = EnvironmentOr("SHARDC_FUZZ_SEED", 0) + 1'000'000 * GetParam();
  int64_t refused = 0;
  for (int64_t seed = first; seed < first + n; ++seed) {
    Dice dice(static_cast<uint64_t>(seed));
    const bool wide = dice.Chance(static_cast<int>(EnvironmentOr("SHARDC_FUZZ_WIDE", 75))),
               batched = dice.Chance(25), layers = dice.Chance(30);
    FuzzCase c;
    c.model = MakeRandomGraph(dice, {.dtype = wide ? DType::kF64 : DType::kF32,
                                     .batched = batched,
                                     .layers = layers,
                                     .most_ops = EnvironmentOr("SHARDC_FUZZ_OPS", 30)});
    c.setup.pipeline.loss = "output:loss";
    if (wide && !c.model.graph.Params().empty()) AddRandomOptimizer(dice, c.setup);
    c.setup.mesh = RandomMesh(dice, LayersOf(c.model.graph));
    c.setup.spec = RandomSpec(dice, c.model.graph, Mesh::Parse(c.setup.mesh),
                              !c.setup.pipeline.optimizer.kind.empty(), batched || dice.Chance(5));
    AddRandomMemorySaving(dice, c.setup);
    if (dice.Chance(10)) c.setup.pipeline.recompute = "selective,gathers";
    if (!wide && dice.Chance(30)) {
      c.setup.pipeline.precision.compute = dice.Chance(75) ? "bf16" : "f16";
      if (dice.Chance(30)) c.setup.pipeline.precision.reduce_in = "f32";
    }
    c.setup.session.reference_kernels = wide && dice.Chance(50);
    c.setup.session.threads = static_cast<int>(dice.Between(1, 8));
    Verdict v = Judge(c, wide);
    refused += !v.refusal.empty();
    if (EnvironmentOr("SHARDC_FUZZ_VERBOSE", 0)) {
      const bool micro = c.setup.spec.find("microbatches:") != std::string::npos;
      std::cout << "seed " << seed << (batched ? " batched" : "") << (micro ? " micro" : "") << " "
                << c.setup.mesh << (v.refusal.empty() ? " ran" : " refused: " + v.refusal)
                << std::endl;
    }
    if (EnvironmentOr("SHARDC_FUZZ_VERBOSE", 0) > 1) std::cout << Describe(c);
    if (v.problems.empty()) continue;
    if (EnvironmentOr("SHARDC_FUZZ_MINIMIZE", 0)) {
      const std::string kind = KindOf(v.problems);
      Minimize(c, [&](const FuzzCase& smaller) {
        return KindOf(Judge(smaller, wide).problems) == kind;
      });
      v = Judge(c, wide);
    }
    ADD_FAILURE() << "seed " << seed << "\n" << v.problems << Describe(c);
  }
  RecordProperty("cases", std::to_string(n));
  RecordProperty("refused", std::to_string(refused));
  if (n >= 10) {
    EXPECT_LT(2 * refused, n);
  }
}

INSTANTIATE_TEST_SUITE_P(Part, OpsFuzz, ::testing::Range(0, 4));

}  // namespace
}  // namespace shardc::testing
