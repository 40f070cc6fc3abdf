// What the backward computes again changes memory, and collectives of full, but not one bit of a
// result.
#include <gtest/gtest.h>

#include <algorithm>

#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "passes/emit.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

struct Setting {
  const char *spec, *mesh, *precision;
};

constexpr Setting kSettings[] = {
    {"serial", "", "f32"},          {"megatron", "tp=2", "f32"},
    {"dp", "dp=2", "f32"},          {"megatron", "dp=2,tp=2", "f32"},
    {"serial", "", "bf16"},         {"megatron", "tp=2", "bf16"},
    {"dp", "dp=2", "bf16"},         {"megatron", "dp=2,tp=2", "bf16"},
    {"megatron_sp", "tp=2", "f32"}, {"megatron_sp", "dp=2,tp=2", "bf16"},
};

RunSetup SetupOf(const Setting& s, const std::string& recompute) {
  RunSetup setup;
  setup.spec = s.spec;
  setup.mesh = s.mesh;
  setup.pipeline.precision.compute = s.precision;
  setup.pipeline.recompute = recompute;
  return setup;
}

void ExpectSameBits(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, t] : want) EXPECT_TRUE(t == got.at(name)) << name;
}

// Sorted kinds and sizes.
std::vector<std::pair<CollectiveKind, int64_t>> Kinds(const RunResult& r) {
  std::vector<std::pair<CollectiveKind, int64_t>> kinds;
  for (const Collective& c : r.collectives) kinds.push_back({c.kind, c.elements});
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

void CheckAll(const std::function<RunResult(const RunSetup&)>& run) {
  for (const Setting& s : kSettings) {
    SCOPED_TRACE(StrCat(s.spec, " ", s.mesh, " ", s.precision));
    RunResult none;
    try {
      none = run(SetupOf(s, "none"));
    } catch (const Diagnostic& d) {
      // Dims that cannot be cut are refused, whatever is computed again.
      if (d.code() != ExitCode::kBadSpec) throw;
      continue;
    }
    RunResult selective = run(SetupOf(s, "selective")), full = run(SetupOf(s, "full"));
    EXPECT_TRUE(selective.lowered != none.lowered);
    EXPECT_TRUE(full.lowered != selective.lowered);
    ExpectSameBits(selective.outputs, none.outputs);
    ExpectSameBits(full.outputs, none.outputs);
    EXPECT_EQ(Kinds(selective), Kinds(none));
    if (std::string_view(s.spec) != "megatron_sp") continue;
    for (const char* gathers : {"gathers", "selective,gathers"}) {
      RunResult r = run(SetupOf(s, gathers));
      EXPECT_TRUE(r.lowered != none.lowered);
      ExpectSameBits(r.outputs, none.outputs);
      EXPECT_GT(Kinds(r).size(), Kinds(none).size());
    }
  }
}

class RecomputeBuiltin : public ::testing::TestWithParam<const char*> {};

TEST_P(RecomputeBuiltin, GivesTheSameBits) {
  std::string model = StrCat("builtin:gpt?layers=3,", GetParam());
  CheckAll([&](RunSetup setup) {
    Graph graph = BuildGpt(ParseBuiltin(model));
    Tensors inputs = RandomTokens(graph, 5);
    setup.pipeline.optimizer.kind = "adamw";
    setup.steps = 2;
    RunResult r = CompileAndRun(std::move(graph), setup, inputs);
    for (auto& [name, t] : r.states) r.outputs["state." + name] = t;
    return r;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Forms, RecomputeBuiltin,
    ::testing::Values("hidden=48,heads=4,vocab=131,seq=16,batch=4",
                      "hidden=40,heads=4,vocab=96,seq=9,batch=2,tied=false,qkv=separate",
                      "hidden=48,heads=6,kv_heads=2,vocab=64,seq=8,batch=4,activation=swiglu,norm="
                      "rms_norm,positions=rope"));

class RecomputeExports : public ::testing::TestWithParam<Export> {};

TEST_P(RecomputeExports, GiveTheSameBitsAndEqualTheGolden) {
  const Export& e = GetParam();
  const std::string& batch = e.batches[0];
  Tensors inputs = InputsFor(e, batch);
  if (e.loss == "dot") inputs.erase("labels");
  CheckAll([&](RunSetup setup) {
    setup.pipeline.loss = e.loss;
    RunResult r = CompileAndRun(ImportFor(e, batch), setup, inputs);
    if (setup.pipeline.precision.compute == "f32") {
      EXPECT_EQ(CompareWithGolden(e, batch, r, 1e-4), "");
    }
    return r;
  });
}

// Of every architecture one export; those with layers to find.
std::vector<Export> Exports() {
  std::vector<Export> exports;
  for (const Export& e : AllExports()) {
    if (e.float64 || e.model == "mlp") continue;
    bool fresh = exports.empty() || exports.back().model != e.model;
    if (fresh) exports.push_back(e);
  }
  const char* strangers[][3] = {
      {"llama", "torchscript_dynamic", "lm"}, {"neox", "dynamo_static", "lm"},
      {"bert", "dynamo_static", "ce"},        {"opt", "dynamo_static", "lm"},
      {"falcon", "dynamo_static", "lm"},      {"bloom", "dynamo_dynamic", "lm"},
      {"albert", "dynamo_static", "ce"},      {"t5enc", "torchscript_dynamic", "dot"}};
  for (auto [model, file, loss] : strangers) {
    exports.push_back(StrangerExport(model, file, loss));
  }
  return exports;
}

INSTANTIATE_TEST_SUITE_P(All, RecomputeExports, ::testing::ValuesIn(Exports()),
                         [](const auto& info) {
                           const std::string& model = info.param.model;
                           return model.substr(model.rfind('/') + 1);
                         });

Program Compile(Graph graph, const std::string& spec, const std::string& mesh,
                const std::string& recompute, std::vector<std::string>* notes = nullptr,
                const std::string& loss = "lm") {
  PipelineOptions options;
  options.recompute = recompute;
  options.loss = loss;
  Spec loaded = SpecOf(spec);
  CompileGraph(graph, loaded, MeshFor(loaded, Mesh::Parse(mesh)), options);
  if (notes) *notes = graph.notes;
  return EmitProgram(graph);
}

// Every architecture's layers are found: norms before and after residuals, parallel branches;
// masks, rotations and learned biases that all layers share; one layer's weights used twice.
TEST_P(RecomputeExports, FindLayers) {
  const Export& e = GetParam();
  std::vector<std::string> notes;
  Compile(ImportFor(e, e.batches[0]), "serial", "", "full", &notes, e.loss);
  size_t layers = e.model == "hf_gpt2" ? 3 : 2;
  ASSERT_FALSE(notes.empty());
  EXPECT_NE(notes.back().find(StrCat("inputs of ", layers, " layers")), std::string::npos)
      << notes.back();
}

// Of a layer's two sums in the forward the first is repeated; the last one ends the layer.
TEST(RecomputeCollectives, FullRepeatsOneOfTwoInEachLayer) {
  for (int layers : {2, 5, 12}) {
    std::string model =
        StrCat("builtin:gpt?layers=", layers, ",hidden=64,heads=8,vocab=256,seq=16,batch=2");
    auto large = [&](const char* recompute) {
      Program p = Compile(BuildGpt(ParseBuiltin(model)), "megatron", "tp=2", recompute);
      std::map<Phase, int> count;
      for (const Instruction& i : p.instructions) {
        if (i.collective < 0) continue;
        const Collective& c = p.collectives[i.collective];
        if (c.elements != 2 * 16 * 64) continue;
        ++count[i.phase];
        bool again = c.why.back().find("computed again for the backward") != std::string::npos;
        if (again) ++count[Phase::kOptimizer];  // there is no optimizer: the place is free
      }
      return count;
    };
    auto none = large("none"), selective = large("selective"), full = large("full");
    EXPECT_EQ(none[Phase::kForward] + none[Phase::kBackward], 4 * layers + 2);
    EXPECT_EQ(selective, none);
    EXPECT_EQ(full[Phase::kForward], none[Phase::kForward]);
    EXPECT_EQ(full[Phase::kBackward], none[Phase::kBackward] + layers);
    EXPECT_EQ(full[Phase::kOptimizer], layers);
  }
}

// Also where a spec cuts what a norm reads, and the norm's statistics are summed over the ranks.
TEST(RecomputeCollectives, SelectiveRepeatsNoneAndNoProduct) {
  const std::string model = "builtin:gpt?layers=3,hidden=64,heads=8,vocab=256,seq=16,batch=2";
  const char* cut_hidden = R"(
    param { role: TOKEN_EMBEDDING shard_spec { dims: -1 axes: "tp" } }
    param { role: NORM shard_spec { dims: 0 axes: "tp" } }
    param { role: MLP_UP part: WEIGHT shard_spec { dims: 0 axes: "tp" } }
  )";
  for (const char* spec : {"megatron", cut_hidden}) {
    size_t products = 0;
    auto count = [&](const char* recompute) {
      Program p = Compile(BuildGpt(ParseBuiltin(model)), spec, "tp=2", recompute);
      products = 0;
      for (const Instruction& i : p.instructions) {
        for (const char* part : {"matmul", "linear", "attention"}) {
          products += i.op.find(part) != std::string::npos;
        }
      }
      return p.collectives.size();
    };
    size_t collectives = count("none"), once = products;
    EXPECT_GT(collectives, 8u);
    EXPECT_EQ(count("selective"), collectives) << spec;
    EXPECT_EQ(products, once) << spec;
    EXPECT_GT(count("full"), collectives) << spec;
    EXPECT_GT(products, once) << spec;
  }
}

// As Megatron-LM under sequence parallelism: an all_gather for each of a layer's two gathered
// norms. What lm_head reads is gathered again too.
TEST(RecomputeCollectives, GathersAgainWhatWasGathered) {
  for (int layers : {2, 5}) {
    std::string model =
        StrCat("builtin:gpt?layers=", layers, ",hidden=64,heads=8,vocab=256,seq=16,batch=2");
    auto kinds = [&](const char* recompute) {
      Program p = Compile(BuildGpt(ParseBuiltin(model)), "megatron_sp", "tp=2", recompute);
      std::map<CollectiveKind, int> count;
      for (const Collective& c : p.collectives) {
        count[c.kind] += c.elements == 2 * 16 * 64;
        const bool again = c.why.back().find("--recompute gathers") != std::string::npos;
        EXPECT_TRUE(!again || c.kind == CollectiveKind::kAllGather);
      }
      return count;
    };
    auto none = kinds("none");
    EXPECT_EQ(none[CollectiveKind::kAllGather], 4 * layers + 2);
    auto more = none;
    more[CollectiveKind::kAllGather] += 2 * layers + 1;
    EXPECT_EQ(kinds("gathers"), more);
    EXPECT_EQ(kinds("selective,gathers"), more);
    EXPECT_EQ(kinds("selective"), none);
  }
}

// Of what travels for the whole sequence a rank keeps its part.
TEST(RecomputeMemory, GathersKeepAPart) {
  auto arena = [&](const char* recompute) {
    std::string model = "builtin:gpt?layers=12,hidden=64,heads=8,vocab=128,seq=64,batch=4";
    Program p = Compile(BuildGpt(ParseBuiltin(model)), "megatron_sp", "tp=8", recompute);
    return static_cast<double>(p.arena_bytes);
  };
  EXPECT_LT(arena("gathers"), 0.75 * arena("none"));
  EXPECT_LT(arena("selective,gathers"), 0.7 * arena("selective"));
}

// Peak memory falls, in the order of what is promised.
TEST(RecomputeMemory, LessThanWithout) {
  for (const char* mesh : {"", "tp=2"}) {
    auto arena = [&](const char* recompute) {
      std::string model = "builtin:gpt?layers=8,hidden=64,heads=4,vocab=128,seq=64,batch=4";
      Program p = Compile(BuildGpt(ParseBuiltin(model)), "megatron", mesh, recompute);
      return static_cast<double>(p.arena_bytes);
    };
    double none = arena("none"), selective = arena("selective"), full = arena("full");
    EXPECT_LT(selective, 0.8 * none) << mesh;
    EXPECT_LT(full, 0.5 * none) << mesh;
  }
}

}  // namespace
}  // namespace shardc::testing
