#include "passes/apply_spec.h"

#include <gtest/gtest.h>

#include "passes/provenance.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr const char* kMlp = R"(mesh [dp=2, tp=2]
graph @g(%x: f32[4, 6], %scale: f32[]) -> (%y) {
  %w = param "h.0.fc.weight" {role="MLP_UP"} : f32[6, 8]
  %b = param "h.0.fc.bias" {part="bias", role="MLP_UP"} : f32[8]
  %v = param "h.0.proj.weight" {aliases=["h.0.down.weight"], role="MLP_DOWN", rows=[1], columns=[0]} : f32[6, 8]
  %0 = matmul %x, %w {site="h.0.fc"} : f32[4, 8]
  %1 = add %0, %b : f32[4, 8]
  %2 = mul %1, %scale : f32[4, 8]
  %y = matmul_nt %2, %v : f32[4, 6]
})";

void Check(const std::string& spec, std::string_view checks, std::string_view graph_text = kMlp) {
  Graph graph = ParseAndVerify(graph_text);
  ApplySpec(graph, ParseSpec(spec, "s"));
  CheckGraph(graph, checks);
}

void Refused(const std::string& spec, std::string_view id, std::string_view what) {
  ExpectThrown(
      [&] {
        Graph graph = ParseAndVerify(kMlp);
        ApplySpec(graph, ParseSpec(spec, "s"));
      },
      id, what);
}

TEST(ApplySpec, FirstRuleThatMatchesWins) {
  Check(R"(
    param { match: "*.bias" }
    param { match: "*fc.*" shard_spec { dims: -1 axes: "tp" } }
    param { match: "*fc.weight" shard_spec { dims: 0 axes: "dp" } }
  )",
        R"(
    CHECK: param "h.0.fc.weight" {role="MLP_UP"} : f32[6, 8@tp]
    CHECK-NEXT: param "h.0.fc.bias" {part="bias", role="MLP_UP", whole=true} : f32[8]
    CHECK-NEXT: : f32[6, 8]
    CHECK-NOT: sharding_constraint)");
}

TEST(ApplySpec, SeveralDimsAndSeveralAxes) {
  Check(R"(
    param { match: "*fc.weight" shard_spec { dims: 0 dims: 1 axes: "tp" axes: "dp" } }
    param { match: "*fc.bias" shard_spec { dims: 0 dims: 0 axes: "dp" axes: "tp" } }
  )",
        R"(
    CHECK: f32[6@tp, 8@dp]
    CHECK-NEXT: f32[8@(dp,tp)])");
}

TEST(ApplySpec, GivenSegments) {
  Check(R"(param { match: "*fc.*" shard_spec { dims: -1 axes: "tp" segments: 4 segments: 4 } })",
        "CHECK: f32[6, 8@tp/2]\nCHECK-NEXT: f32[8@tp/2]");
}

// With a role alone, dims are those of [in, out], however the weight is stored; with a name, as
// stored.
TEST(ApplySpec, RolesAndParts) {
  Check(R"(
    param { role: MLP_UP part: BIAS shard_spec { dims: 0 axes: "dp" } }
    param { role: MLP_UP part: WEIGHT shard_spec { dims: -1 axes: "tp" } }
    param { role: MLP_DOWN shard_spec { dims: 0 axes: "tp" } }
  )",
        R"(
    CHECK: role="MLP_UP"} : f32[6, 8@tp]
    CHECK-NEXT: f32[8@dp]
    CHECK-NEXT: rows=[1]} : f32[6, 8@tp])");
  Check(R"(param { match: "*" role: MLP_DOWN shard_spec { dims: 0 axes: "tp" } })", R"(
    CHECK: role="MLP_UP"} : f32[6, 8]
    CHECK: rows=[1]} : f32[6@tp, 8])");
}

// A matrix may be several dims, or one of several in the tensor: dims of one element do not count,
// and of those that are the columns that one is cut along which the heads are.
TEST(ApplySpec, RolesCountRowsAndColumns) {
  const std::string graph = R"(mesh [tp=2]
graph @g(%x: f32[4, 6]) -> (%y, %z) {
  %w = param "qkv" {columns=[1, 2, 3], role="QKV", rows=[0]} : f32[6, 3, 2, 4]
  %b = param "qkv.bias" {columns=[1, 2, 3], part="bias", role="QKV"} : f32[1, 3, 2, 4]
  %u = param "up" {columns=[0], role="MLP_UP", rows=[1]} : f32[8, 6, 1]
  %d = param "down" {role="MLP_DOWN"} : f32[3, 8, 6]
  %0 = reshape %w {shape=[6, 24]} : f32[6, 24]
  %1 = matmul %x, %0 : f32[4, 24]
  %2 = reshape %1 {shape=[4, 3, 2, 4]} : f32[4, 3, 2, 4]
  %3 = add %2, %b : f32[4, 3, 2, 4]
  %q, %k, %v = split %3 {axis=1, sizes=[1, 1, 1]} : f32[4, 1, 2, 4], f32[4, 1, 2, 4], f32[4, 1, 2, 4]
  %y = concat %q, %k, %v {axis=0} : f32[12, 1, 2, 4]
  %4 = reshape %u {shape=[8, 6]} : f32[8, 6]
  %5 = matmul_nt %x, %4 {site="up"} : f32[4, 8]
  %6, %7, %8 = split %d {axis=0, sizes=[1, 1, 1]} : f32[1, 8, 6], f32[1, 8, 6], f32[1, 8, 6]
  %9 = reshape %6 {shape=[8, 6]} : f32[8, 6]
  %z = matmul %5, %9 : f32[4, 6]
})";
  Check(R"(
    param { role: QKV shard_spec { dims: -1 axes: "tp" } }
    param { role: MLP_UP shard_spec { dims: 1 axes: "tp" } }
    param { role: MLP_DOWN shard_spec { dims: -2 axes: "tp" } }
    value { role: MLP_UP shard_spec { dims: 0 axes: "tp" } }
  )",
        R"(
    CHECK: f32[6, 3, 2@tp, 4]
    CHECK-NEXT: f32[1, 3, 2@tp, 4]
    CHECK-NEXT: f32[8@tp, 6, 1]
    CHECK-NEXT: f32[3, 8@tp, 6]
    CHECK: matmul_nt %x
    CHECK-NEXT: sharding_constraint %5 {axes=["tp"], role="MLP_UP", why=["spec s:5:5: MLP_UP cuts the result of matmul_nt at up"], site="up"} : f32[4@tp, 8]
    CHECK-NOT: sharding_constraint)",
        graph);
  // What is made whole is what the weight makes, not the weight in another shape.
  Check(R"(
    param { role: MLP_UP shard_spec { dims: -1 axes: "tp" } compute_spec { pattern: TP1D } }
  )",
        R"(
    CHECK: f32[8@tp, 6, 1]
    CHECK: reshape
    CHECK: matmul_nt %x
    CHECK-NEXT: sharding_constraint %5
    CHECK-NOT: sharding_constraint)",
        graph);
  Graph wrong = ParseAndVerify(graph);
  ExpectThrown(
      [&] {
        ApplySpec(wrong,
                  ParseSpec("param { role: MLP_UP shard_spec { dims: 2 axes: 'tp' } }", "s"));
      },
      "E2103", "name a dim from -2 to 1");
}

// Segments that share out what a causal attention does: as equal as can be without more padding, no
// shorter than there are ranks, and only where there is such an op and the axis.
TEST(ApplySpec, BalancedSegments) {
  const auto graph = [](const std::string& mesh, int tokens, bool causal) {
    const std::string t = std::to_string(tokens);
    return "mesh [" + mesh + "]\ngraph @g(%x: f32[2, " + t + R"(, 2, 8]) -> (%y) {
  %y, %s = attention %x, %x, %x {causal=)" +
           (causal ? "true" : "false") + R"(, layout="bshd", scale=1} : f32[2, )" + t +
           ", 2, 8], f32[2, 2, " + t + "]\n}";
  };
  const std::string one = R"(mesh { axis { name: "cp" } axis { name: "tp" } }
    input { match: "x" shard_spec { dims: 1 axes: "cp" balanced_segments: 4 } })";
  Check(one, "CHECK: f32[2, 32@cp/4, 2, 8]", graph("cp=2", 32, true));
  Check(one, "CHECK: f32[2, 31@cp/[8,8,8,7], 2, 8]", graph("cp=2", 31, true));
  Check(one, "CHECK: f32[2, 9@cp/[2,2,2,3], 2, 8]", graph("cp=2", 9, true));
  Check(one, "CHECK: f32[2, 7@cp/[2,2,3], 2, 8]", graph("cp=2", 7, true));
  Check(one, "CHECK: f32[2, 16@cp/[3,3,6,4], 2, 8]", graph("cp=3", 16, true));
  Check(one, "CHECK: f32[2, 3@cp, 2, 8]", graph("cp=2", 3, true));
  Check(one, "CHECK: f32[2, 32@cp, 2, 8]", graph("cp=2", 32, false));
  Check(one, "CHECK: f32[2, 32, 2, 8]", graph("tp=2", 32, true));
  const std::string two = R"(mesh { axis { name: "cp" } axis { name: "tp" } }
    input { match: "x" shard_spec { dims: [1, 1] axes: ["cp", "tp"] balanced_segments: 4 } })";
  Check(two, "CHECK: f32[2, 32@(cp,tp)/4, 2, 8]", graph("cp=2, tp=2", 32, true));
  Check(two, "CHECK: f32[2, 32@tp, 2, 8]", graph("tp=2", 32, true));
}

// More ranks than heads: between heads where kv heads are shared, else inside of them.
TEST(ApplySpec, FewerHeadsThanRanks) {
  const std::string graph = R"(mesh [tp=4]
graph @g(%x: f32[2, 3, 6]) -> (%y) {
  %q = param "q" {columns=[1, 2], role="QKV", rows=[0]} : f32[6, 4, 8]
  %k = param "k" {columns=[1, 2], role="QKV", rows=[0]} : f32[6, 2, 8]
  %0 = reshape %q {shape=[6, 32]} : f32[6, 32]
  %1 = reshape %k {shape=[6, 16]} : f32[6, 16]
  %2 = matmul %x, %0 : f32[2, 3, 32]
  %3 = matmul %x, %1 : f32[2, 3, 16]
  %4 = reshape %2 {shape=[2, 3, 4, 8]} : f32[2, 3, 4, 8]
  %5 = reshape %3 {shape=[2, 3, 2, 8]} : f32[2, 3, 2, 8]
  %y, %s = attention %4, %5, %5 {causal=true, layout="bshd", scale=1} : f32[2, 3, 4, 8], f32[2, 4, 3]
})";
  const std::string spec = R"(param { role: QKV shard_spec { dims: -1 axes: "tp" } })";
  Check(spec, "CHECK: f32[6, 4@tp, 8]\nCHECK-NEXT: f32[6, 2@tp, 8]", graph);
  std::string alone = graph;
  alone.replace(alone.find("tp=4"), 4, "tp=3");
  Check(spec, "CHECK: f32[6, 4@tp, 8]\nCHECK-NEXT: f32[6, 2, 8@tp]", alone);
  alone.replace(alone.find("tp=3"), 4, "tp=9");
  Check(spec, "CHECK: f32[6, 4, 8]\nCHECK-NEXT: f32[6, 2, 8]", alone);
  Graph finer = ParseAndVerify(alone);
  ApplySpec(finer, ParseSpec(spec, "s"));
  ASSERT_EQ(finer.notes.size(), 1u);
  EXPECT_NE(finer.notes[0].find("parameter 'q' stays whole"), std::string::npos);
}

// As a gate with a number for each head: what the spec did not ask for by name is no mistake.
TEST(ApplySpec, ARoleOfFewerElementsThanRanksStaysWhole) {
  Graph graph = ParseAndVerify(R"(mesh [tp=4]
graph @g(%x: f32[2, 3, 8]) -> (%y) {
  %w = param "gate" {part="weight", role="QKV"} : f32[8, 3]
  %b = param "bias" {part="bias", role="QKV"} : f32[3]
  %0 = matmul %x, %w : f32[2, 3, 3]
  %y = add %0, %b : f32[2, 3, 3]
})");
  ApplySpec(graph, ParseSpec(R"(param { role: QKV shard_spec { dims: -1 axes: "tp" } })", "s"));
  for (const Op* param : graph.Params()) EXPECT_TRUE(param->out().sharding.replicated());
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_NE(graph.notes[0].find("parameter 'gate' stays whole"), std::string::npos);
}

// By role what each has is cut, or they are dealt out; not both, along one dim.
TEST(ApplySpec, MatricesOneBehindTheOther) {
  const std::string graph = R"(mesh [ep=3, tp=2]
graph @g(%x: f32[5, 6]) -> (%y) {
  %w = param "up" {columns=[0], role="MLP_UP", rows=[1], stacked=[0, 4]} : f32[12, 6]
  %b = param "bias" {columns=[0], part="bias", role="MLP_UP", stacked=[0, 4]} : f32[12]
  %0 = reshape %w {shape=[4, 3, 6]} : f32[4, 3, 6]
  %1 = matmul_nt %x, %0 : f32[4, 5, 3]
  %2 = reshape %b {shape=[4, 1, 3]} : f32[4, 1, 3]
  %y = add %1, %2 : f32[4, 5, 3]
})";
  Check(R"(param { role: MLP_UP shard_spec { dims: -1 axes: "tp" } })", R"(
    CHECK: f32[12@tp/4, 6]
    CHECK-NEXT: f32[12@tp/4])",
        graph);
  Check(R"(param { role: MLP_UP shard_spec { dims: 0 axes: "ep" } })", R"(
    CHECK: f32[12@ep%3, 6]
    CHECK-NEXT: f32[12@ep%3])",
        graph);
  Graph both = ParseAndVerify(graph);
  const char* spec = "param { role: MLP_UP shard_spec { dims: 0 axes: 'ep' dims: -1 axes: 'tp' } }";
  ExpectThrown([&] { ApplySpec(both, ParseSpec(spec, "s")); }, "E2130", "cut it in one of them");
  Graph few = ParseAndVerify(R"(mesh [tp=4]
graph @g(%x: f32[5, 6]) -> (%y) {
  %w = param "up" {columns=[0], role="MLP_UP", rows=[1], stacked=[0, 4]} : f32[12, 6]
  %y = matmul_nt %x, %w : f32[5, 12]
})");
  ApplySpec(few, ParseSpec("param { role: MLP_UP shard_spec { dims: -1 axes: 'tp' } }", "s"));
  EXPECT_TRUE(few.Params()[0]->out().sharding.replicated());
}

TEST(ApplySpec, AliasesAreNames) {
  Check(R"(param { match: "*down*" shard_spec { dims: -1 axes: "tp" } })",
        "CHECK: rows=[1]} : f32[6, 8@tp]");
}

TEST(ApplySpec, Inputs) {
  Check(R"(input { match: "*" shard_spec { dims: 0 axes: "dp" } })",
        "CHECK: graph @g(%x: f32[4@dp, 6], %scale: f32[])");
}

// Positions that all examples share are none of theirs, whatever their number; lengths are.
TEST(ApplySpec, ARuleForEveryInputIsOfExamples) {
  for (int n : {1, 2, 6}) {
    const std::string graph =
        StrCat("mesh [dp=2]\ngraph @g(%ids: f32[2, ", n, ", 4], %at: f32[", n,
               "], %lengths: f32[2]) -> (%y) {\n", "  %0 = reshape %at {shape=[1, ", n,
               ", 1]} : f32[1, ", n, ", 1]\n  %1 = add %ids, %0 : f32[2, ", n,
               ", 4]\n  %2 = reshape %lengths {shape=[2, 1, 1]} : f32[2, 1, 1]",
               "\n  %y = mul %1, %2 : f32[2, ", n, ", 4]\n}");
    Check(R"(input { match: "*" shard_spec { dims: 0 axes: "dp" } })",
          StrCat("CHECK: graph @g(%ids: f32[2@dp, ", n, ", 4], %at: f32[", n,
                 "], %lengths: f32[2@dp])"),
          graph);
  }
}

TEST(ApplySpec, WeightDecay) {
  Check(R"(param { match: "*fc.weight" weight_decay: false })",
        R"(CHECK: %w = param "h.0.fc.weight" {decay=false, role="MLP_UP"} : f32[6, 8])");
}

// The spec's word on the result of the op: behind the op and its bias.
TEST(ApplySpec, OutputReplicateIsAConstraint) {
  Check(
      R"(param { match: "*fc.*" shard_spec { dims: -1 axes: "tp" } compute_spec { pattern: TP1D } })",
      R"(
    CHECK: %0 = matmul %x, %w
    CHECK-NEXT: %1 = add %0, %b : f32[4, 8]
    CHECK-NEXT: %2 = sharding_constraint %1 {axes=["tp"], why=["spec s:1:1: output_replicate of parameter h.0.fc.weight"]} : f32[4, 8]
    CHECK-NEXT: %_ = mul %2, %scale
    CHECK-NOT: sharding_constraint)");
  Check(
      R"(param { match: "*fc.*" shard_spec { dims: -1 axes: "tp" } compute_spec { output_replicate: false } })",
      "CHECK: f32[6, 8@tp]\nCHECK-NOT: sharding_constraint");
}

// Two rules of one result: whole over the axes of both.
TEST(ApplySpec, OutputReplicateOfAWeightAndItsBias) {
  Check(
      R"(param { match: "*.bias" shard_spec { dims: 0 axes: "dp" } compute_spec { } }
         param { match: "*fc.*" shard_spec { dims: -1 axes: "tp" } compute_spec { } })",
      R"(
    CHECK: sharding_constraint %1 {axes=["tp", "dp"],
    CHECK-NOT: sharding_constraint)");
}

// By the role of a weight: behind the bias. By the module: what is used outside of it.
TEST(ApplySpec, ValuesAreConstrained) {
  Check(R"(value { role: MLP_UP shard_spec { dims: -2 axes: "tp" } })", R"(
    CHECK: %1 = add %0, %b : f32[4, 8]
    CHECK-NEXT: %2 = sharding_constraint %1 {axes=["tp"], role="MLP_UP", why=["spec s:1:1: MLP_UP cuts the result of add"]} : f32[4@tp, 8]
    CHECK-NEXT: mul %2, %scale
    CHECK-NOT: sharding_constraint)");
  Check(R"(value { match: "*.fc" shard_spec { dims: 0 dims: 1 axes: "dp" axes: "tp" } }
           value { match: "h" shard_spec { dims: 1 axes: "tp" } })",
        R"(
    CHECK: %0 = matmul %x, %w
    CHECK-NEXT: %1 = sharding_constraint %0 {axes=["dp", "tp"], why=["spec s:1:1: '*.fc' cuts the result of matmul at h.0.fc"], site="h.0.fc"} : f32[4@dp, 8@tp]
    CHECK-NEXT: %2 = add %1, %b
    CHECK-NOT: sharding_constraint)");
}

// Weight norm: what the module scales is its weight, the product with it the value.
TEST(ApplySpec, AValueIsMadeOfAnInput) {
  Check(R"(value { role: MLP_DOWN shard_spec { dims: -2 axes: "tp" } })", R"(
    CHECK: %5 = mul %w, %4
    CHECK-NEXT: %y = matmul %x, %5
    CHECK-NEXT: sharding_constraint %y
    CHECK-NOT: sharding_constraint)",
        R"(mesh [tp=2]
graph @g(%x: f32[2, 4, 6]) -> (%y) {
  %w = param "down.v" {role="MLP_DOWN"} : f32[6, 8]
  %g = param "down.g" : f32[1, 8]
  %0 = mul %w, %w : f32[6, 8]
  %1 = reduce_sum %0 {axes=[0], keepdims=true} : f32[1, 8]
  %2 = constant {value=tensor<f32[]: 1e-5>} : f32[]
  %3 = max %1, %2 : f32[1, 8]
  %4 = div %g, %3 : f32[1, 8]
  %5 = mul %w, %4 : f32[6, 8]
  %y = matmul %x, %5 : f32[2, 4, 8]
})");
}

// One weight looks tokens up and makes the logits.
TEST(ApplySpec, ATiedWeightHasTwoRoles) {
  constexpr const char* kTied = R"(mesh [tp=2]
graph @g(%ids: i64[2, 4]) -> (%y) {
  %w = param "wte" {role="TOKEN_EMBEDDING"} : f32[8, 6]
  %0 = embedding %w, %ids : f32[2, 4, 6]
  %y = matmul_nt %0, %w : f32[2, 4, 8]
})";
  Check(R"(value { role: TOKEN_EMBEDDING shard_spec { dims: -2 axes: "tp" } })",
        "CHECK: embedding\nCHECK-NEXT: sharding_constraint %0\nCHECK-NOT: sharding_constraint",
        kTied);
  Check(R"(value { role: LM_HEAD shard_spec { dims: -2 axes: "tp" } })",
        "CHECK: matmul_nt\nCHECK-NEXT: sharding_constraint\nCHECK-NOT: sharding_constraint", kTied);
}

// A classifier's first token beside the whole sequence, or one step of decoding. By name it is
// asked for, and refused.
TEST(ApplySpec, OnePositionIsNotCutByARole) {
  const std::string graph = R"(mesh [tp=2]
graph @g(%x: f32[2, 4, 6]) -> (%y, %z) {
  %w = param "mlp.down" {role="MLP_DOWN"} : f32[6, 6]
  %v = param "pooler.down" {role="MLP_DOWN"} : f32[6, 6]
  %y = matmul %x, %w {site="mlp"} : f32[2, 4, 6]
  %0 = slice %y {limits=[2, 1, 6], starts=[0, 0, 0], steps=[1, 1, 1]} : f32[2, 1, 6]
  %z = matmul %0, %v {site="pooler"} : f32[2, 1, 6]
})";
  const std::string cut = R"( shard_spec { dims: -2 axes: "tp" } })";
  Check("value { role: MLP_DOWN" + cut, R"(
    CHECK: matmul %x
    CHECK-NEXT: sharding_constraint
    CHECK: %z = matmul
    CHECK-NOT: sharding_constraint)",
        graph);
  Graph by_name = ParseAndVerify(graph);
  ExpectThrown([&] { ApplySpec(by_name, ParseSpec("value { match: 'pooler'" + cut, "s")); },
               "E2106", "has 1 element");
}

TEST(ApplySpec, RefusesValueRules) {
  const std::string cut = " shard_spec { dims: -2 axes: 'tp' } }";
  Refused("value { match: 'h.0.fcc'" + cut, "E2102", "the nearest names: h.0.fc, h.0, h; or set");
  Refused("value { role: NORM" + cut, "E2102", "no op uses a weight of role NORM");
  Refused("value { role: MLP_UP shard_spec { dims: 2 axes: 'tp' } }", "E2103",
          "dim 2 of the result of add");
  Refused(
      "param { role: MLP_UP shard_spec { dims: -1 axes: 'tp' } compute_spec { } }\nvalue { role: "
      "MLP_UP" +
          cut,
      "E2107", "spec s:1:1: output_replicate");
  Check("value { role: NORM may_match_nothing: true" + cut, "CHECK-NOT: sharding_constraint");
}

// A parameter that the mesh leaves whole has nothing to make whole again.
TEST(ApplySpec, DeclaredAxesThatTheMeshLacksCutNothing) {
  Check(R"(mesh { axis { name: "pp" } }
    param { match: "*fc.*" shard_spec { dims: -1 axes: "pp" } compute_spec { } })",
        "CHECK: f32[6, 8]\nCHECK-NEXT: f32[8]\nCHECK-NOT: sharding_constraint");
}

TEST(ApplySpec, KeepsWhereItCameFrom) {
  Graph graph = ParseAndVerify(kMlp);
  ApplySpec(graph, ParseSpec("\nparam { role: MLP_UP shard_spec { dims: -1 axes: 'tp' } }", "s"));
  const Value* w = graph.Params()[0]->result();
  EXPECT_EQ(ProvenanceOf(w, 0), -1);
  EXPECT_EQ(ProvenanceChain(graph, ProvenanceOf(w, 1)),
            (std::vector<std::string>{
                "spec s:2:1: MLP_UP cuts dim 1 of parameter h.0.fc.weight over tp"}));
}

TEST(ApplySpec, RefusesRulesThatMatchNothing) {
  Refused(R"(param { match: "*.fcc.weight" })", "E2102", "the nearest names: h.0.fc.weight");
  Refused(R"(param { match: "*.fcc.weight" })", "E2102", "spec s:1:1");
  Refused(R"(param { match: "*.bias" role: MLP_DOWN })", "E2102",
          "no parameter matches '*.bias' with role MLP_DOWN");
  Refused("param { role: NORM }", "E2102", "roles in this model: MLP_UP, MLP_DOWN");
  Refused("param { role: MLP_DOWN part: BIAS }", "E2102", "role MLP_DOWN and part bias");
  Refused(R"(input { match: "scalee" })", "E2102", "did you mean 'scale'? inputs: ");
  Refused(R"(input { match: "tokens" })", "E2102", "; inputs: x, scale; or set");
  Check(R"(param { role: NORM may_match_nothing: true }
           input { match: "ids" may_match_nothing: true })",
        "CHECK: f32[6, 8]");
  // A rule that an earlier one leaves nothing to decide does match: no error.
  Check(R"(param { match: "*" } param { match: "*.bias" })", "CHECK: f32[6, 8]");
}

TEST(ApplySpec, NotesRulesThatAreLeftNothing) {
  auto notes = [](const std::string& spec) {
    Graph graph = ParseAndVerify(kMlp);
    ApplySpec(graph, ParseSpec(spec, "s"));
    return graph.notes;
  };
  using Notes = std::vector<std::string>;
  EXPECT_EQ(notes("param { match: '*fc*' }\nparam { match: '*.bias' } param { match: '*' }"),
            Notes{"spec s:2:1: this rule decides nothing: the parameters that it matches have an "
                  "earlier one"});
  EXPECT_EQ(notes("input { match: '*' }\ninput { match: 'x' }"),
            Notes{"spec s:2:1: this rule decides nothing: the inputs that it matches have an "
                  "earlier one"});
  EXPECT_EQ(notes("value { match: 'h.*' shard_spec { dims: 0 axes: 'tp' } }\n"
                  "value { match: 'h.0.fc' shard_spec { dims: 0 axes: 'dp' } }"),
            Notes{"spec s:2:1: this rule decides nothing: the values that it matches have an "
                  "earlier one"});
  EXPECT_EQ(notes("param { match: '*' } param { match: '*.bias' may_match_nothing: true }"),
            Notes{});
}

TEST(ApplySpec, RefusesDimsThatDoNotFit) {
  Refused(R"(param { match: "*fc.*" shard_spec { dims: 1 axes: "tp" } })", "E2103",
          "dim 1 of parameter 'h.0.fc.bias' does not exist: its shape is [8]");
  Refused(R"(param { match: "*fc.weight" shard_spec { dims: -3 axes: "tp" } })", "E2103", "dim -3");
  Refused(R"(input { match: "scale" shard_spec { dims: 0 axes: "tp" } })", "E2103",
          "input 'scale' does not exist: its shape is []");
  Refused(R"(input { match: "scale" shard_spec { dims: 0 axes: "tp" } })", "E2103",
          "a scalar cannot be cut");
  Refused(R"(param { match: "*fc.*" shard_spec { dims: 1 axes: "tp" } })", "E2103",
          "name a dim from -1 to 0");
}

TEST(ApplySpec, TheSequenceIsFoundWhereTheModelHasIt) {
  constexpr const char* kSequenceFirst = R"(mesh [dp=2, tp=2]
graph @g(%ids: i64[4, 8]) -> (%y) {
  %e = param "e" {role="TOKEN_EMBEDDING"} : f32[10, 6]
  %w = param "w" {role="MLP_UP"} : f32[6, 12]
  %v = param "v" {role="MLP_DOWN"} : f32[12, 6]
  %0 = embedding %e, %ids : f32[4, 8, 6]
  %1 = transpose %0 {perm=[1, 0, 2]} : f32[8, 4, 6]
  %2 = matmul %1, %w : f32[8, 4, 12]
  %3 = matmul %2, %v {site="down"} : f32[8, 4, 6]
  %y = neg %3 : f32[8, 4, 6]
})";
  Check(R"(
    value { role: TOKEN_EMBEDDING shard_spec { dims: -2 axes: "tp" } }
    value { role: MLP_DOWN shard_spec { dims: -2 dims: 0 axes: "tp" axes: "dp" } }
  )",
        R"(
    CHECK: embedding
    CHECK-NEXT: f32[4, 8@tp, 6]
    CHECK: site="down"
    CHECK-NEXT: f32[8@tp, 4@dp, 6])",
        kSequenceFirst);
  // That of learned queries runs along no input.
  Check(R"(value { role: MLP_DOWN shard_spec { dims: -2 dims: 0 axes: "tp" axes: "dp" } })",
        "CHECK: f32[8@tp, 4@dp, 6]", R"(mesh [dp=2, tp=2]
graph @g(%x: f32[4, 6]) -> (%y) {
  %q = param "q" : f32[8, 1, 6]
  %v = param "v" {role="MLP_DOWN"} : f32[6, 6]
  %0 = add %q, %x : f32[8, 4, 6]
  %y = matmul %0, %v {site="down"} : f32[8, 4, 6]
})");
  // By module dims are those that are there.
  Check(R"(value { match: "down" shard_spec { dims: -2 axes: "tp" } })", "CHECK: f32[8, 4@tp, 6]",
        kSequenceFirst);
}

TEST(ApplySpec, RefusesAxes) {
  Refused(R"(param { match: "*fc.*" shard_spec { dims: -1 axes: "tpp" } })", "E2104",
          "did you mean 'tp'");
  ExpectThrown(
      [] {
        Graph graph = ParseAndVerify("graph @g() -> (%w) {\n%w = param \"w\" : f32[3]\n}");
        ApplySpec(graph, ParseSpec("param { match: 'w' shard_spec { dims: 0 axes: 'tp' } }", "s"));
      },
      "E2104", "axis 'tp', and there is no mesh");
}

TEST(ApplySpec, RefusesCutsThatDoNotFit) {
  ExpectThrown(
      [] {
        Graph graph =
            ParseAndVerify("mesh [tp=4]\ngraph @g() -> (%w) {\n%w = param \"w\" : f32[3]\n}");
        ApplySpec(graph, ParseSpec("param { match: 'w' shard_spec { dims: 0 axes: 'tp' } }", "s"));
      },
      "E2106", "has 3 elements and cannot be cut into 4 parts");
  ExpectThrown(
      [] {
        Graph graph =
            ParseAndVerify("mesh [tp=4]\ngraph @g() -> (%w) {\n%w = param \"w\" : f32[1]\n}");
        ApplySpec(graph, ParseSpec("param { match: 'w' shard_spec { dims: 0 axes: 'tp' } }", "s"));
      },
      "E2106", "has 1 element and cannot be cut into 4 parts");
  Refused(R"(param { match: "*fc.*" shard_spec { dims: -1 axes: "tp" segments: 4 segments: 3 } })",
          "E2002", "spec s:1:1: parameter 'h.0.fc.weight'");
  Refused(R"(param { match: "*fc.*" shard_spec { dims: -1 axes: "tp" segments: 4 segments: 3 } })",
          "E2002", "or leave segments out");
}

}  // namespace
}  // namespace shardc::testing
