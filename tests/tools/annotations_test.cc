// Plans by the annotations that a model carries, and models that carry those of a plan.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string DataFolder() { return std::string(SHARDC_SOURCE_DIR) + "/tests/data"; }

class AnnotationsTool : public ToolTest {
 protected:
  ToolResult Works(const std::string& arguments) const {
    ToolResult r = Tool(arguments);
    EXPECT_EQ(r.exit, 0) << arguments << ": " << r.err;
    return r;
  }
  // What a plan moves: kind, ranks and bytes of each collective.
  std::vector<std::string> Moves(const std::string& plan) const {
    std::vector<std::string> moves;
    const Json dump = Json::parse(Works("dump " + plan + " --json").out);
    for (const Json& c : dump["collectives"]) {
      moves.push_back(c["kind"].dump() + c["groups"].dump() + c["bytes"].dump());
    }
    return moves;
  }
  // Copies an export with its data, as "model.onnx".
  void Fetch(const std::string& folder, const std::string& name) const {
    const std::string from = DataFolder() + "/models/" + folder + "/" + name;
    Shell("cp " + from + " model.onnx; cp " + from + ".data . 2>/dev/null");
  }
};

TEST_F(AnnotationsTool, AModelThatCarriesAPlansGivesThatPlan) {
  struct Case {
    std::string folder, name, compile;
  };
  const Case cases[] = {
      {"hf_gpt2", "torchscript_dynamic.onnx", "--bind batch=4,sequence=32 --mesh dp=2,tp=2"},
      {"hf_gpt2", "dynamo_static.onnx", "--mesh tp=4"},
      {"nanogpt", "torchscript_static.onnx", "--mesh tp=3"},
  };
  for (const Case& c : cases) {
    Fetch(c.folder, c.name);
    Works("compile model.onnx --spec megatron " + c.compile + " --annotate own.onnx -o plan");
    const std::string bind = c.compile.substr(0, c.compile.find("--mesh"));
    ToolResult r = Works("compile own.onnx --spec onnx " + bind + " -o again");
    EXPECT_EQ(Moves("again"), Moves("plan")) << c.name;
    Works("run plan --random-inputs 1 --save want.safetensors");
    Works("run again --random-inputs 1 --check want.safetensors --rtol 1e-4 --atol 1e-6");
  }
}

TEST_F(AnnotationsTool, WhatTheOnnxPackageWroteIsFollowed) {
  const std::string data = DataFolder() + "/annotated/";
  Shell("cp " + data + "* .");
  const std::string compile = "compile annotated.onnx --loss none --spec onnx:";
  for (const char* c : {"pair", "grid", "grid --mesh a=2,b=2"}) {
    Works(compile + c + " -o plan");
    Works("run plan --input x=@x.npy --check golden.safetensors --rtol 1e-5 --atol 1e-6");
  }
  Works(compile + "pair -o plan");
  EXPECT_THAT(Works("dump plan --why wq").out, HasSubstr("f32[8, 24@d0/3]"));
  EXPECT_THAT(Works("dump plan --why w2").out, HasSubstr("node 'down': 'w2' cuts dim 0"));

  ToolResult r = Tool("compile annotated.onnx --loss none --spec onnx -o none");
  EXPECT_EQ(r.exit, 4);
  EXPECT_THAT(r.err, HasSubstr("one of: pair, grid"));
  r = Tool(compile + "grid --mesh tp=4 -o none");
  EXPECT_EQ(r.exit, 4);
  EXPECT_THAT(r.err, HasSubstr("error E2130"));
  EXPECT_EQ(List(".").find("none"), std::string::npos);
}

TEST_F(AnnotationsTool, WhatOnnxCannotSayIsNoted) {
  Fetch("gqa_swiglu", "torchscript_static.onnx");
  const std::string compile =
      "compile model.onnx --spec megatron -o plan --annotate own.onnx --mesh ";
  EXPECT_THAT(Works(compile + "tp=2").err, HasSubstr("'layers.0.qkv.weight' the first"));
  // Kept in pieces, because there are fewer kv heads than ranks.
  EXPECT_THAT(Works(compile + "tp=4").err, HasSubstr("'layers.0.qkv.weight' the first"));
}

TEST_F(AnnotationsTool, AFileThatCannotBeWrittenLeavesEverythingAsItWas) {
  Fetch("mlp", "torchscript_static.onnx");
  const std::string before = Read("model.onnx"), files = List(".");
  const std::string compile = "compile model.onnx --loss none --spec serial -o plan --annotate ";
  ToolResult r = Tool(compile + "no/such/folder/own.onnx");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, HasSubstr("error E5003: no/such/folder/own.onnx"));
  EXPECT_EQ(List("."), files);
  // Over the model itself.
  Works(compile + "model.onnx");
  EXPECT_NE(Read("model.onnx"), before);
  Works("compile model.onnx --loss none --spec onnx -o again");
}

TEST_F(AnnotationsTool, OnlyOnnxFilesCarryThem) {
  ToolResult r = Tool(std::string("compile ") + kModel + " --spec onnx -o plan");
  EXPECT_EQ(r.exit, 4);
  EXPECT_THAT(r.err, HasSubstr("error E2131"));
  r = Tool(std::string("compile ") + kModel + " --annotate own.onnx -o plan");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, HasSubstr("error E6111"));
  EXPECT_EQ(List("."), "");
}

TEST_F(AnnotationsTool, NothingElseThatTheCommandNamesIsOverwritten) {
  Fetch("hf_gpt2", "torchscript_static.onnx");
  Write("own.textproto", "param { match: \"*\" }\n");
  Shell("ln -s own.textproto link");
  const std::string compile = "compile model.onnx --loss none --mesh tp=2 --spec own.textproto ";
  struct Case {
    std::string options, other;
  };
  for (const Case& c : {Case{"--annotate ./own.textproto -o plan", "--spec"},
                        {"--annotate link -o plan", "--spec"},
                        {"--module m.safetensors --annotate m.safetensors -o plan", "--module"},
                        {"--annotate plan/own.onnx -o plan/", "the folder of the plan"},
                        {"--annotate plan/weights/own.onnx -o plan", "the folder of the plan"}}) {
    const ToolResult r = Tool(compile + c.options);
    EXPECT_EQ(r.exit, 2) << c.options;
    EXPECT_THAT(r.err, HasSubstr("E6121"));
    EXPECT_THAT(r.err, HasSubstr(c.other));
  }
  Works(compile + "--annotate plan.onnx -o plan");
  Works(compile + "--annotate plan2 -o plan");
}

}  // namespace
}  // namespace shardc::testing
