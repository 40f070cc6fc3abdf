// The batch in pieces: the same losses, gradients and updates, in less memory.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "ir/text.h"
#include "passes/emit.h"
#include "passes/loss.h"
#include "tests/exec/models.h"
#include "tests/exec/training.h"
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

// --- built models, against one piece on one rank

constexpr const char* kTied = "layers=2,hidden=40,heads=5,vocab=97,seq=6,batch=12";
constexpr const char* kLlama =
    "layers=2,hidden=32,heads=4,vocab=50,seq=6,batch=12,tied=false,qkv=separate,activation=swiglu,"
    "norm=rms_norm,positions=rope,kv_heads=2";

struct Case {
  const char* model;
  const char* spec;
  const char* mesh;
  std::string more;  // zero3, sgd, full, bf16, masked, chunk, ...
};

std::string SpecFor(const Case& c, int microbatches) {
  std::string more = Microbatches(microbatches);
  for (const char* stage : {"1", "2", "3"}) {
    if (c.more.find(StrCat("zero", stage)) != std::string::npos)
      more += StrCat("\nzero_stage: ", stage);
  }
  return With(c.spec, more);
}

class MicrobatchesTrain : public ::testing::TestWithParam<Case> {};

TEST_P(MicrobatchesTrain, AsTheWholeBatch) {
  const Case& c = GetParam();
  auto build = [&] { return BuildKeys(c.model); };
  RunSetup setup;
  setup.pipeline = TrainingOptions(c.more);
  setup.steps = 3;
  Tensors inputs = TrainingInputs(c.model, setup.pipeline);
  // Examples differ in how many of their labels count.
  for (int64_t i = 0; i < 20; ++i) inputs.at("labels").SetDouble(i, -100);
  const bool half = setup.pipeline.precision.compute != "f32";
  RunResult want = CompileAndRun(build(), setup, inputs);
  setup.mesh = c.mesh;
  for (int n : {2, 4}) {  // 4 leaves three examples in each
    SCOPED_TRACE(n);
    setup.spec = SpecFor(c, n);
    RunResult got = CompileAndRun(build(), setup, inputs);
    EXPECT_NE(got.lowered.find(StrCat("microbatch=", n - 1)), std::string::npos);
    EXPECT_EQ(CompareSteps(got.losses, want.losses, half ? 1e-2 : 1e-5), "");
    EXPECT_EQ(CompareSteps(got.grad_norms, want.grad_norms, half ? 2e-2 : 1e-5), "");
    // In halves single elements of later steps say nothing.
    if (half) continue;
    ExpectTensors(got.outputs, want.outputs, 1e-5);
    ExpectTensors(got.states, want.states, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MicrobatchesTrain,
    ::testing::Values(
        Case{kTied, "serial", "", ""}, Case{kTied, "serial", "", "sgd_masked"},
        Case{kTied, "serial", "", "full"}, Case{kTied, "serial", "", "selective_chunk"},
        Case{kTied, "serial", "", "full_chunk"}, Case{kTied, "serial", "", "f16"},
        Case{kTied, "serial", "", "bf16_selective"}, Case{kTied, "megatron", "tp=2", ""},
        Case{kTied, "dp", "dp=2", ""}, Case{kTied, "dp", "dp=3", "masked"},
        Case{kTied, "dp", "dp=2", "zero1"}, Case{kTied, "dp", "dp=3", "zero2"},
        Case{kTied, "dp", "dp=2", "zero3"}, Case{kTied, "dp", "dp=3", "zero3_full"},
        Case{kTied, "dp", "dp=3", "zero3_bf16"}, Case{kTied, "megatron", "dp=2,tp=2", ""},
        Case{kTied, "megatron", "tp=2,dp=2", "full"},
        Case{kTied, "megatron", "dp=3,tp=2", "zero1_bf16"},
        Case{kTied, "megatron_sp", "dp=2,tp=2", ""},
        Case{kTied, "megatron_sp", "dp=2,tp=2", "zero3_full"}, Case{kLlama, "serial", "", "chunk"},
        Case{kLlama, "dp", "dp=2", "zero3"}, Case{kLlama, "megatron", "tp=4", ""},
        Case{kLlama, "megatron", "dp=2,tp=4", "selective"},
        Case{kLlama, "megatron_sp", "dp=2,tp=2", ""}),
    [](const auto& info) {
      const Case& c = info.param;
      return TestName(
          StrCat(c.model == kTied ? "tied_" : "llama_", c.spec, "_", c.mesh, "_", c.more));
    });

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

// --- what a user is told

// The place of an id in the batch, not in its piece.
TEST(MicrobatchErrors, NameThePlaceInTheBatch) {
  Graph graph = BuildGpt(ParseBuiltin(StrCat("builtin:gpt?", kTied)));
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
