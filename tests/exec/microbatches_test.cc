// The batch in pieces: the same losses and gradients, in less memory.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "passes/emit.h"
#include "tests/exec/models.h"
#include "tests/exec/training.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// A shipped spec and more lines.
std::string With(const std::string& spec, const std::string& more) {
  std::ifstream in(std::string(SHARDC_SOURCE_DIR) + "/specs/" + spec + ".textproto");
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_FALSE(text.str().empty()) << spec;
  return StrCat(text.str(), "\n", more, "\n");
}

std::string Microbatches(int n) { return StrCat("microbatches: ", n); }

// --- exports, against PyTorch

class MicrobatchesExports : public ::testing::TestWithParam<Export> {};

TEST_P(MicrobatchesExports, EqualTheGolden) {
  const Export& e = GetParam();
  for (const std::string& batch : e.batches) {
    Tensors inputs = InputsFor(e, batch);
    const int64_t size = inputs.begin()->second.shape()[0];
    for (auto [spec, mesh, ranks] :
         {std::tuple{"serial", "", 1}, {"megatron", "tp=2", 1}, {"dp", "dp=2", 2}}) {
      for (int n : {2, 3}) {
        if (size % n != 0 || size / n < ranks) continue;
        SCOPED_TRACE(StrCat(batch, " ", spec, " ", mesh, " ", n));
        RunSetup setup;
        setup.spec = With(spec, Microbatches(n));
        setup.mesh = mesh;
        setup.pipeline.loss = e.loss;
        try {
          RunResult result = CompileAndRun(ImportFor(e, batch), setup, inputs);
          EXPECT_EQ(CompareWithGolden(e, batch, result, e.float64 ? 1e-10 : 1e-4), "");
        } catch (const Diagnostic& d) {
          ADD_FAILURE() << d.what();
        }
      }
    }
  }
}

// Those that the importer was written for, and other architectures.
std::vector<Export> Exports() {
  std::vector<Export> exports = AllExports();
  for (auto [model, file, loss] : {std::tuple{"llama", "torchscript_dynamic", "lm"},
                                   {"neox", "dynamo_static", "lm"},
                                   {"bert", "dynamo_static", "ce"},
                                   {"opt", "dynamo_static", "lm"},
                                   {"falcon", "dynamo_static", "lm"},
                                   {"bloom", "dynamo_dynamic", "lm"},
                                   {"albert", "dynamo_static", "ce"},
                                   {"gemma2", "dynamo_static", "lm"},
                                   {"xglm", "torchscript_dynamic", "lm"},
                                   {"gpt2_loss", "dynamo_static", "output:loss"},
                                   {"interleaved", "dynamo_static", "lm"},
                                   {"vit", "dynamo_static", "ce"}}) {
    exports.push_back(StrangerExport(model, file, loss));
  }
  return exports;
}

INSTANTIATE_TEST_SUITE_P(All, MicrobatchesExports, ::testing::ValuesIn(Exports()),
                         [](const auto& info) {
                           return TestName(info.param.model + "_" + info.param.name);
                         });

// --- what travels, and what is held

struct Compiled {
  Graph graph;
  Program program;
};

Compiled CompileFor(const std::string& model, const std::string& spec, const std::string& mesh,
                    const PipelineOptions& options = {}) {
  Compiled c{BuildGpt(ParseBuiltin(model)), {}};
  Spec parsed = SpecOf(spec);
  CompileGraph(c.graph, parsed, MeshFor(parsed, Mesh::Parse(mesh)), options);
  c.program = EmitProgram(c.graph);
  return c;
}

// Over the axis: how many, and elements in all.
std::pair<int64_t, int64_t> Traffic(const Program& program, int axis, int64_t smallest) {
  std::pair<int64_t, int64_t> sum;
  for (const Collective& c : program.collectives) {
    if (c.axes != std::vector<int>{axis} || c.elements < smallest) continue;
    ++sum.first;
    sum.second += c.elements;
  }
  return sum;
}

constexpr const char* kGpt =
    "builtin:gpt?layers=3,hidden=64,heads=4,vocab=256,seq=16,batch=16,tied=true";

TEST(MicrobatchTraffic, GradientsOnceActivationsInPieces) {
  for (const char* more : {"", "zero_stage: 1"}) {
    SCOPED_TRACE(more);
    PipelineOptions options;
    options.optimizer.kind = "adamw";
    const Compiled whole = CompileFor(kGpt, With("megatron", more), "dp=2,tp=2", options);
    for (int n : {2, 4}) {
      const Compiled pieces = CompileFor(
          kGpt, With("megatron", StrCat(more, "\n", Microbatches(n))), "dp=2,tp=2", options);
      // But for the loss and the number of labels, which are scalars.
      EXPECT_EQ(Traffic(pieces.program, 0, 3), Traffic(whole.program, 0, 3)) << n;
      // Activations: 16 x 16 x 64 elements, half of them on a rank.
      const auto [count, elements] = Traffic(whole.program, 1, 8 * 16 * 64);
      EXPECT_EQ(count, 4 * 3 + 2);
      EXPECT_EQ(Traffic(pieces.program, 1, 8 * 16 * 64 / n), std::pair(n * count, elements)) << n;
    }
  }
}

// Stage 3 gathers for the forward and for the backward of each; from stage 2 on the gradients of
// each travel.
TEST(MicrobatchTraffic, OfZerosStages) {
  PipelineOptions options;
  options.optimizer.kind = "adamw";
  auto moved = [&](int stage, int n) {
    const Compiled c = CompileFor(
        kGpt, With("dp", StrCat("zero_stage: ", stage, "\n", Microbatches(n))), "dp=2", options);
    int64_t count = 0, scattered = 0;
    for (const Collective& x : c.program.collectives) {
      count += x.kind == CollectiveKind::kAllGather;
      scattered += x.kind == CollectiveKind::kReduceScatter;
    }
    return std::pair(count, scattered);
  };
  for (int stage : {1, 2, 3}) {
    const auto [gathered, scattered] = moved(stage, 1);
    EXPECT_EQ(moved(stage, 4), std::pair(stage == 3 ? 4 * gathered : gathered,
                                         stage > 1 ? 4 * scattered : scattered))
        << stage;
  }
}

TEST(MicrobatchMemory, OfOneAtATime) {
  const std::string model = "builtin:gpt?layers=6,hidden=64,heads=4,vocab=512,seq=64,batch=16";
  for (const char* recompute : {"none", "selective", "full"}) {
    SCOPED_TRACE(recompute);
    PipelineOptions options;
    options.recompute = recompute;
    options.drop = {"logits"};
    options.optimizer.kind = "adamw";
    auto bytes = [&](int n) {
      const Compiled c = CompileFor(model, With("serial", Microbatches(n)), "", options);
      int64_t gradients = 0;
      for (const Output& o : c.graph.outputs) {
        if (o.name.starts_with("grad.")) gradients += LocalBytes(o.value->type, c.graph.mesh);
      }
      return c.program.arena_bytes - gradients;
    };
    const int64_t whole = bytes(1);
    EXPECT_LT(bytes(2), whole * 0.6);
    EXPECT_LT(bytes(4), whole * 0.4);
  }
}

// --- together

// The order alone is another: the bits of all results are those of one after the other.
TEST(MicrobatchesTogether, GiveTheSameBits) {
  for (const char* keys :
       {"layers=3,hidden=48,heads=4,vocab=131,seq=16,batch=12",
        "layers=2,hidden=48,heads=6,kv_heads=2,vocab=64,seq=8,batch=12,activation=swiglu,"
        "norm=rms_norm,positions=rope,tied=false"}) {
    for (auto [spec, mesh, words] : {std::tuple{"megatron", "tp=2", ""},
                                     {"megatron_sp", "dp=2,tp=2", "bf16_selective"},
                                     {"megatron", "tp=2", "full"},
                                     {"dp", "dp=2", "zero"}}) {
      SCOPED_TRACE(StrCat(keys, " ", spec, " ", mesh, " ", words));
      const bool zero = std::string(words) == "zero";
      auto run = [&](int together) {
        RunSetup setup;
        setup.pipeline = TrainingOptions(words);
        setup.spec = With(spec, StrCat(Microbatches(6), "\nmicrobatches_together: ", together,
                                       zero ? "\nzero_stage: 3" : ""));
        setup.mesh = mesh;
        setup.steps = 2;
        RunResult r = CompileAndRun(BuildKeys(keys), setup, TrainingInputs(keys, setup.pipeline));
        for (auto& [name, t] : r.states) r.outputs["state." + name] = t;
        return r;
      };
      const RunResult alone = run(1);
      for (int together : {2, 4}) {
        const RunResult beside = run(together);
        EXPECT_TRUE(beside.lowered != alone.lowered);
        ASSERT_EQ(beside.outputs.size(), alone.outputs.size());
        for (const auto& [name, t] : alone.outputs) {
          EXPECT_TRUE(t == beside.outputs.at(name)) << name << " of " << together;
        }
      }
    }
  }
}

// --- what a user is told

// The place of an id in the batch, not in its piece.
TEST(MicrobatchErrors, NameThePlaceInTheBatch) {
  Graph graph = BuildKeys("layers=2,hidden=40,heads=5,vocab=97,seq=6,batch=12");
  Tensors inputs = RandomInputs(graph, 50, 7);
  inputs["labels"] = inputs.at("input_ids");
  inputs.at("input_ids").SetDouble(7 * 6 + 2, 1000);
  RunSetup setup;
  setup.spec = With("serial", Microbatches(4));
  const Diagnostic d = Thrown([&] { CompileAndRun(std::move(graph), setup, inputs); });
  EXPECT_NE(std::string(d.what()).find("[7, 2]"), std::string::npos) << d.what();
}

}  // namespace
}  // namespace shardc::testing
