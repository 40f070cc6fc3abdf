// The loader of shard specs.
#include "specs/spec.h"

#include <gtest/gtest.h>

#include "tests/ir/file_testing.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc {
namespace {

using ::shardc::testing::ExpectThrown;
using ::shardc::testing::Thrown;

void ExpectRefused(const std::string& text, std::string_view id, std::string_view where,
                   std::string_view what) {
  Diagnostic d = Thrown([&] { ParseSpec(text, "s"); });
  EXPECT_EQ(d.id(), id) << d.what();
  EXPECT_EQ(d.where(), where) << d.what();
  EXPECT_EQ(d.code(), ExitCode::kBadSpec);
  EXPECT_NE((d.message() + "; " + d.fix()).find(what), std::string::npos) << d.what();
}

TEST(ShippedSpecs, EachLoads) {
  EXPECT_EQ(ShippedSpecs(),
            (std::vector<std::string>{"colotensor_tutorial", "dp", "megatron", "megatron_hf_gpt2",
                                      "megatron_sp", "serial", "ulysses"}));
  for (const std::string& name : ShippedSpecs()) {
    Spec spec = LoadSpec(name);
    EXPECT_EQ(spec.name, name);
    std::vector<MeshAxis> mesh = {{"dp", 1}, {"tp", 1}};
    if (name == "megatron" || name == "megatron_sp") mesh.insert(mesh.begin() + 1, {"cp", 1});
    if (name == "ulysses") mesh.emplace_back("cp", 1);
    EXPECT_EQ(spec.mesh, mesh) << name;
    EXPECT_EQ(spec.inputs.size(), name == "serial" ? 0u : 1u) << name;
    EXPECT_EQ(spec.params.empty(), name == "serial" || name == "dp") << name;
    for (const SpecRule& rule : spec.params) {
      EXPECT_EQ(rule.where.file, name);
      EXPECT_GT(rule.where.line, 1) << name;
    }
  }
}

TEST(LoadSpec, ReadsAFileOfThatPath) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.File("spec.textproto");
  testing::WriteBytes(path, "param { match: 'w' shard_spec { dims: 0 axes: 'tp' } }");
  Spec spec = LoadSpec(path);
  EXPECT_EQ(spec.name, path);
  EXPECT_EQ(spec.params[0].where.ToString(), "spec " + path + ":1:1");
}

TEST(LoadSpec, NamesTheShippedOnes) {
  Diagnostic d = Thrown([] { LoadSpec("megatrom"); });
  EXPECT_EQ(d.id(), "E5001");
  EXPECT_EQ(d.code(), ExitCode::kIo);
  EXPECT_EQ(d.where(), "--spec megatrom");
  EXPECT_NE(d.fix().find("shipped: colotensor_tutorial, dp, megatron,"), std::string::npos);
  EXPECT_NE(d.fix().find("did you mean 'megatron'"), std::string::npos) << d.fix();
}

TEST(LoadSpec, AFolderIsNoSpec) {
  ExpectThrown([] { LoadSpec(::testing::TempDir()); }, "E5001", "--spec");
  const Diagnostic d = Thrown([] { LoadSpec("none.at.all"); });
  EXPECT_EQ(d.id(), "E5001");
  EXPECT_TRUE(d.fix().ends_with("megatron_sp, serial, ulysses")) << d.fix();
}

TEST(ParseSpec, ReadsEveryField) {
  Spec spec = ParseSpec(R"(
    mesh { axis { name: "dp" size: 2 } axis { name: "tp" } }
    param {
      match: "*.qkv" role: QKV part: BIAS
      shard_spec { dims: -1 axes: "tp" segments: 4 segments: 2 segments: 2 }
      compute_spec { pattern: TP1D output_replicate: false }
      weight_decay: false may_match_nothing: true
    }
    param { role: NORM }
    input { match: "x" shard_spec { dims: 0 dims: 0 axes: "dp" axes: "tp" } }
    value { match: "h.*.mlp" shard_spec { dims: -2 axes: "tp" } may_match_nothing: true }
    value { role: MLP_DOWN shard_spec { dims: 1 axes: "dp" } }
  )",
                        "s");
  EXPECT_EQ(spec.mesh, (std::vector<MeshAxis>{{"dp", 2}, {"tp", 1}}));
  const SpecRule& r = spec.params.at(0);
  EXPECT_EQ(r.where.ToString(), "spec s:3:5");
  EXPECT_EQ(r.match, "*.qkv");
  EXPECT_EQ(r.role, "QKV");
  EXPECT_EQ(r.part, "bias");
  ASSERT_EQ(r.cuts.size(), 1u);
  EXPECT_EQ(r.cuts[0].dim, -1);
  EXPECT_EQ(r.cuts[0].axis, "tp");
  EXPECT_EQ(r.cuts.at(0).segments, (std::vector<int64_t>{4, 2, 2}));
  EXPECT_EQ(r.output_replicate, false);
  EXPECT_EQ(r.weight_decay, false);
  EXPECT_TRUE(r.may_match_nothing);
  EXPECT_EQ(spec.params.at(1).output_replicate, std::nullopt);
  EXPECT_EQ(spec.params[1].weight_decay, std::nullopt);
  EXPECT_FALSE(spec.params[1].may_match_nothing);
  ASSERT_EQ(spec.inputs.at(0).cuts.size(), 2u);
  EXPECT_EQ(spec.inputs[0].cuts[1].axis, "tp");
  ASSERT_EQ(spec.values.size(), 2u);
  EXPECT_EQ(spec.values[0].match, "h.*.mlp");
  EXPECT_EQ(spec.values[0].cuts.at(0).dim, -2);
  EXPECT_TRUE(spec.values[0].may_match_nothing);
  EXPECT_EQ(spec.values[1].role, "MLP_DOWN");
  EXPECT_EQ(spec.values[1].where.ToString(), "spec s:12:5");
}

// ColoTensor: what has a compute spec is made whole unless it says otherwise.
TEST(ParseSpec, OutputReplicateIsTrueByDefault) {
  Spec spec = ParseSpec("param { match: 'w' compute_spec { pattern: TP1D } }", "s");
  EXPECT_EQ(spec.params[0].output_replicate, true);
}

TEST(ParseSpec, ProcessGroupIsAMeshOfOneAxis) {
  EXPECT_EQ(ParseSpec("process_group { tp_degree: 4 }", "s").mesh,
            (std::vector<MeshAxis>{{"tp", 4}}));
  EXPECT_EQ(ParseSpec("process_group { }", "s").mesh, (std::vector<MeshAxis>{{"tp", 1}}));
}

TEST(ParseSpec, RefusesTextThatDoesNotParse) {
  ExpectRefused("param {\n  macth: 'w' }", "E2100", "spec s:2:3", "did you mean 'match'");
  ExpectRefused("param { role: MLP_DWON }", "E2100", "spec s:1:15", "did you mean 'MLP_DOWN'");
  ExpectRefused("\nparm { match: 'w' }", "E2100", "spec s:2:1", "did you mean 'param'");
  ExpectRefused("param { match: 3 }", "E2100", "spec s:1:16", "specs/README.md says how a spec");
  ExpectRefused("# A heading\nAnything", "E2100", "spec s:2:1", "specs/README.md");
  ExpectRefused("\n| a | table |", "E2100", "spec s:2:1", "specs/README.md");
  ExpectRefused("param { match: 'w'", "E2100", "spec s:1:19", "the file ends here");
  ExpectRefused("mesh { axis { size: 2 } }", "E2101", "spec s:1:8", "an axis needs a name");
}

TEST(ParseSpec, RefusesRulesWithoutSense) {
  ExpectRefused("\n  param { }", "E2101", "spec s:2:3", "a param rule needs match or role");
  for (const char* rule : {"value { shard_spec { dims: 0 axes: 'tp' } }", "value { match: 'h' }",
                           "value { match: 'h' role: QKV shard_spec { dims: 0 axes: 'tp' } }"}) {
    ExpectRefused(rule, "E2101", "spec s:1:1", "needs match or role, not both, and a shard_spec");
  }
  ExpectRefused("input { }", "E2101", "spec s:1:1", "an input rule needs match");
  ExpectRefused("param { match: 'w' shard_spec { dims: 0 dims: 1 axes: 'tp' } }", "E2101",
                "spec s:1:1", "2 dims and 1 axes; give one axis for each dim");
  ExpectRefused("input { match: 'x' shard_spec { dims: 0 dims: 1 axes: 'tp' axes: 'tp' } }",
                "E2101", "spec s:1:1", "axis 'tp' is given twice");
  ExpectRefused("param { match: 'w' shard_spec { segments: 2 segments: 2 } }", "E2101",
                "spec s:1:1", "segments need exactly one cut dim");
  ExpectRefused("param { match: 'w' shard_spec { dims: 0 axes: 'tp' segments: 0 } }", "E2101",
                "spec s:1:1", "segment size 0 is not positive");
  for (const char* cut :
       {"balanced_segments: 4", "dims: [0, 1] axes: ['cp', 'tp'] balanced_segments: 4",
        "dims: 0 axes: 'tp' segments: 2 balanced_segments: 4"}) {
    ExpectRefused(StrCat("input { match: 'x' shard_spec { ", cut, " } }"), "E2101", "spec s:1:1",
                  "balanced_segments need exactly one cut dim, and no segments");
  }
  ExpectRefused("input { match: 'x' shard_spec { dims: 0 axes: 'tp' balanced_segments: 0 } }",
                "E2101", "spec s:1:1", "balanced_segments 0 is not positive");
  ExpectRefused("mesh { axis { name: 'tp' } }\nprocess_group { tp_degree: 2 }", "E2101",
                "spec s:2:1", "give mesh or process_group, not both");
}

TEST(ParseSpec, Zero) {
  Spec spec = ParseSpec("param { match: 'w' }\n zero_stage: 3 zero_axes: 'a' zero_axes: 'b'", "s");
  EXPECT_EQ(spec.zero.stage, 3);
  EXPECT_EQ(spec.zero.axes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(spec.zero.where, "spec s:2:2");
  EXPECT_EQ(spec.zero.axes_where, "spec s:2:16");
  EXPECT_EQ(ParseSpec("zero_stage: 0", "s").zero.stage, 0);
  EXPECT_FALSE(ParseSpec("", "s").zero.stage);
  ExpectRefused("\nzero_stage: 4", "E2101", "spec s:2:1",
                "there is no zero_stage 4; use 1, 2 or 3");
  ExpectRefused("zero_stage: -1", "E2101", "spec s:1:1", "there is no zero_stage -1");
  ExpectRefused("zero_stages: 1", "E2100", "spec s:1:1", "did you mean 'zero_stage'");
}

TEST(ParseSpec, Microbatches) {
  Spec spec = ParseSpec("param { match: 'w' }\n microbatches: 3", "s");
  EXPECT_EQ(spec.microbatches.count, 3);
  EXPECT_EQ(spec.microbatches.where, "spec s:2:2");
  EXPECT_EQ(ParseSpec("", "s").microbatches.count, 1);
  ExpectRefused("\nmicrobatches: 0", "E2101", "spec s:2:1", "there cannot be 0 microbatches");
  spec = ParseSpec("microbatches: 4\nmicrobatches_together: 2", "s");
  EXPECT_EQ(spec.microbatches.together, 2);
  EXPECT_EQ(spec.microbatches.together_where, "spec s:2:1");
  EXPECT_EQ(ParseSpec("", "s").microbatches.together, 1);
  ExpectRefused("microbatches_together: -1", "E2101", "spec s:1:1",
                "cannot be -1 microbatches together");
}

TEST(ParseSpec, Pipeline) {
  Spec spec = ParseSpec("pipeline_axis: 'pp'\n  stage_layers: [3, 1]", "s");
  EXPECT_EQ(spec.pipeline.axis, "pp");
  EXPECT_EQ(spec.pipeline.layers, (std::vector<int>{3, 1}));
  EXPECT_EQ(spec.pipeline.where, "spec s:2:3");
  EXPECT_EQ(ParseSpec("\npipeline_axis: 'pp'", "s").pipeline.where, "spec s:2:1");
  EXPECT_EQ(ParseSpec("", "s").pipeline.axis, "");
  EXPECT_EQ(ParseSpec("", "s").pipeline.virtual_stages, 1);
  EXPECT_EQ(ParseSpec("virtual_stages: 4", "s").pipeline.virtual_stages, 4);
  ExpectRefused("\n virtual_stages: 0", "E2101", "spec s:2:2", "cannot have 0 virtual stages");
  ExpectRefused("stage_layers: 2", "E2101", "spec s:1:1", "stage_layers needs pipeline_axis");
  ExpectRefused("pipeline_axis: 'pp' stage_layers: [1, 0]", "E2101", "spec s:1:21",
                "a stage needs one layer or more");
}

TEST(ParseSpec, RefusesAMeshThatIsNone) {
  ExpectThrown([] { ParseSpec("mesh { axis { name: 'tp' } axis { name: 'tp' } }", "s"); }, "E2001",
               "tp");
  ExpectThrown([] { ParseSpec("process_group { tp_degree: 0 }", "s"); }, "E2001", "tp");
  // What --mesh and the text form cannot say.
  ExpectThrown([] { ParseSpec("mesh { axis { name: 'a b' } }", "s"); }, "E2001",
               "'a b' is not a name");
}

TEST(MeshFor, DefaultsStandInFrontOfWhatIsGiven) {
  Spec spec;
  spec.mesh = {{"dp", 1}, {"tp", 2}};
  EXPECT_EQ(MeshFor(spec, Mesh()).ToString(), "dp=1,tp=2");
  EXPECT_EQ(MeshFor(spec, Mesh::Parse("tp=4")).ToString(), "tp=4");  // dp has size 1
  EXPECT_EQ(MeshFor(spec, Mesh::Parse("dp=3")).ToString(), "tp=2,dp=3");
  EXPECT_EQ(MeshFor(spec, Mesh::Parse("tp=8,pp=2")).ToString(), "tp=8,pp=2");
  EXPECT_EQ(MeshFor(Spec(), Mesh::Parse("pp=2")).ToString(), "pp=2");
}

TEST(GlobMatch, StarsAndQuestionMarks) {
  EXPECT_TRUE(GlobMatch("*", ""));
  EXPECT_TRUE(GlobMatch("h.?.w", "h.0.w"));
  EXPECT_FALSE(GlobMatch("h.?.w", "h.10.w"));
  EXPECT_TRUE(GlobMatch("*.mlp.*.weight", "h.0.mlp.c_fc.weight"));
  EXPECT_FALSE(GlobMatch("*.mlp.*.weight", "h.0.mlp.c_fc.weight2"));
  EXPECT_FALSE(GlobMatch("mlp*", "h.mlp"));
  EXPECT_TRUE(GlobMatch("a*b*c", "a.b.b.c"));
  EXPECT_TRUE(GlobMatch("w**", "w"));
  EXPECT_FALSE(GlobMatch("", "w"));
  EXPECT_FALSE(GlobMatch("?", ""));
  EXPECT_FALSE(GlobMatch("a[b]", "ab"));  // no classes
}

// Backtracking over every star would take 2^n steps.
TEST(GlobMatch, ManyStarsAreFast) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(GlobMatch(pattern + "b", std::string(5000, 'a')));
}

}  // namespace
}  // namespace shardc
