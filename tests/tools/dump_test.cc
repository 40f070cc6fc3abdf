// dump: what a plan communicates, and why; and what compile refuses.
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

class DumpTest : public ToolTest {
 protected:
  std::string Dump(const std::string& arguments) const {
    ToolResult r = Tool("dump " + arguments);
    EXPECT_EQ(r.exit, 0) << r.err;
    EXPECT_EQ(r.err, "");
    return r.out;
  }
};

// 4L + 2 all_reduces of b * s * h elements, and three small ones for the loss.
TEST_F(DumpTest, JsonOfTheMegatronSpec) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2");
  Json json = Json::parse(Dump("plan --json"));
  EXPECT_EQ(json["mesh"].dump(), R"({"dp":1,"tp":2})");
  std::map<std::string, int> full;
  for (const Json& c : json["collectives"]) {
    EXPECT_EQ(c["kind"], "all_reduce");
    EXPECT_EQ(c["axes"].dump(), R"(["tp"])");
    EXPECT_EQ(c["groups"].dump(), "[[0,1]]");
    EXPECT_EQ(c["dtype"], "f32");
    EXPECT_EQ(c["bytes"], c["elements"].get<int64_t>() * 4);
    ASSERT_FALSE(c["why"].empty());
    EXPECT_THAT(c["why"][0].get<std::string>(), StartsWith("spec megatron:"));
    if (c["elements"] == 2 * 16 * 32) ++full[c["phase"]];
  }
  EXPECT_EQ(full["forward"], 5);
  EXPECT_EQ(full["backward"], 5);
  ASSERT_EQ(json["params"].size(), 28u);
  EXPECT_EQ(
      json["params"][0].dump(),
      R"({"local_shape":[49,32],"name":"transformer.wte.weight","shape":[97,32],"sharding":"[97@tp, 32]"})");
  const Json& memory = json["memory"];
  EXPECT_GT(memory["activations"], 0);
  EXPECT_EQ(memory["weights"], memory["gradients"]);
  EXPECT_EQ(memory["gradients"].get<int64_t>() + memory["activations"].get<int64_t>(),
            memory["arena"]);
  EXPECT_EQ(memory["optimizer"], 0);
  // Token ids and labels in i64, and constants.
  EXPECT_GE(memory["inputs"], 2 * 2 * 16 * 8);
  // A rank's columns of the largest product, 384 deep.
  EXPECT_EQ(memory["kernels"], 4 * 384 * 64);
  int64_t sum = 0;
  for (const char* key : {"weights", "inputs", "arena", "kernels"}) {
    sum += memory[key].get<int64_t>();
  }
  EXPECT_EQ(memory["total"], sum);
}

TEST_F(DumpTest, GroupsOfAMesh) {
  Compile("plan", "--spec megatron --mesh dp=2,tp=2 --optimizer sgd");
  Json json = Json::parse(Dump("plan --json"));
  std::map<std::string, std::string> groups;
  bool optimizer = false;
  for (const Json& c : json["collectives"]) {
    groups[c["axes"].dump()] = c["groups"].dump();
    optimizer |= c["phase"] == "optimizer";
  }
  EXPECT_EQ(groups[R"(["tp"])"], "[[0,1],[2,3]]");
  EXPECT_EQ(groups[R"(["dp"])"], "[[0,2],[1,3]]");
  EXPECT_TRUE(optimizer);
}

TEST_F(DumpTest, Table) {
  Compile("plan", "--spec megatron --mesh dp=2,tp=2");
  std::string table = Dump("plan");
  EXPECT_THAT(table,
              AllOf(HasSubstr("mesh dp=2,tp=2, 4 ranks"), HasSubstr("[0,1][2,3]"),
                    HasSubstr("transformer.h.1.mlp.c_proj"),
                    HasSubstr("MLP_DOWN cuts dim 0 of parameter"), HasSubstr("[1, 16, 32]")));
  EXPECT_THAT(table, AllOf(HasSubstr("\ntotal "), HasSubstr("\nweights "), HasSubstr("\narena ")));
  Compile("wide", "--spec megatron --mesh dp=8,tp=4 --weights none --bind batch=8");
  EXPECT_THAT(Dump("wide"), AllOf(HasSubstr("8 groups of 4: [0,1,2,3] ..."),
                                  HasSubstr("4 groups of 8: [0,4,..,28] ...")));
  Compile("serial", "--spec serial");
  EXPECT_THAT(Dump("serial"), HasSubstr("no collectives"));
}

TEST_F(DumpTest, Why) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2");
  std::string why = Dump("plan --why transformer.h.0.mlp.c_proj.weight");
  EXPECT_THAT(why, AllOf(HasSubstr("MLP_DOWN: f32[128@tp, 32], [64, 32] on every rank"),
                         HasSubstr("forward all_reduce over tp of f32 [2, 16, 32], 4096 bytes"),
                         Not(HasSubstr("h.1.")), Not(HasSubstr("backward"))));
  EXPECT_EQ(Dump("plan --why h.0.mlp.c_proj.weight"), why);
  EXPECT_THAT(Dump("plan --why h.1.mlp.c_fc.weight"),
              AllOf(HasSubstr("backward all_reduce"), Not(HasSubstr("forward all_reduce"))));
  EXPECT_THAT(Dump("plan --why ln_f.weight"),
              AllOf(HasSubstr("nothing cuts it"), HasSubstr("causes no collective")));

  ToolResult r = Tool("dump plan --why transformer.h.0.mlp.c_pro.weight");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, AllOf(HasSubstr("E6107"), HasSubstr("transformer.h.0.mlp.c_proj.weight")));
  r = Tool("dump plan --why zzzz");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, AllOf(HasSubstr("E6107"), HasSubstr("dump --json")));
  r = Tool("dump plan --why c_fc");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, HasSubstr("names with it: transformer.h.0.mlp.c_fc."));
  r = Tool("dump plan --why mlp.c_proj.weight");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, HasSubstr("say which: transformer.h.0.mlp.c_proj.weight"));
}

TEST_F(DumpTest, WhyOfAllThatAGlobMatches) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2");
  const auto of = [&](const std::string& name) { return Dump("plan --why '" + name + "'"); };
  EXPECT_EQ(of("transformer.h.?.mlp.c_proj.weight"),
            StrCat(of("h.0.mlp.c_proj.weight"), "\n", of("h.1.mlp.c_proj.weight")));
  EXPECT_EQ(of("*.h.1.mlp.c_fc.w*"), of("h.1.mlp.c_fc.weight"));
  const ToolResult r = Tool("dump plan --why '*.h.2.mlp.c_fc.*'");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, AllOf(HasSubstr("E6107"), HasSubstr("matches no parameter of the plan"),
                           HasSubstr("the nearest names: transformer.h.0.mlp.c_fc.")));

  const std::string many = "'builtin:gpt?layers=10,hidden=8,heads=1,vocab=9,seq=4,batch=1'";
  Compile("many", "--weights none", many);
  const std::string all = Dump("many --why '*'");
  EXPECT_THAT(all, HasSubstr("more, whose names match, too\n"));
}

// What one rule cuts along one dim and another along another, over the same axis: the reason is
// that of the cut which the op has, not of one that its operand had or its result would have.
TEST_F(DumpTest, TheReasonIsThatOfTheDim) {
  const auto why = [&](const std::string& op, const std::string& phase, const std::string& site) {
    const Json dump = Json::parse(Dump("plan --json"));
    for (const Json& c : dump["collectives"]) {
      if (c["op"] == op && c["phase"] == phase && c["site"] == site) return c["why"][0].dump();
    }
    return std::string("no such collective");
  };
  const std::string mesh = "mesh { axis { name: \"b\" } }\n";
  // The batch is cut backward because the labels are; the residual's width forward, by the bias.
  Write("batch.spec", mesh + R"(input { match: "labels" shard_spec { dims: 0 axes: "b" } }
    param { match: "*.h.0.mlp.c_proj.bias" shard_spec { dims: 0 axes: "b" } })");
  Compile("plan", "--spec batch.spec --mesh b=2 --weights none");
  EXPECT_THAT(why("matmul_tn", "backward", "transformer.h.0.attn.c_attn"), HasSubstr("labels"));
  // The sequence is, where the embedding's result is, and not the batch as that of its ids.
  Write("value.spec", mesh + R"(input { match: "input_ids" shard_spec { dims: 0 axes: "b" } }
    value { role: TOKEN_EMBEDDING shard_spec { dims: 1 axes: "b" } })");
  Compile("plan", "--spec value.spec --mesh b=2 --weights none");
  EXPECT_THAT(why("attention", "forward", "transformer.h.0.attn"), HasSubstr("TOKEN_EMBEDDING"));
}

TEST_F(DumpTest, Program) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2");
  EXPECT_THAT(Dump("plan --program"), HasSubstr("rank 0 of 2"));
  EXPECT_THAT(Dump("plan --program 1"), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("all_reduce")));
  ToolResult r = Tool("dump plan --program 2");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, HasSubstr("E6106"));
  EXPECT_EQ(Tool("dump plan --program --json").exit, 2);
  r = Tool("dump plan --program ''");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, HasSubstr("--program: a value is missing"));
}

TEST_F(DumpTest, RefusesDamageInAnyProgramAndInTheGraph) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2");
  for (const std::string name : {"rank0001.program", "graph.shardc"}) {
    const std::string bytes = Read("plan/" + name);
    std::string damaged = bytes;
    damaged[bytes.size() / 2] ^= 1;
    Write("plan/" + name, damaged);
    for (const char* how : {"dump plan", "dump plan --program 0"}) {
      ToolResult r = Tool(how);
      EXPECT_EQ(r.exit, 5);
      EXPECT_THAT(r.err, AllOf(HasSubstr("E3002"), HasSubstr(name)));
      EXPECT_EQ(r.out, "");
    }
    Write("plan/" + name, bytes);
  }
}

TEST_F(DumpTest, AFullStandardOutputIsAnError) {
  Compile("plan", "--spec serial");
  for (const char* said : {"--help", "--version", "dump --help"}) {
    EXPECT_EQ(Tool(said + std::string(" >/dev/full")).exit, 74) << said;
  }
  ToolResult r = Tool("dump plan >/dev/full");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, HasSubstr("E5003"));
}

class CompileTest : public ToolTest {
 protected:
  void Fails(const std::string& options, int exit, std::vector<std::string> parts) const {
    ToolResult r = Tool(std::string("compile ") + kModel + " -o plan " + options);
    EXPECT_EQ(r.exit, exit) << options << ": " << r.err;
    for (const std::string& part : parts) EXPECT_THAT(r.err, HasSubstr(part)) << options;
    EXPECT_THAT(List("."), Not(HasSubstr("plan"))) << options;
  }
};

TEST_F(CompileTest, SpecMistakes) {
  Write("match.textproto",
        "param { match: \"transformer.h.*.mlp.c_fcc.weight\" shard_spec { dims: -1 axes: \"tp\" } "
        "}\n");
  Fails("--mesh tp=2 --spec match.textproto", 4,
        {"E2102", "spec match.textproto:1:1", "transformer.h.0.mlp.c_fc.weight"});
  Write("axis.textproto",
        "\nparam { match: \"*.mlp.c_fc.weight\" shard_spec { dims: -1 axes: \"tpp\" } }\n");
  Fails("--mesh tp=2 --spec axis.textproto", 4,
        {"E2104", "spec axis.textproto:2:1", "did you mean 'tp'"});
  Write("field.textproto", "param { matc: \"x\" }\n");
  Fails("--mesh tp=2 --spec field.textproto", 4,
        {"E2100", "spec field.textproto:1:", "did you mean 'match'"});
  Fails("--spec megatronn", 74, {"E5001", "did you mean 'megatron'"});
}

TEST_F(CompileTest, MeshMistakes) {
  Fails("--spec megatron --mesh tp", 4, {"E2001", "'tp' is not name=size"});
  Fails("--spec megatron --mesh tp=0", 4, {"E2001", "size 0"});
  Fails("--spec megatron --mesh tp=2,tp=2", 4, {"E2001"});
  Fails("--spec megatron --mesh a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=1,dp=2,tp=1", 4,
        {"E2001", "has 8 axes of more than one rank", "over 7 at most", "join axes"});
}

// They are no error, but it is said.
TEST_F(CompileTest, AxesThatNothingIsCutOver) {
  auto warns = [&](const std::string& options, std::initializer_list<const char*> parts) {
    ToolResult r = Tool(std::string("compile ") + kModel + " -q " + options + " -o plan");
    EXPECT_EQ(r.exit, 0) << options;
    for (const char* part : parts) EXPECT_THAT(r.err, HasSubstr(part));
    EXPECT_EQ(r.err.empty(), parts.size() == 0) << options;
  };
  warns("--spec megatron --mesh dp=1,tq=2", {"nothing is cut over axis 'tq'", "did you mean 'tp'"});
  warns("--spec dp --mesh pp=2,dp=2", {"axis 'pp': its 2 ranks", "spec dp cuts over dp"});
  warns("--spec megatron --mesh pp=2,tp=2", {});  // a pipeline
  warns("--mesh tp=2", {"spec serial cuts nothing"});
  warns("--spec megatron --mesh pp=1,tp=2", {});
}

TEST_F(CompileTest, UsageMistakes) {
  Fails("--weights all", 2, {"--weights"});
  Fails("--loss lmm", 2, {"E6101"});
  Fails("--optimizer adam", 2, {"E6102"});
  Fails("--optimizer adamw --lr ''", 2, {"--lr", "a value is missing"});
  Fails("--freeze ''", 2, {"--freeze", "a value is missing"});
  Fails("--lr=", 2, {"--lr", "a value is missing"});
  Fails("--bind batch=2 --bind batch=4", 2, {"E6104", "--bind batch=4", "'batch' has another"});
  Fails("--bind batch=2 --shape input_ids=4x16", 2, {"E6104", "'batch' has another"});
  Fails("--dropout-seed 9223372036854775808", 2, {"is no seed"});
  Fails("--optimizer adamw --lr-decay cosin", 2, {"E6102", "use constant, linear or cosine"});
  Fails("--drop logit", 2, {"E6110", "did you mean 'logits'"});
  Fails("--drop tokens", 2, {"E6110", "\n  outputs: logits"});
  Fails("--drop 'token*'", 2, {"E6110", "no output 'token*' to leave out"});
  Fails("--drop loss", 2, {"E6110", "no output 'loss' to leave out"});
  Fails("--freeze '*.wtf.*'", 2, {"E6105", "--freeze", "matches '*.wtf.*'", "wte.weight"});
  Fails("--train-only 'lora*'", 2, {"E6105", "--train-only", "the nearest names: "});
  Write(
      "g.shardc",
      "graph @g(%x: f32[1, 2]) -> (%y) {\n"
      "  %w = param \"val_0\" {aliases=[\"l.weight\"], source_aliases=[\"l.weight\"]} : f32[2, 2]\n"
      "  %y = matmul %x, %w : f32[1, 2]\n"
      "}\n");
  EXPECT_THAT(Tool("compile g.shardc -o plan --loss none --freeze '*lora*'").err,
              HasSubstr("computed 'val_0' from a parameter: compile with --module FILE"));
  Write("g.shardc",
        "graph @g(%x: f32[1, 2]) -> (%y) {\n"
        "  %w = param \"val_0\" {aliases=[\"l.weight\"], source_aliases=[\"l.weight\"], "
        "transpose_of=\"l.weight\"} : f32[2, 2]\n"
        "  %y = matmul %x, %w : f32[1, 2]\n"
        "}\n");
  EXPECT_THAT(Tool("compile g.shardc -o plan --loss none --freeze '*lora*'").err,
              Not(HasSubstr("computed 'val_0'")));
  Fails("--freeze '*' --optimizer sgd", 2, {"E6102", "no gradient to step along"});
  Fails("--loss none --drop logits", 2, {"E6110", "nothing is left for the plan to compute"});
  Fails("--recompute some", 2, {"E6109", "use none, selective, gathers or full"});
  Fails("--print-after fuse,fus", 2, {"E6103", "no pass 'fus' ran", "did you mean 'fuse'"});
  Fails("--microbatches 0", 2, {"E6100: shardc compile: --microbatches: Value 0 not in range"});
  EXPECT_EQ(Tool("compile").exit, 2);
  const ToolResult nothing = Tool("");
  EXPECT_EQ(nothing.exit, 2);
  EXPECT_THAT(nothing.err, HasSubstr("E6100: shardc: A subcommand is required"));
  const ToolResult verb = Tool("compil " + std::string(kModel));
  EXPECT_EQ(verb.exit, 2);
  EXPECT_THAT(verb.err, AllOf(HasSubstr("E6112"), HasSubstr("did you mean 'compile'"),
                              HasSubstr("verbs: compile, run, dump, opt, mesh")));
  EXPECT_EQ(Tool("--help").exit, 0);
  // CLI11 writes a default as =0.001, from 2.4 on as [0.001].
  EXPECT_THAT(Tool("compile --help").out, AllOf(ContainsRegex("--lr FLOAT( \\[|=)0.001"),
                                                ContainsRegex("--betas FLOAT( \\[|=)0.9,0.999"),
                                                ContainsRegex("--spec TEXT( \\[|=)serial")));
}

}  // namespace
}  // namespace shardc::testing
