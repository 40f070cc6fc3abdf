// Chains that run for one piece after the other give what they give on the whole.
#include <gtest/gtest.h>

#include <tuple>

#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "ir/text.h"
#include "tests/exec/models.h"
#include "tests/ir/thrown.h"

namespace shardc::testing {
namespace {

constexpr char kModel[] = "builtin:gpt?layers=2,hidden=8,heads=2,vocab=499,seq=40,batch=4";
constexpr char kOther[] =
    "builtin:gpt?layers=2,hidden=8,heads=2,vocab=499,seq=40,batch=4,tied=false,activation=swiglu,"
    "norm=rms_norm,positions=rope";

RunSetup SetupOf(const std::string& spec, const std::string& mesh, const std::string& precision,
                 int pieces) {
  RunSetup setup;
  setup.spec = spec;
  setup.mesh = mesh;
  setup.pipeline.verify_each = true;
  setup.pipeline.precision.compute = precision;
  setup.pipeline.drop = {"logits"};
  if (pieces > 0) setup.pipeline.chunk = {.least_bytes = 1, .pieces = pieces};
  return setup;
}

RunResult RunModel(const RunSetup& setup, const char* model = kModel) {
  Graph graph = BuildGpt(ParseBuiltin(model));
  Tensors inputs = RandomTokens(graph, 5);
  return CompileAndRun(std::move(graph), setup, inputs);
}

size_t Count(const std::string& text, std::string_view word) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) ++n;
  return n;
}

// Alone or with their gradients.
size_t Losses(const std::string& text) {
  return Count(text, "= cross_entropy ") + Count(text, "= cross_entropy_with_grad ");
}

int64_t Elements(const RunResult& r) {
  int64_t n = 0;
  for (const Collective& c : r.collectives) n += c.elements;
  return n;
}

TEST(ChunkExec, EqualsTheWhole) {
  for (auto [spec, mesh, model] :
       {std::tuple{"serial", "", kModel}, {"dp", "dp=2", kModel}, {"serial", "", kOther}}) {
    for (const char* precision : {"f32", "bf16"}) {
      SCOPED_TRACE(StrCat(model, " ", spec, " ", mesh, " ", precision));
      RunResult whole = RunModel(SetupOf(spec, mesh, precision, 0), model);
      EXPECT_EQ(Losses(whole.lowered), 1u);
      for (int pieces : {2, 5}) {
        RunResult parts = RunModel(SetupOf(spec, mesh, precision, pieces), model);
        EXPECT_GE(Losses(parts.lowered), 2u);
        // The number of tokens travels before the chain, no longer with their loss.
        EXPECT_EQ(Elements(parts), Elements(whole));
        EXPECT_LE(parts.collectives.size(), whole.collectives.size() + 1);
        ASSERT_EQ(parts.outputs.size(), whole.outputs.size());
        // Only the order of the sum over tokens changes, in f32.
        double tolerance = precision == std::string("f32") ? 1e-5 : 1e-3;
        for (const auto& [name, t] : whole.outputs) {
          EXPECT_LE(WorstDifference(parts.outputs.at(name), t), tolerance) << name;
        }
      }
    }
  }
}

// A cut vocabulary has collectives between logits and loss: nothing changes.
TEST(ChunkExec, LeavesCutVocabulariesAlone) {
  RunResult whole = RunModel(SetupOf("megatron", "tp=2", "f32", 0));
  RunResult parts = RunModel(SetupOf("megatron", "tp=2", "f32", 2));
  EXPECT_EQ(Count(parts.lowered, "= softmax_stats "), 1u);
  EXPECT_EQ(parts.collectives.size(), whole.collectives.size());
}

// A head's queries and what is made of them are the largest here: a piece has some of them, and
// knows their places. The gradients of keys and values are sums.
TEST(ChunkExec, QueriesOfACausalAttention) {
  const std::string dropping = R"(
    graph @g(%x: f32[1, 12, 3], %w: f32[3, 32], %k: f32[1, 1, 14, 32], %v: f32[1, 1, 14, 32], %d: f32[1, 12, 3], %n: i64[]) -> (y: %y, dx: %dx, dk: %dk, dv: %dv) {
      %q0 = matmul %x, %w : f32[1, 12, 32]
      %q = reshape %q0 {shape=[1, 1, 12, 32]} : f32[1, 1, 12, 32]
      %o, %l = attention %q, %k, %v, %n {causal=true, ratio=0.3, scale=0.5} : f32[1, 1, 12, 32], f32[1, 1, 12]
      %o0 = reshape %o {shape=[1, 12, 32]} : f32[1, 12, 32]
      %y = matmul_nt %o0, %w : f32[1, 12, 3]
      %e0 = matmul %d, %w : f32[1, 12, 32]
      %e = reshape %e0 {shape=[1, 1, 12, 32]} : f32[1, 1, 12, 32]
      %dq, %dk, %dv = attention_grad %e, %q, %k, %v, %o, %l, %n {causal=true, ratio=0.3, scale=0.5} : f32[1, 1, 12, 32], f32[1, 1, 14, 32], f32[1, 1, 14, 32]
      %f = reshape %dq {shape=[1, 12, 32]} : f32[1, 12, 32]
      %dx = matmul_nt %f, %w : f32[1, 12, 3]
    })";
  std::string plain = dropping;
  for (std::string_view what : {", %n {", "ratio=0.3, "}) {
    for (size_t at; (at = plain.find(what)) != std::string::npos;) {
      plain.replace(at, what.size(), what[0] == ',' ? " {" : "");
    }
  }
  for (const std::string& text : {dropping, plain}) {
    SCOPED_TRACE(text);
    auto run = [&](int pieces) {
      Graph graph = ParseGraph(text, "t");
      const Tensors inputs = RandomInputs(graph, 1, 7);
      RunSetup setup = SetupOf("serial", "", "f32", pieces);
      setup.pipeline.loss = "none";
      setup.pipeline.drop = {};
      return CompileAndRun(std::move(graph), setup, inputs);
    };
    const RunResult whole = run(0), parts = run(4);
    EXPECT_EQ(Count(whole.lowered, "= attention "), 1u);
    EXPECT_EQ(Count(parts.lowered, "= attention "), 4u);
    EXPECT_EQ(Count(parts.lowered, "= attention_grad "), 4u);
    EXPECT_EQ(Count(parts.lowered, "origin=[0, 0, 9, 0]"), 2u);
    for (const auto& [name, t] : whole.outputs) {
      EXPECT_LE(WorstDifference(parts.outputs.at(name), t), 1e-6) << name;
    }
  }
}

TEST(ChunkExec, RecomputationChangesNoBit) {
  RunSetup setup = SetupOf("serial", "", "f32", 2);
  RunResult none = RunModel(setup);
  std::string last = none.lowered;
  EXPECT_GE(Losses(last), 2u);
  for (const char* kind : {"selective", "full"}) {
    setup.pipeline.recompute = kind;
    RunResult again = RunModel(setup);
    EXPECT_TRUE(again.lowered != last);  // full finds the layers, although the loss is in pieces
    last = again.lowered;
    for (const auto& [name, t] : none.outputs) EXPECT_TRUE(t == again.outputs.at(name)) << name;
  }
}

// The message names the place in the whole, not in the piece; by the fast kernel and the reference.
TEST(ChunkExec, AWrongLabelIsNamedByItsPlace) {
  for (const char* loss : {"ce", "masked_lm"}) {
    RunSetup setup = SetupOf("serial", "", "f32", 2);
    setup.pipeline.loss = loss;
    Graph graph = BuildGpt(ParseBuiltin(kModel));
    Tensors inputs = RandomTokens(graph, 5);
    inputs["loss_mask"] = HostTensor(DType::kF32, {4, 40});
    if (loss == std::string("ce")) inputs.erase("loss_mask");
    inputs["labels"].SetDouble(3 * 40 + 7, 1234);
    const Diagnostic d = Thrown([&] { CompileAndRun(std::move(graph), setup, inputs); });
    EXPECT_EQ(d.id(), "E4003");
    EXPECT_NE(d.message().find("[3, 7]"), std::string::npos) << d.message();
  }
}

}  // namespace
}  // namespace shardc::testing
