// bf16 and f16 against the float64 goldens: the loss within 1%, every gradient within 3% in norm
// and of cosine 0.999.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "frontend/gpt_config.h"
#include "ir/convert.h"
#include "ir/diagnostic.h"
#include "tests/exec/models.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

struct Case {
  Export e;
  std::string batch;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.e.path() << " " << c.batch; }

RunResult RunCase(const Case& c, const char* spec, const char* mesh,
                  const PrecisionOptions& precision) {
  RunSetup setup;
  setup.spec = spec;
  setup.mesh = mesh;
  setup.pipeline.loss = c.e.loss;
  setup.pipeline.precision = precision;
  return CompileAndRun(ImportFor(c.e, c.batch), setup, InputsFor(c.e, c.batch));
}

class Bf16 : public ::testing::TestWithParam<Case> {};

TEST_P(Bf16, IsCloseToTheGoldenOnEveryMesh) {
  const Case& c = GetParam();
  for (auto [spec, mesh] : {std::pair("serial", ""), {"megatron", "tp=2"}, {"dp", "dp=2"}}) {
    for (const char* reduce_in : {"", "f32"}) {
      SCOPED_TRACE(StrCat(spec, " ", mesh, " ", reduce_in));
      RunResult r = RunCase(c, spec, mesh, {.compute = "bf16", .reduce_in = reduce_in});
      EXPECT_EQ(CompareHalvesWithGolden(c.e, c.batch, r), "");
    }
  }
}

class F16Golden : public ::testing::TestWithParam<Case> {};

TEST_P(F16Golden, IsCloseToTheGolden) {
  const Case& c = GetParam();
  for (auto [spec, mesh] : {std::pair("serial", ""), {"megatron", "tp=3"}}) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    EXPECT_EQ(CompareHalvesWithGolden(c.e, c.batch,
                                      RunCase(c, spec, mesh, {.compute = "f16", .reduce_in = ""})),
              "");
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Export& e : AllExports()) {
    if (e.float64) continue;
    for (const std::string& batch : e.batches) cases.push_back({e, batch});
  }
  return cases;
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  return info.param.e.model + "_" + info.param.e.name + "_" + info.param.batch;
}
INSTANTIATE_TEST_SUITE_P(All, Bf16, ::testing::ValuesIn(Cases()), NameOf);
INSTANTIATE_TEST_SUITE_P(All, F16Golden, ::testing::ValuesIn(Cases()), NameOf);

void CompareKernels(const char* precision) {
  for (const char* model : {"builtin:gpt?layers=2,hidden=64,heads=4,vocab=257,seq=48,batch=2",
                            "builtin:gpt?layers=2,hidden=48,heads=6,kv_heads=2,vocab=64,seq=9,"
                            "batch=4,activation=swiglu,"
                            "norm=rms_norm,positions=rope"}) {
    RunResult results[2];
    for (bool reference : {false, true}) {
      RunSetup setup;
      setup.pipeline.precision.compute = precision;
      setup.session.reference_kernels = reference;
      Graph graph = BuildGpt(ParseBuiltin(model));
      Tensors inputs = RandomTokens(graph, 7);
      results[reference] = CompileAndRun(std::move(graph), setup, inputs);
    }
    for (const auto& [name, want] : results[1].outputs) {
      if (!name.starts_with("grad.") && name != "loss") continue;
      EXPECT_LE(WorstDifference(results[0].outputs.at(name), want), 0.01) << name;
    }
  }
}

TEST(Bf16Kernels, EqualTheReferenceKernels) { CompareKernels("bf16"); }
TEST(F16Kernels, EqualTheReferenceKernels) { CompareKernels("f16"); }

// Of the difference, relative to the expected tensor's.
double RelativeNorm(const HostTensor& got, const HostTensor& want) {
  double squares = 0, differences = 0;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    squares += std::pow(want.AsDouble(i), 2);
    differences += std::pow(got.AsDouble(i) - want.AsDouble(i), 2);
  }
  return std::sqrt(differences / squares);
}

// Of a mean over 1024 tokens, spread over 16000 classes: below 6e-8, which is the least that f16
// has.
TEST(F16, SmallGradientsDoNotVanish) {
  RunResult results[2];
  for (bool half : {false, true}) {
    RunSetup setup;
    setup.pipeline.precision.compute = half ? "f16" : "f32";
    Graph graph = BuildGpt(
        ParseBuiltin("builtin:gpt?layers=2,hidden=32,heads=2,vocab=16000,seq=128,batch=8"));
    Tensors inputs = RandomTokens(graph, 7);
    results[half] = CompileAndRun(std::move(graph), setup, inputs);
  }
  for (const auto& [name, want] : results[false].outputs) {
    if (!name.starts_with("grad.")) continue;
    EXPECT_LE(RelativeNorm(results[true].outputs.at(name), want), 1e-2) << name;
  }
}

RunResult RunGpt(const std::string& model, DType dtype, const char* spec, const char* mesh,
                 const OptimizerOptions& optimizer = {}) {
  RunSetup setup;
  setup.spec = spec;
  setup.mesh = mesh;
  setup.pipeline.optimizer = optimizer;
  setup.steps = optimizer.kind.empty() ? 1 : 3;
  GptConfig config = ParseBuiltin(model);
  config.dtype = dtype;
  Graph graph = BuildGpt(config);
  Tensors inputs = RandomTokens(graph, 7);
  return CompileAndRun(std::move(graph), setup, inputs);
}

class HalfModels : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// The same of a model whose own weights are f16. Its losses add up to 90,000, which f16 has not.
TEST_P(HalfModels, GradientsNeitherVanishNorOverflow) {
  auto [spec, mesh] = GetParam();
  for (const char* model : {"builtin:gpt?layers=2,hidden=32,heads=2,vocab=16000,seq=128,batch=8",
                            "builtin:gpt?layers=1,hidden=16,heads=2,vocab=257,seq=64,batch=256"}) {
    SCOPED_TRACE(model);
    RunResult wide = RunGpt(model, DType::kF32, "serial", "");
    RunResult half = RunGpt(model, DType::kF16, spec, mesh);
    for (const auto& [name, want] : wide.outputs) {
      const HostTensor& got = half.outputs.at(name);
      EXPECT_EQ(got.dtype(), name == "logits" ? DType::kF16 : DType::kF32) << name;
      EXPECT_LE(RelativeNorm(got, want), 1e-2) << name;
    }
  }
}

// With moments of f16 the second step would divide by the root of zero.
TEST_P(HalfModels, StepAsInF32) {
  auto [spec, mesh] = GetParam();
  constexpr const char* kModel = "builtin:gpt?layers=1,hidden=32,heads=4,vocab=257,seq=32,batch=4";
  OptimizerOptions adamw;
  adamw.kind = "adamw";
  adamw.clip_norm = 1;
  RunResult wide = RunGpt(kModel, DType::kF32, "serial", "", adamw);
  RunResult half = RunGpt(kModel, DType::kF16, spec, mesh, adamw);
  for (int s = 0; s < 3; ++s) {
    EXPECT_NEAR(half.losses[s], wide.losses[s], 1e-3 * wide.losses[s]);
    EXPECT_NEAR(half.grad_norms[s], wide.grad_norms[s], 1e-2 * wide.grad_norms[s]);
  }
  for (const auto& [name, want] : wide.states) {
    const bool is_param = name.ends_with(".weight") || name.ends_with(".bias");
    EXPECT_EQ(half.states.at(name).dtype(), is_param ? DType::kF16 : want.dtype()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, HalfModels,
                         ::testing::Values(std::pair{"serial", ""}, std::pair{"megatron", "tp=2"},
                                           std::pair{"dp", "dp=2"}),
                         [](const auto& info) { return std::string(info.param.first); });

// Nothing is known of what other losses are made of, and the user is told, unless there is an
// optimizer that finds a scale.
TEST(F16, UnscaledGradientsAreNoted) {
  for (auto [loss, precision, noted] : {std::tuple{"dot", "f16", true},
                                        {"output:y", "f16", true},
                                        {"dot", "bf16", false},
                                        {"ce", "f16", false}}) {
    Graph graph = ParseAndVerify(R"(graph @g(%x: f32[4, 8]) -> (%y, logits: %0) {
      %w = param "w" : f32[8, 8]
      %0 = matmul %x, %w : f32[4, 8]
      %y = reduce_sum %0 {axes=[0, 1], keepdims=false} : f32[]
    })");
    PipelineOptions options;
    options.loss = loss;
    options.precision.compute = precision;
    CompileGraph(graph, SpecOf("serial"), Mesh(), options);
    EXPECT_EQ(!graph.notes.empty(), noted) << loss << " " << precision;
  }
  Graph graph = ParseAndVerify(R"(graph @g(%x: f16[4, 8]) -> (%y) {
    %w = param "w" : f16[8, 8]
    %y = matmul %x, %w : f16[4, 8]
  })");
  PipelineOptions options;
  options.loss = "dot";
  options.optimizer.kind = "sgd";
  CompileGraph(graph, SpecOf("serial"), Mesh(), options);
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_NE(graph.notes[0].find("parameters are in f16"), std::string::npos);
}

// Weights that no optimizer updates are held in bf16: what is computed is the same.
TEST(Bf16Inference, GivesTheLogitsOfTrainingFromHalfTheBytes) {
  const GptConfig config = ParseBuiltin(
      "builtin:gpt?layers=2,hidden=24,heads=4,kv_heads=2,vocab=41,seq=6,batch=4,tied=false");
  for (auto [spec, mesh] : {std::pair("serial", ""), {"megatron", "tp=2"}, {"megatron", "tp=4"}}) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    RunSetup setup;
    setup.pipeline.precision.compute = "bf16";
    setup.spec = spec;
    setup.mesh = mesh;
    auto run = [&](const char* loss, const char* optimizer) {
      Graph graph = BuildGpt(config);
      Tensors inputs = RandomTokens(graph, 3);
      setup.pipeline.loss = loss;
      setup.pipeline.optimizer.kind = optimizer;
      setup.pipeline.optimizer.rate.lr = 0;
      if (setup.pipeline.loss == "none") inputs.erase("labels");
      return CompileAndRun(std::move(graph), setup, inputs);
    };
    const RunResult trains = run("lm", "sgd"), gradients = run("lm", ""), infers = run("none", "");
    const std::string name = "transformer.h.0.mlp.c_fc.weight";
    EXPECT_EQ(trains.states.at(name).dtype(), DType::kF32);
    for (const RunResult* r : {&gradients, &infers}) {
      EXPECT_TRUE(trains.outputs.at("logits") == r->outputs.at("logits"));
      EXPECT_TRUE(Converted(trains.states.at(name), DType::kBF16) == r->states.at(name));
    }
    EXPECT_TRUE(trains.outputs.at("loss") == gradients.outputs.at("loss"));
    EXPECT_EQ(gradients.outputs.at(GradientName(name)).dtype(), DType::kF32);
  }
}

TEST(Bf16Determinism, TheSameBitsTwiceAndMasterWeightsInF32) {
  for (const char* mesh : {"", "tp=2", "dp=2"}) {
    auto run = [&] {
      RunSetup setup;
      setup.spec = std::string_view(mesh).starts_with("dp") ? "dp" : "megatron";
      setup.mesh = mesh;
      setup.pipeline.precision.compute = "bf16";
      setup.pipeline.optimizer.kind = "adamw";
      setup.steps = 3;
      Graph graph =
          BuildGpt(ParseBuiltin("builtin:gpt?layers=2,hidden=64,heads=4,vocab=257,seq=32,batch=4"));
      Tensors inputs = RandomTokens(graph, 9);
      return CompileAndRun(std::move(graph), setup, inputs);
    };
    RunResult a = run(), b = run();
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_LT(a.losses[2], a.losses[0]);
    for (const auto& [name, t] : a.outputs) EXPECT_TRUE(t == b.outputs.at(name)) << name;
    for (const auto& [name, t] : a.states) {
      EXPECT_TRUE(t == b.states.at(name)) << name;
      EXPECT_EQ(t.dtype(), name == "optimizer.step" ? DType::kI64 : DType::kF32) << name;
    }
  }
}

}  // namespace
}  // namespace shardc::testing
