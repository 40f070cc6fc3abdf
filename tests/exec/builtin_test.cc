// GPTs of many forms: sharded equals serial, and the fast kernels equal the reference.
#include <gtest/gtest.h>

#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "tests/exec/harness.h"

namespace shardc::testing {
namespace {

class Builtin : public ::testing::TestWithParam<const char*> {};

// Gradients that are zero in exact arithmetic are rounding noise: nothing is relative to less than
// this.
double Floor(const Tensors& outputs) {
  double largest = 0;
  for (const auto& [name, t] : outputs) {
    if (!name.starts_with("grad.")) continue;
    for (int64_t i = 0; i < t.num_elements(); ++i)
      largest = std::max(largest, std::abs(t.AsDouble(i)));
  }
  return 1e-2 * largest;
}

void ExpectEqual(const Tensors& got, const Tensors& want, double tolerance) {
  double floor = Floor(want);
  for (const auto& [name, t] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_LE(WorstDifference(got.at(name), t, floor), tolerance) << name;
  }
}

TEST_P(Builtin, ShardedEqualsSerial) {
  std::string model = StrCat("builtin:gpt?", GetParam());
  Tensors inputs;
  RunResult serial;
  for (const char* dtype : {"f64", "f32"}) {
    std::string full = model + ",dtype=" + dtype;
    Graph graph = BuildGpt(ParseBuiltin(full));
    inputs = RandomTokens(graph, 5);
    inputs["labels"].SetDouble(3, -100);
    bool wide = std::string(dtype) == "f64";
    double tolerance = wide ? 1e-11 : 2e-4;
    if (wide) {
      RunSetup setup;
      setup.session.reference_kernels = true;
      serial = CompileAndRun(std::move(graph), setup, inputs);
    }
    for (auto [spec, mesh] : {std::pair("serial", ""),
                              {"megatron", "tp=2"},
                              {"megatron", "tp=3"},
                              {"megatron", "tp=4"},
                              {"dp", "dp=2"},
                              {"megatron", "dp=2,tp=2"},
                              {"megatron", "dp=3,tp=2"}}) {
      SCOPED_TRACE(StrCat(dtype, " ", spec, " ", mesh));
      RunSetup setup;
      setup.spec = spec;
      setup.mesh = mesh;
      try {
        RunResult result = CompileAndRun(BuildGpt(ParseBuiltin(full)), setup, inputs);
        ExpectEqual(result.outputs, serial.outputs, tolerance);
      } catch (const Diagnostic& d) {
        // Dims that cannot be cut are refused, never wrong.
        if (d.code() != ExitCode::kBadSpec) throw;
        RecordProperty("refused", d.what());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, Builtin,
    ::testing::Values(
        "layers=2,hidden=48,heads=4,vocab=131,seq=16,batch=4",
        "layers=1,hidden=36,heads=3,vocab=97,seq=9,batch=3",
        "layers=1,hidden=40,heads=5,vocab=96,seq=8,batch=2,tied=false,qkv=separate",
        "layers=2,hidden=48,heads=6,kv_heads=2,vocab=64,seq=8,batch=4,activation=swiglu,norm=rms_"
        "norm,positions=rope",
        "layers=1,hidden=32,heads=4,kv_heads=1,vocab=50,seq=6,batch=2,activation=relu,bias=false",
        "layers=1,hidden=24,heads=2,vocab=33,seq=5,batch=6,activation=silu,positions=none,ffn=60",
        // Cut at multiples of 8, with less at the end.
        "layers=1,hidden=24,heads=2,vocab=4099,seq=3,batch=6,ffn=2058",
        "layers=1,hidden=24,heads=2,vocab=4099,seq=3,batch=6,activation=swiglu,ffn=2058,tied=false",
        // Products large enough for AMX tiles.
        "layers=1,hidden=192,heads=3,vocab=523,seq=84,batch=4"));

// A mesh axis is split then, or the kv heads are on every rank, or some ranks have no head.
TEST(FewerHeadsThanRanks, ShardedEqualsSerial) {
  for (auto [form, mesh] :
       {std::pair("heads=8,kv_heads=2,qkv=separate,positions=rope,norm=rms_norm", "tp=4"),
        {"heads=8,kv_heads=2,qkv=fused,positions=rope", "tp=4"},
        {"heads=8,kv_heads=1,qkv=fused", "tp=2"},
        {"heads=8,kv_heads=2,qkv=separate", "dp=2,tp=4"},
        {"heads=8,kv_heads=4,qkv=separate", "tp=8"},
        {"heads=8,kv_heads=1,qkv=separate", "dp=2,tp=4"},
        {"heads=8,kv_heads=2,qkv=separate", "tp=4,dp=2"},
        // 3 query heads of a kv head over 2 ranks.
        {"heads=6,kv_heads=2,qkv=separate", "tp=4"},
        // Blocks of 3 query heads and one kv head, as one weight has them: 2, 1 and 1.
        {"heads=12,kv_heads=4,qkv=fused,positions=rope", "tp=3"},
        // Some ranks have none.
        {"heads=12,kv_heads=4,qkv=fused", "tp=8"},
        {"heads=12,kv_heads=4,qkv=separate,positions=rope", "tp=5"},
        {"heads=6,kv_heads=2,qkv=fused", "tp=8"},
        {"heads=6,qkv=separate,positions=rope", "tp=8"},
        {"heads=2,qkv=fused", "dp=2,tp=3"}}) {
    SCOPED_TRACE(StrCat(form, " on ", mesh));
    std::string model = StrCat("builtin:gpt?layers=2,hidden=48,vocab=67,seq=6,batch=2,", form);
    Tensors inputs = RandomTokens(BuildGpt(ParseBuiltin(model)), 5);
    auto run = [&](const std::string& dtype, const std::string& spec, const std::string& on) {
      RunSetup setup;
      setup.spec = spec;
      setup.mesh = on;
      setup.session.reference_kernels = dtype == "f64";
      setup.pipeline.optimizer.kind = "adamw";
      setup.steps = 2;
      return CompileAndRun(BuildGpt(ParseBuiltin(model + ",dtype=" + dtype)), setup, inputs);
    };
    RunResult serial = run("f64", "serial", ""), sharded = run("f64", "megatron", mesh);
    ExpectEqual(sharded.outputs, serial.outputs, 1e-10);
    ExpectEqual(run("f32", "megatron", mesh).outputs, serial.outputs, 1e-3);
    for (const auto& [name, t] : serial.states) {
      if (name.find("adamw") != std::string::npos) continue;
      ASSERT_TRUE(sharded.states.contains(name)) << name;
      EXPECT_LE(WorstDifference(sharded.states.at(name), t, 1e-3), 1e-10) << name;
    }
  }
}

TEST(Determinism, TheSameBitsTwice) {
  for (const char* mesh : {"", "tp=2", "dp=2,tp=2"}) {
    RunSetup setup;
    setup.spec = "megatron";
    setup.mesh = mesh;
    setup.pipeline.optimizer.kind = "adamw";
    setup.steps = 3;
    auto run = [&] {
      Graph graph =
          BuildGpt(ParseBuiltin("builtin:gpt?layers=2,hidden=64,heads=4,vocab=257,seq=32,batch=4"));
      Tensors inputs = RandomTokens(graph, 9);
      return CompileAndRun(std::move(graph), setup, inputs);
    };
    RunResult a = run(), b = run();
    EXPECT_EQ(a.losses, b.losses);
    for (const auto& [name, t] : a.outputs) EXPECT_TRUE(t == b.outputs.at(name)) << name;
    for (const auto& [name, t] : a.states) EXPECT_TRUE(t == b.states.at(name)) << name;
  }
}

}  // namespace
}  // namespace shardc::testing
