// ZeRO from the command line: a spec's stage, the flag over it, what is saved, what dump says.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "ir/diagnostic.h"
#include "ir/safetensors.h"
#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class ZeroTool : public ToolTest {
 protected:
  static constexpr const char* kTraining =
      " --optimizer adamw --lr 1e-2 --eps 1e-3 --clip-norm 1 --mesh ";
};

TEST_F(ZeroTool, WhatIsSavedIsWhole) {
  Compile("serial", std::string("--spec serial") + kTraining + "dp=1");
  RunOk(
      "serial --random-inputs 1 --steps 3 --save serial.safetensors --save-params "
      "want.safetensors");
  ASSERT_EQ(SafetensorsFile(Path("want.safetensors")).entries().size(), 28u);
  for (const char* plan : {"--spec dp --zero 2", "--spec megatron --zero 3"}) {
    Compile("plan", std::string(plan) + kTraining + "dp=2,tp=2");
    RunOk(
        "plan --random-inputs 1 --steps 3 --check serial.safetensors --rtol 1e-3 --atol 1e-4 "
        "--save-params got.safetensors");
    ExpectSameTensors("want.safetensors", "got.safetensors", 1e-4);
  }
}

TEST_F(ZeroTool, TheFlagIsOverTheSpec) {
  Write("zero.textproto",
        "mesh { axis { name: 'dp' } }\ninput { match: '*' shard_spec { dims: 0 axes: 'dp' } }\n"
        "zero_stage: 3\n");
  Compile("three", std::string("--spec zero.textproto") + kTraining + "dp=2");
  Compile("none", std::string("--spec zero.textproto --zero 0") + kTraining + "dp=2");
  Compile("two", std::string("--spec dp --zero 2") + kTraining + "dp=2");
  Json three = Dump("three"), none = Dump("none"), two = Dump("two");
  // Matrices are halves, vectors whole.
  const int64_t vectors = 4 * (2 * 13 * 32 + 2 * 32), all = none["memory"]["weights"];
  for (const Json& j : {two, three}) {
    EXPECT_EQ(j["memory"]["gradients"], j["memory"]["weights"]);
    EXPECT_EQ(j["memory"]["optimizer"].get<int64_t>(),
              2 * j["memory"]["weights"].get<int64_t>() + 8);
    EXPECT_LT(j["memory"]["total"], none["memory"]["total"]);
  }
  // The odd vocabulary is cut along the width.
  EXPECT_EQ(three["memory"]["weights"], vectors + (all - vectors) / 2);
  EXPECT_EQ(three["params"][0]["sharding"], "[97, 32@dp]");
  EXPECT_EQ(none["params"][0]["sharding"], "[97, 32]");
  EXPECT_LT(three["memory"]["total"], two["memory"]["total"]);
  ToolResult why = Tool("dump three --why transformer.wpe.weight");
  EXPECT_THAT(why.out, HasSubstr("spec zero.textproto:3:1: zero_stage 3 cuts dim 0 of parameter "
                                 "transformer.wpe.weight over dp"));
  EXPECT_THAT(why.out, HasSubstr("all_gather"));
  EXPECT_THAT(why.out, HasSubstr("reduce_scatter"));
}

TEST_F(ZeroTool, Refusals) {
  auto refused = [&](const std::string& options, int exit, const std::string& what) {
    ToolResult r = Tool(std::string("compile ") + kModel + " -o plan " + options);
    EXPECT_EQ(r.exit, exit) << r.err;
    EXPECT_THAT(r.err, HasSubstr(what));
    EXPECT_EQ(List("."), "");
  };
  refused("--spec dp --mesh dp=2 --optimizer adamw --zero 4", 2, "--zero");
  refused("--spec dp --mesh dp=2 --zero 1", 4, "E2109");
  refused("--spec serial --mesh dp=2 --optimizer adamw --zero 1", 4, "E2108");
}

// A spec may name them for whoever asks for a stage.
TEST_F(ZeroTool, AxesWaitForAStage) {
  Write("axes.textproto", "zero_axes: 'dp'\n");
  const std::string compile = std::string("compile ") + kModel +
                              " -o plan --spec axes.textproto --mesh dp=2 --optimizer adamw";
  ASSERT_EQ(Tool(compile).exit, 0);
  EXPECT_THAT(Tool("dump plan").out, Not(HasSubstr("reduce_scatter")));
  ASSERT_EQ(Tool(compile + " --zero 1").exit, 0);
  EXPECT_THAT(Tool("dump plan").out, HasSubstr("reduce_scatter"));
}

TEST_F(ZeroTool, StagesOfAPipelineAreNotCutOver) {
  Write("z.textproto",
        R"(pipeline_axis: "pp" mesh { axis { name: "dp" } } zero_stage: 3 zero_axes: "pp")");
  ToolResult r = Tool(std::string("compile ") + kModel + " --spec z.textproto --mesh pp=2 -o plan");
  EXPECT_EQ(r.exit, 4);
  EXPECT_THAT(r.err, HasSubstr("error E2122: spec z.textproto:1:"));
}

// What is made of a parameter may be read before the parameter is, and the other way round.
TEST_F(ZeroTool, CopiesOfParametersComeBeforeTheirReaders) {
  Write("first.shardc", R"(graph @m(%x: f32[16, 16]) -> (%y) {
  %w = param "w" : f32[16, 16]
  %0 = matmul %x, %w : f32[16, 16]
  %1 = tanh %0 : f32[16, 16]
  %2 = matmul %1, %1 : f32[16, 16]
  %y = mul %2, %w : f32[16, 16]
})");
  Write("then.shardc", R"(graph @m(%x: f32[16, 16]) -> (%y) {
  %w = param "w" : f32[16, 16]
  %r = exp %w : f32[16, 16]
  %0 = matmul %x, %r : f32[16, 16]
  %1 = tanh %0 : f32[16, 16]
  %y = matmul %1, %w : f32[16, 16]
})");
  for (const char* model : {"first", "then"}) {
    for (const char* precision : {"f32", "bf16"}) {
      ToolResult r =
          Tool(StrCat("compile ", model, ".shardc --spec dp --mesh dp=2 --loss dot --zero 3 ",
                      "--precision ", precision, " --verify-each --weights none -o plan"));
      EXPECT_EQ(r.exit, 0) << model << " " << precision << ": " << r.err;
    }
  }
}

}  // namespace
}  // namespace shardc::testing
