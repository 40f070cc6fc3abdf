// Dropout drops the same elements on every mesh, in every piece of a batch, computed once or again.
#include "frontend/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/exec/models.h"
#include "tests/exec/training.h"
#include "tests/ir/data_source.h"

namespace shardc::testing {
namespace {

constexpr const char* kMqa =
    "layers=2,hidden=40,heads=5,kv_heads=1,vocab=97,seq=6,batch=4,dropout=0.2,attention_dropout=0."
    "1";
constexpr const char* kLlama =
    "layers=2,hidden=32,heads=4,kv_heads=2,vocab=50,seq=6,batch=4,tied=false,qkv=separate,"
    "activation=swiglu,norm=rms_norm,positions=rope,dropout=0.3";

struct Case {
  const char* spec;
  const char* mesh;
  int zero = 0, microbatches = 0;
  const char* recompute = "none";
};

RunSetup Training() {
  RunSetup setup;
  setup.pipeline = TrainingOptions("unclipped");
  setup.steps = 3;
  return setup;
}

class DropoutTrains : public ::testing::TestWithParam<Case> {};

TEST_P(DropoutTrains, AsOnOneRank) {
  const Case& c = GetParam();
  for (const char* keys : {kMqa, kLlama}) {
    SCOPED_TRACE(keys);
    RunSetup setup = Training();
    const Tensors inputs = TrainingInputs(keys, setup.pipeline);
    const RunResult want = CompileAndRun(BuildKeys(keys), setup, inputs);
    setup.spec = c.spec;
    setup.mesh = c.mesh;
    setup.zero = c.zero;
    setup.microbatches = c.microbatches;
    setup.pipeline.recompute = c.recompute;
    const RunResult got = CompileAndRun(BuildKeys(keys), setup, inputs);
    EXPECT_EQ(CompareSteps(got.losses, want.losses, 1e-5), "");
    EXPECT_EQ(CompareSteps(got.grad_norms, want.grad_norms, 1e-5), "");
    for (const auto& [name, value] : want.states) {
      EXPECT_LT(WorstDifference(got.states.at(name), value, 1e-3), 1e-4) << name;
    }
    EXPECT_EQ(got.states.at("dropout.step").AsInt(0), 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, DropoutTrains,
                         ::testing::Values(Case{"megatron", "tp=2"}, Case{"megatron", "dp=2,tp=3"},
                                           Case{"megatron_sp", "tp=2"}, Case{"dp", "dp=4", 3},
                                           Case{"megatron", "dp=2,tp=2", 1, 2},
                                           Case{"serial", "", 0, 4, "full"},
                                           Case{"megatron", "tp=2", 0, 0, "selective"},
                                           Case{"megatron", "pp=2,tp=2", 0, 2},
                                           Case{"megatron_sp", "tp=3", 0, 2, "full"}),
                         [](const auto& info) {
                           return TestName(
                               StrCat(info.param.spec, "_", info.param.mesh, "_", info.index));
                         });

// y = dropout(ones), and what three runs of it give.
std::vector<HostTensor> Draws(double ratio, const DropoutOptions& options, DType dtype) {
  std::vector<HostTensor> draws;
  for (int steps = 1; steps <= 3; ++steps) {
    Graph graph("g");
    Builder b(graph);
    Value* x = graph.AddInput("x", TensorType(dtype, {64, 250}));
    graph.outputs.push_back({"y", AddDropout(b, x, ratio)});
    RunSetup setup;
    setup.pipeline.loss = "none";
    SetDropout(graph, options);
    setup.steps = steps;
    HostTensor ones(dtype, {64, 250});
    for (int64_t i = 0; i < ones.num_elements(); ++i) ones.SetDouble(i, 1);
    draws.push_back(CompileAndRun(std::move(graph), setup, {{"x", ones}}).outputs.at("y"));
  }
  return draws;
}

int64_t Kept(const HostTensor& y) {
  int64_t kept = 0;
  for (int64_t i = 0; i < y.num_elements(); ++i) kept += y.AsDouble(i) != 0;
  return kept;
}

int64_t Alike(const HostTensor& a, const HostTensor& b) {
  int64_t alike = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) alike += a.AsDouble(i) == b.AsDouble(i);
  return alike;
}

TEST(Dropout, KeepsItsShareAndScalesIt) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (double ratio : {0.1, 0.5, 0.9}) {
      const HostTensor y = Draws(ratio, {}, dtype)[0];
      const double n = 64 * 250, deviation = std::sqrt(n * ratio * (1 - ratio));
      EXPECT_NEAR(static_cast<double>(Kept(y)), n * (1 - ratio), 4 * deviation);
      std::set<double> values;
      for (int64_t i = 0; i < y.num_elements(); ++i) values.insert(y.AsDouble(i));
      ASSERT_EQ(values.size(), 2u);
      EXPECT_EQ(*values.begin(), 0);
      EXPECT_NEAR(*values.rbegin(), 1 / (1 - ratio), dtype == DType::kBF16 ? 0.05 : 1e-6);
    }
  }
}

// Of two independent draws of one half as many agree as differ.
TEST(Dropout, DrawsAnewInEveryStepAndForEverySeed) {
  const std::vector<HostTensor> first = Draws(0.5, {}, DType::kF32);
  const std::vector<HostTensor> again = Draws(0.5, {}, DType::kF32);
  const std::vector<HostTensor> other = Draws(0.5, {.seed = 7}, DType::kF32);
  const double n = 64 * 250, bound = 4 * std::sqrt(n) / 2;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Alike(first[i], again[i]), 64 * 250);
    EXPECT_NEAR(static_cast<double>(Alike(first[i], other[i])), n / 2, bound);
    EXPECT_NEAR(static_cast<double>(Alike(first[i], first[(i + 1) % 3])), n / 2, bound);
  }
}

HostTensor Sines(Shape shape) {
  HostTensor t(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, std::sin(static_cast<double>(i)));
  return t;
}

// A product with noise of its elements, of examples and of one dim alone, and what it trains.
Graph Noisy() {
  Graph g("noisy");
  Builder b(g);
  Value* x = g.AddInput("x", TensorType(DType::kF32, {12, 10}));
  Value* up = b.Param("up", DType::kF32, {10, 14}, {{"role", std::string("MLP_UP")}});
  Value* down = b.Param("down", DType::kF32, {14, 9}, {{"role", std::string("MLP_DOWN")}});
  Value* y = b.Mul(b.Matmul(x, up), AddUniform(b, {12, 14}));
  y = b.Mul(
      y, b.Cast(b.Make("less", {AddUniform(b, {12, 1}), b.Scalar(DType::kF32, 0.6)}), DType::kF32));
  y = b.Matmul(b.Add(y, AddUniform(b, {14})), down);
  g.outputs.push_back({"y", b.Add(y, AddUniform(b, {12, 9}, 7))});
  for (const Op* param : g.Params()) {
    g.sources[param->attrs.String("name")] =
        std::make_shared<DataSource>(Sines(param->out().shape));
  }
  return g;
}

TEST(Noise, IsTheSameHoweverItIsCut) {
  RunSetup setup = Training();
  setup.pipeline.loss = "dot";
  Tensors inputs = RandomInputs(Noisy(), 2, 3);
  inputs["cotangent"] = Sines({12, 9});
  const RunResult want = CompileAndRun(Noisy(), setup, inputs);
  for (const Case& c : {Case{"megatron", "tp=2"}, Case{"megatron", "tp=5"}, Case{"dp", "dp=5", 3},
                        Case{"megatron", "dp=2,tp=3", 1, 2}, Case{"serial", "", 0, 4, "full"}}) {
    SCOPED_TRACE(StrCat(c.spec, " ", c.mesh));
    setup.spec = c.spec;
    setup.mesh = c.mesh;
    setup.zero = c.zero;
    setup.microbatches = c.microbatches;
    setup.pipeline.recompute = c.recompute;
    const RunResult got = CompileAndRun(Noisy(), setup, inputs);
    EXPECT_EQ(CompareSteps(got.losses, want.losses, 1e-5), "");
    for (const auto& [name, value] : want.states) {
      EXPECT_LT(WorstDifference(got.states.at(name), value, 1e-3), 1e-4) << name;
    }
  }
}

TEST(Dropout, IsLeftOutWithItsSteps) {
  RunSetup setup = Training();
  Graph graph = BuildKeys(kMqa);
  SetDropout(graph, {.keep = false});
  const RunResult without =
      CompileAndRun(std::move(graph), setup, TrainingInputs(kMqa, setup.pipeline));
  EXPECT_FALSE(without.states.contains("dropout.step"));
  EXPECT_EQ(without.lowered.find("dropout"), std::string::npos);
  const RunResult plain =
      CompileAndRun(BuildKeys("layers=2,hidden=40,heads=5,kv_heads=1,vocab=97,seq=6,batch=4"),
                    Training(), TrainingInputs(kMqa, setup.pipeline));
  EXPECT_EQ(CompareSteps(without.losses, plain.losses, 1e-5), "");
}

}  // namespace
}  // namespace shardc::testing
