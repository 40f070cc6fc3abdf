// Random models, meshes and specs: sharded equals serial, or is refused with advice.
//
// SHARDC_FUZZ_CASES is the number of cases of each test, SHARDC_FUZZ_SEED the first seed: a longer
// run is SHARDC_FUZZ_CASES=1000 SHARDC_FUZZ_SEED=100000 test_exec --gtest_filter='*Fuzz*'.
#include "tests/exec/fuzz.h"

#include <gtest/gtest.h>

#include <map>

#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "passes/find_layers.h"
#include "passes/loss.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

constexpr double kF64Tolerance = 1e-9, kF32Tolerance = 1e-3;

// The test's cases are dealt out to several, which ctest runs side by side.
class Fuzz : public ::testing::TestWithParam<int> {
 protected:
  // Calls run(seed), which tells whether the case was refused.
  template <typename Run>
  void ForEachSeed(int64_t cases, const Run& run) {
    const int64_t n = EnvironmentOr("SHARDC_FUZZ_CASES", cases);
    const int64_t first = EnvironmentOr("SHARDC_FUZZ_SEED", 0) + 1'000'000 * GetParam();
    int64_t refused = 0;
    for (int64_t seed = first; seed < first + n && !HasFatalFailure(); ++seed) {
      refused += run(static_cast<uint64_t>(seed));
    }
    RecordProperty("cases", std::to_string(n));
    RecordProperty("refused", std::to_string(refused));
    // Else the generator proves little.
    if (n >= 10) {
      EXPECT_LT(2 * refused, n);
    }
  }
};

// What it has found, so that it stays found whatever the generator draws.
TEST(FuzzFound, StaysFixed) {
  struct Case {
    std::string model, mesh, loss, spec, optimizer = "";
  };
  const std::vector<Case> cases = {
      // The gradient of a norm's weight, cut by choice over one axis and by its state over another.
      {"builtin:gpt?layers=1,hidden=6,heads=1,vocab=16,seq=1,batch=2,qkv=separate,bias=false,"
       "tied=false,dtype=f64",
       "dp=4,tp=2", "ce",
       "param { match: '*ln_2.weight' shard_spec { dims: 0 axes: 'tp' } }\n"
       "param { match: '*mlp.c_fc.weight' shard_spec { dims: 0 axes: 'dp' } }\n"},
      // Ids with padding: none of it is a token.
      {"builtin:gpt?layers=1,hidden=12,heads=2,vocab=27,seq=4,batch=3,dtype=f32", "dp=3", "ce",
       "input { match: 'input_ids' shard_spec { dims: 1 axes: 'dp' } }\n"},
      // A gradient that is padded along one dim and sliced along another, into the state.
      {"builtin:gpt?layers=1,hidden=30,heads=5,kv_heads=1,vocab=26,seq=8,batch=5,bias=false,ffn=17,"
       "init_std=0.3,positions=rope,dtype=f64",
       "dp=2,tp=3", "ce",
       "param { match: '*ln_1.weight' shard_spec { dims: 0 axes: 'dp' dims: 0 axes: 'tp' } }\n"
       "param { match: '*c_attn.weight' shard_spec { dims: 1 axes: 'tp' } }\n"
       "param { match: '*attn.c_proj.weight' shard_spec { dims: 0 axes: 'dp' } }\n",
       "sgd"},
      // A sum that two reshards begin with was reduced twice, in one collective and one place.
      {"builtin:gpt?layers=1,hidden=27,heads=3,vocab=33,seq=4,batch=3,positions=none,"
       "qkv=separate,init_std=0.3,dtype=f64",
       "dp=2,tp=2", "masked_lm",
       "param { match: '*q_proj.weight' shard_spec { dims: 1 axes: 'dp' } }\n"
       "param { match: '*v_proj.bias' shard_spec { dims: -1 axes: 'dp' dims: -1 axes: 'tp' } }\n"
       "input { match: 'input_ids' shard_spec { dims: 1 axes: 'dp' dims: 0 axes: 'tp' } }\n",
       "sgd"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat(c.model, " ", c.mesh, "\n", c.spec));
    const GptConfig config = ParseBuiltin(c.model);
    RunSetup setup;
    setup.pipeline.loss = c.loss;
    setup.pipeline.optimizer.kind = c.optimizer;
    setup.pipeline.optimizer.rate.lr = 0.1;
    setup.pipeline.optimizer.momentum = 0.9;
    if (!c.optimizer.empty()) setup.steps = 3;
    Graph with_loss = BuildGpt(config);
    AttachLoss(with_loss, c.loss);
    const Tensors inputs = RandomInputs(with_loss, config.vocab, 1);
    const RunResult serial = CompileAndRun(BuildGpt(config), setup, inputs);
    setup.mesh = c.mesh;
    setup.spec = c.spec;
    const double tolerance = config.dtype == DType::kF64 ? kF64Tolerance : kF32Tolerance;
    EXPECT_EQ(Differences(CompileAndRun(BuildGpt(config), setup, inputs), serial, tolerance), "");
  }
}

TEST_P(Fuzz, Builtin) {
  ForEachSeed(100, [](uint64_t seed) {
    Dice dice(seed);
    const bool wide = dice.Chance(65);
    const std::string model = RandomModel(dice, wide ? "f64" : "f32");
    RunSetup setup;
    const GptConfig config = ParseBuiltin(model);
    setup.pipeline.loss = config.seq == 1
                              ? dice.Pick<std::string>({"ce", "masked_lm", "dot"})
                              : dice.Pick<std::string>({"lm", "ce", "masked_lm", "dot"});
    // In f32 the steps of an optimizer turn gradients that are rounding noise into updates.
    if (wide) AddRandomOptimizer(dice, setup);
    if (dice.Chance(10)) {
      setup.pipeline.freeze = {dice.Pick<std::string>({"*.0.*", "*mlp*", "*wte*"})};
    }
    Graph with_loss = BuildGpt(config);
    AttachLoss(with_loss, setup.pipeline.loss);
    const Tensors inputs = FuzzInputs(dice, with_loss, config.vocab);
    RunSetup serial = setup;
    serial.session.reference_kernels = true;
    setup.mesh = RandomMesh(dice, config.layers);
    setup.spec = RandomSpec(dice, with_loss, Mesh::Parse(setup.mesh),
                            !setup.pipeline.optimizer.kind.empty());
    AddRandomMemorySaving(dice, setup);
    setup.session.threads = static_cast<int>(dice.Between(1, 8));
    std::string refusal;
    const RunResult expected = CompileAndRun(BuildGpt(config), serial, inputs);
    const std::string problems = CheckSharded(BuildGpt(config), setup, inputs, expected,
                                              wide ? kF64Tolerance : kF32Tolerance, refusal);
    EXPECT_EQ(problems, "") << "seed " << seed << "\n" << Reproduction(model, setup);
    return !refusal.empty();
  });
}

// A model of tests/data/models and its serial run.
struct Imported {
  Export file;
  RunSetup setup;
  Tensors inputs;
  RunResult serial;
};

TEST_P(Fuzz, Imported) {
  const std::vector<Export> all = AllExports();
  std::map<std::string, Imported> runs;
  ForEachSeed(30, [&](uint64_t seed) {
    Dice dice(seed);
    const Export& e = dice.Pick(all);
    const std::string batch = dice.Pick(e.batches);
    const std::string loss = dice.Chance(70) ? e.loss : "dot";
    Imported& run = runs[StrCat(e.model, " ", e.name, " ", batch, " ", loss)];
    if (run.serial.outputs.empty()) {
      run.file = e;
      run.setup.pipeline.loss = loss;
      Graph graph = ImportFor(e, batch);
      AttachLoss(graph, loss);
      run.inputs = RandomInputs(graph, 2, 11);
      for (auto& [name, value] : InputsFor(e, batch)) {
        if (graph.FindInput(name)) run.inputs[name] = value;
      }
      run.serial = CompileAndRun(ImportFor(e, batch), run.setup, run.inputs);
    }
    Graph graph = ImportFor(e, batch);
    AttachLoss(graph, loss);
    RunSetup setup = run.setup;
    setup.mesh = RandomMesh(dice, static_cast<int64_t>(FindLayers(graph).size()));
    setup.spec = RandomSpec(dice, graph, Mesh::Parse(setup.mesh), false);
    std::string refusal;
    const std::string problems = CheckSharded(ImportFor(e, batch), setup, run.inputs, run.serial,
                                              e.float64 ? kF64Tolerance : kF32Tolerance, refusal);
    EXPECT_EQ(problems, "") << "seed " << seed << ", batch " << batch << "\n"
                            << Reproduction(e.path(), setup);
    return !refusal.empty();
  });
}

INSTANTIATE_TEST_SUITE_P(Part, Fuzz, ::testing::Range(0, 4));

}  // namespace
}  // namespace shardc::testing
