// bf16 against the float64 goldens: the loss within 1%, every gradient within 3% in norm and of
// cosine 0.999.
#include <gtest/gtest.h>

#include <cmath>

#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "tests/exec/models.h"

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

struct Likeness {
  double norm_error, cosine, norm;
};

Likeness Compare(const HostTensor& got, const HostTensor& want) {
  double gg = 0, ww = 0, gw = 0, dd = 0;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    double g = got.AsDouble(i), w = want.AsDouble(i);
    gg += g * g;
    ww += w * w;
    gw += g * w;
    dd += (g - w) * (g - w);
  }
  return {std::sqrt(dd / ww), gw / std::sqrt(gg * ww), std::sqrt(ww)};
}

// Gradients that are zero in exact arithmetic (of the keys' bias) hold noise without direction.
constexpr double kZeroNorm = 1e-4;

void ExpectLikeGolden(const Case& c, const RunResult& result) {
  std::string problems;
  std::vector<GoldenPair> pairs = PairWithGolden(c.e, c.batch, result, &problems);
  EXPECT_EQ(problems, "");
  double largest = 0;
  for (const GoldenPair& p : pairs) {
    if (p.name.starts_with("grad.")) largest = std::max(largest, Compare(p.want, p.want).norm);
  }
  for (const GoldenPair& p : pairs) {
    Likeness l = Compare(p.got, p.want);
    if (p.name == "loss" && c.e.loss == "lm") {
      EXPECT_NEAR(p.got.AsDouble(0), p.want.AsDouble(0), 0.01 * std::abs(p.want.AsDouble(0)));
    } else if (p.name == "y") {
      // Its loss is a dot product whose terms cancel: the result itself is held to 1%.
      EXPECT_LE(l.norm_error, 0.01);
    } else if (p.name.starts_with("grad.") && l.norm > kZeroNorm * largest) {
      EXPECT_LE(l.norm_error, 0.03) << p.name << " of norm " << l.norm << " of " << largest;
      EXPECT_GE(l.cosine, 0.999) << p.name;
    }
  }
}

class Bf16 : public ::testing::TestWithParam<Case> {};

TEST_P(Bf16, IsCloseToTheGoldenOnEveryMesh) {
  const Case& c = GetParam();
  for (auto [spec, mesh] : {std::pair("serial", ""), {"megatron", "tp=2"}, {"dp", "dp=2"}}) {
    for (const char* reduce_in : {"", "f32"}) {
      SCOPED_TRACE(StrCat(spec, " ", mesh, " ", reduce_in));
      ExpectLikeGolden(c, RunCase(c, spec, mesh, {.compute = "bf16", .reduce_in = reduce_in}));
    }
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

INSTANTIATE_TEST_SUITE_P(All, Bf16, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return info.param.e.model + "_" + info.param.e.name + "_" + info.param.batch;
});

TEST(Bf16Kernels, EqualTheReferenceKernels) {
  for (const char* model : {"builtin:gpt?layers=2,hidden=64,heads=4,vocab=257,seq=48,batch=2",
                            "builtin:gpt?layers=2,hidden=48,heads=6,kv_heads=2,vocab=64,seq=9,"
                            "batch=4,activation=swiglu,"
                            "norm=rms_norm,positions=rope"}) {
    RunResult results[2];
    for (bool reference : {false, true}) {
      RunSetup setup;
      setup.pipeline.precision.compute = "bf16";
      setup.session.reference_kernels = reference;
      Graph graph = BuildGpt(ParseBuiltin(model));
      Tensors inputs = RandomInputs(graph, 64, 7);
      inputs["labels"] = inputs["input_ids"];
      results[reference] = CompileAndRun(std::move(graph), setup, inputs);
    }
    for (const auto& [name, want] : results[1].outputs) {
      if (!name.starts_with("grad.") && name != "loss") continue;
      EXPECT_LE(Compare(results[0].outputs.at(name), want).norm_error, 0.01) << name;
    }
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
      Tensors inputs = RandomInputs(graph, 257, 9);
      inputs["labels"] = inputs["input_ids"];
      return CompileAndRun(std::move(graph), setup, inputs);
    };
    RunResult a = run(), b = run();
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_LT(a.losses[2], a.losses[0]);
    for (const auto& [name, t] : a.outputs) EXPECT_TRUE(t == b.outputs.at(name)) << name;
    for (const auto& [name, t] : a.states) {
      EXPECT_TRUE(t == b.states.at(name)) << name;
      EXPECT_EQ(t.dtype(), DType::kF32) << name;
    }
  }
}

}  // namespace
}  // namespace shardc::testing
