// Pipeline stages from the command line: what is written, run, saved and shown.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ir/safetensors.h"
#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class PipelineTool : public ToolTest {
 protected:
  static constexpr const char* kTraining =
      " --optimizer adamw --lr 1e-2 --eps 1e-3 --clip-norm 1 --mesh ";
};

TEST_F(PipelineTool, WhatIsSavedIsWhole) {
  Compile("serial", std::string("--spec serial") + kTraining + "dp=1");
  RunOk(
      "serial --random-inputs 1 --steps 3 --save serial.safetensors --save-params "
      "want.safetensors");
  for (const char* plan : {"pp=2", "pp=2,dp=2 --zero 1", "pp=2,tp=2"}) {
    Compile("plan", std::string("--spec megatron") + kTraining + plan);
    RunOk(
        "plan --random-inputs 1 --steps 3 --check serial.safetensors --rtol 1e-3 --atol 1e-4 "
        "--save-params got.safetensors");
    ExpectSameTensors("want.safetensors", "got.safetensors", 1e-4);
  }
}

TEST_F(PipelineTool, VirtualStages) {
  constexpr const char* kFour = "'builtin:gpt?layers=4,hidden=32,heads=4,vocab=97,seq=8,batch=4'";
  auto compile = [&](const std::string& options) {
    return Tool(StrCat("compile ", kFour, " --loss lm -o plan ", options));
  };
  EXPECT_EQ(compile("--mesh dp=1").exit, 0);
  RunOk("plan --random-inputs 1 --save serial.safetensors");
  auto transfers = [&] {
    const Json dump = Dump("plan");
    return std::ranges::count(dump["collectives"], "send_recv",
                              [](const Json& c) { return c["kind"]; });
  };
  for (auto [virtual_stages, sent] : {std::pair(1, 2), {2, 6}}) {
    const std::string more = StrCat("--microbatches 2 --virtual-stages ", virtual_stages);
    EXPECT_EQ(compile("--spec megatron --mesh pp=2 " + more).exit, 0);
    RunOk("plan --random-inputs 1 --check serial.safetensors --rtol 1e-4 --atol 1e-5");
    EXPECT_EQ(transfers(), 2 * sent + 1);  // of each microbatch, and the tied table's gradient
  }
  ToolResult none = compile("--spec megatron --mesh tp=2 --virtual-stages 2");
  EXPECT_EQ(none.exit, 4);
  EXPECT_THAT(none.err, HasSubstr("E2121: --virtual-stages"));
  for (const char* wrong : {"0", "x", "-1", "3000000000"}) {
    ToolResult r = compile(StrCat("--spec megatron --mesh pp=2 --virtual-stages ", wrong));
    EXPECT_EQ(r.exit, 2) << wrong;
    EXPECT_LT(r.err.size(), 200u) << r.err;
  }
  ToolResult many = compile("--spec megatron --mesh pp=2 --virtual-stages 2000000000");
  EXPECT_EQ(many.exit, 4);
  EXPECT_THAT(many.err, HasSubstr("E2120: --virtual-stages"));
  EXPECT_THAT(many.err, HasSubstr("use 4 virtual stages or less"));
  ToolResult two = compile("--spec megatron --mesh pp=8 --virtual-stages 2");
  EXPECT_EQ(two.exit, 4);
  EXPECT_THAT(two.err, HasSubstr("leave the virtual stages out"));
}

TEST_F(PipelineTool, ProfilesStagesOfTheirOwn) {
  Compile("plan", "--spec megatron --mesh pp=2,dp=2");
  ToolResult r = RunOk("plan --random-inputs 1 --repeat 2 --profile trace.json --json");
  EXPECT_THAT(r.err, HasSubstr("send_recv"));
  EXPECT_THAT(r.err, HasSubstr("mean of 4 ranks and 2 steps"));
  // Both ends of both transfers, on every rank of two steps.
  const Json trace = Json::parse(Read("trace.json"));
  int transfers = 0;
  for (const Json& e : trace["traceEvents"]) transfers += e.value("name", "") == "send_recv";
  EXPECT_EQ(transfers, 2 * 3 * 2 * 2);
}

TEST_F(PipelineTool, DumpShowsStages) {
  Compile("plan", "--spec megatron --mesh pp=2,dp=2");
  ToolResult table = Tool("dump plan");
  EXPECT_EQ(table.exit, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("4 ranks, 2 stages"));
  EXPECT_THAT(table.out, HasSubstr("0 to 1  send_recv"));
  EXPECT_THAT(table.out, HasSubstr("[2,0][3,1]"));
  EXPECT_THAT(table.out, HasSubstr("is on stage 0; "));
  const Json json = Dump("plan");
  int64_t last = -1, transfers = 0;
  for (const Json& c : json["collectives"]) {
    EXPECT_GT(c["id"].get<int64_t>(), last);
    last = c["id"];
    if (c["kind"] == "send_recv") {
      ++transfers;
      EXPECT_EQ(c["axes"], Json({"pp"}));
      const int from = c["from"], to = c["to"];
      EXPECT_EQ(c["groups"], Json({{2 * from, 2 * to}, {2 * from + 1, 2 * to + 1}}));
      EXPECT_EQ(c["bytes"].get<int64_t>(), 4 * c["elements"].get<int64_t>());
    } else {
      const int stage = c["stage"];
      EXPECT_EQ(c["groups"], Json::array({{2 * stage, 2 * stage + 1}}));
    }
  }
  EXPECT_EQ(transfers, 3);  // activation, gradient, gradient of the tied table
  for (const Json& p : json["params"]) {
    if (p["name"] == "transformer.wte.weight") {
      EXPECT_EQ(p["stages"], Json({0, 1}));
    }
    if (p["name"] == "transformer.wpe.weight") {
      EXPECT_EQ(p["stages"], Json::array({0}));
    }
  }
  ToolResult why = Tool("dump plan --why transformer.wte.weight");
  EXPECT_THAT(why.out, HasSubstr("on stage 0, 1 of the pipeline"));
  EXPECT_THAT(Tool("dump plan --program 3").out, HasSubstr("send_recv over pp from 0 to 1"));
}

TEST_F(PipelineTool, WhyNamesTheTransfersOfATiedTable) {
  Compile("plan", std::string("--spec megatron") + kTraining + "pp=2");
  auto transfers = [&](const char* param) {
    const std::string why = Tool(std::string("dump plan --why ") + param).out;
    int n = 0;
    for (size_t at = 0; (at = why.find("send_recv over pp", at)) != std::string::npos; ++at) ++n;
    EXPECT_EQ(n > 0, why.find(std::string(param) + " is on stages 0, 1: ") != std::string::npos);
    return n;
  };
  // Its gradient, and what the update makes of it.
  EXPECT_EQ(transfers("transformer.wte.weight"), 2);
  EXPECT_EQ(transfers("transformer.wpe.weight"), 0);
  Compile("plan", "--spec megatron --mesh pp=2");
  EXPECT_EQ(transfers("transformer.wte.weight"), 1);
}

TEST_F(PipelineTool, MemoryIsThatOfTheLargestStage) {
  Compile("one", "--spec megatron --mesh dp=1");
  Compile("two", "--spec megatron --mesh pp=2");
  const Json one = Dump("one")["memory"];
  const Json two = Dump("two")["memory"];
  std::vector<int64_t> weights;
  for (const char* rank : {"0", "1"}) {
    SafetensorsFile file(Path(std::string("two/weights/rank000") + rank + ".safetensors"));
    weights.push_back(0);
    for (const auto& [name, entry] : file.entries()) {
      weights.back() += 4 * NumElements(entry.shape);
    }
  }
  // The tied table is on both.
  EXPECT_EQ(weights[0] + weights[1], one["weights"].get<int64_t>() + 4 * 97 * 32);
  EXPECT_THAT(weights, Contains(two["weights"].get<int64_t>()));
  EXPECT_LT(two["total"].get<int64_t>(), one["total"].get<int64_t>() * 4 / 5);
}

TEST_F(PipelineTool, RefusesWhatItCannot) {
  ToolResult r = Tool(std::string("compile ") + kModel + " --spec megatron --mesh pp=5 -o no");
  EXPECT_EQ(r.exit, 4);
  EXPECT_THAT(r.err, HasSubstr("E2120"));
}

}  // namespace
}  // namespace shardc::testing
