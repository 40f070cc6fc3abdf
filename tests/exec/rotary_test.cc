// Rotary positions as one op in whole models, from the exports to what ranks run.
#include <gtest/gtest.h>

#include <algorithm>

#include "frontend/gpt_config.h"
#include "ir/text.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

int64_t CountOf(const Graph& g, std::string_view op) {
  return std::count_if(g.ops().begin(), g.ops().end(),
                       [&](const auto& o) { return o->name() == op; });
}

struct Stranger {
  const char *model, *file;
  int64_t rotations;  // of two layers' q and k
  bool interleaved;
  int64_t turned, of;   // elements of a head
  int64_t concats = 0;  // that are no part of a rotation
};

// DeepSeek turns a part of each head that it makes apart, and its concats are of both parts.
const Stranger kStrangers[] = {
    {"llama", "torchscript_dynamic", 4, false, 4, 4},
    {"neox", "dynamo_static", 4, false, 2, 4},
    {"falcon", "dynamo_static", 4, false, 4, 4},
    {"gemma2", "dynamo_static", 4, false, 8, 8},
    {"gptj_half", "dynamo_static", 4, false, 2, 4},  // of one pair, which is both
    {"interleaved", "dynamo_static", 4, true, 4, 4},
    {"qwen2_moe", "torchscript_dynamic", 4, false, 6, 6},
    {"llama4", "dynamo_static", 4, true, 8, 8},
    {"gpt_oss", "torchscript_dynamic", 4, false, 8, 8},
    {"deepseek_v3", "dynamo_static", 4, false, 4, 4, 4},
};

TEST(Rotary, IsRecoveredFromExports) {
  for (const Stranger& s : kStrangers) {
    SCOPED_TRACE(s.model);
    const Graph g = ImportFor(StrangerExport(s.model, s.file), "b2_s8");
    EXPECT_EQ(CountOf(g, "rotary"), s.rotations);
    EXPECT_EQ(CountOf(g, "concat"), s.concats);
    EXPECT_EQ(CountOf(g, "neg"), 0);
    for (const auto& op : g.ops()) {
      if (op->name() != "rotary") continue;
      EXPECT_EQ(op->attrs.Bool("interleaved"), s.interleaved);
      EXPECT_EQ(op->in(0).shape.back(), s.of);
      EXPECT_EQ(2 * op->in(1).shape.back(), s.turned);
    }
  }
}

// By slices, by split, and as ONNX's own op, each for q and k of two layers.
TEST(Rotary, IsRecoveredFromEveryExportOfGqa) {
  int exports = 0;
  for (const Export& e : AllExports()) {
    if (e.model != "gqa_swiglu") continue;
    SCOPED_TRACE(e.name);
    const Graph g = ImportFor(e, e.batches[0]);
    EXPECT_EQ(CountOf(g, "rotary"), 4);
    EXPECT_EQ(CountOf(g, "neg"), 0);
    EXPECT_EQ(CountOf(g, "concat"), 0);
    ++exports;
  }
  EXPECT_GE(exports, 5);
}

constexpr char kModel[] =
    "builtin:gpt?layers=2,hidden=40,heads=5,kv_heads=5,qkv=separate,seq=7,batch=2,vocab=64,"
    "activation=swiglu,norm=rms_norm,positions=rope";

RunResult RunModel(const char* spec, const char* mesh, const char* precision = "f32") {
  RunSetup setup;
  setup.pipeline.loss = "lm";
  setup.pipeline.precision.compute = precision;
  setup.spec = spec;
  setup.mesh = mesh;
  Graph graph = BuildGpt(ParseBuiltin(kModel));
  Tensors inputs = RandomTokens(graph, 3);
  return CompileAndRun(std::move(graph), setup, inputs);
}

// Five heads and seven tokens over two, three and four ranks: the tables are cut as the tokens are,
// and both have padding.
TEST(Rotary, OfUnevenHeadsAndTokens) {
  const RunResult serial = RunModel("serial", "");
  for (auto [spec, mesh] : {std::pair("megatron", "tp=2"),
                            {"megatron", "cp=2"},
                            {"megatron", "cp=3,tp=2"},
                            {"megatron_sp", "tp=2"},
                            {"megatron_sp", "cp=2,tp=2"},
                            {"megatron", "tp=4"}}) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    const RunResult r = RunModel(spec, mesh);
    ASSERT_FALSE(serial.outputs.empty());
    for (const auto& [name, want] : serial.outputs) {
      EXPECT_LE(WorstDifference(r.outputs.at(name), want), 1e-5) << name;
    }
  }
}

// The angles keep their digits; q and k are rounded once, as attention reads them, and what comes
// back is read as attention gives it.
TEST(Rotary, RoundsOnceByTablesInF32) {
  for (const char* precision : {"bf16", "f16"}) {
    const RunResult r = RunModel("megatron", "tp=2", precision);
    const Graph g = ParseGraph(r.lowered, "lowered");
    int rotations = 0;
    for (const auto& op : g.ops()) {
      if (op->name() != "rotary") continue;
      const bool back = op->attrs.Bool("inverse");
      EXPECT_EQ(DTypeName(back ? op->in(0).dtype : op->out().dtype), precision);
      EXPECT_EQ(op->in(1).dtype, DType::kF32);
      EXPECT_EQ(op->in(2).dtype, DType::kF32);
      ++rotations;
    }
    EXPECT_EQ(rotations, 2 * 2 * 2);  // layers, q and k, there and back
  }
}

}  // namespace
}  // namespace shardc::testing
