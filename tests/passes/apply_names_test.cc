// Rules that choose tensors by their names.
#include <gtest/gtest.h>

#include "passes/apply_spec.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr const char* kNamed = R"(mesh [dp=2, tp=2]
graph @g(%x: f32[4, 6]) -> (%y) {
  %w = param "w" {aliases=["wt"], transposed_aliases=["wt"]} : f32[6, 8]
  %h = matmul %x, %w : f32[4, 8]
  %y = neg %h : f32[4, 8]
})";

SpecRule TensorRule(const std::string& name, std::vector<CutDim> cuts) {
  SpecRule rule;
  rule.where.file = "node 'n'";
  rule.match = name;
  rule.cuts = std::move(cuts);
  return rule;
}

// [out, in] in the module, stored as [in, out]: dims are the module's where its name matches, and
// the file's where that of the file does too or nobody knows how they differ.
TEST(ApplySpec, DimsAreThoseOfTheTensorThatHasTheName) {
  const std::string text = R"(mesh [tp=2]
graph @g(%x: f32[4, 6]) -> (%y) {
  %w = param "val_0" {aliases=["fc.weight"], source_aliases=["fc.weight"]MORE} : f32[6, 8]
  %y = matmul %x, %w : f32[4, 8]
})";
  for (const bool known : {true, false}) {
    for (const char* match : {"fc.weight", "val_0", "*"}) {
      SCOPED_TRACE(StrCat(match, known ? " known" : ""));
      std::string own = text;
      own.replace(own.find("MORE"), 4, known ? ", transpose_of=\"fc.weight\"" : "");
      Graph graph = ParseAndVerify(own);
      Spec spec;
      spec.params = {TensorRule(match, {{0, "tp"}})};
      ApplySpec(graph, spec);
      const bool by_module = match == std::string("fc.weight");
      const Sharding& cut = graph.Params()[0]->out().sharding;
      EXPECT_EQ(cut.dims[by_module && known ? 1 : 0].axes, AxisList{0});
      ASSERT_EQ(graph.notes.size(), by_module && !known ? 1 : 0);
      if (by_module && !known) {
        EXPECT_NE(graph.notes[0].find("which has 'val_0' in the place of what it names"),
                  std::string::npos);
      }
    }
  }
}

TEST(ApplySpec, TensorsAreCutByTheirVeryNames) {
  Graph graph = ParseAndVerify(kNamed);
  Spec spec;
  spec.name = "annotations";
  spec.tensors = {TensorRule("x", {{0, "dp"}}),
                  TensorRule("wt", {{-2, "tp"}}),
                  TensorRule("h", {{0, "dp"}, {1, "tp", {2, 2, 2, 2}}}),
                  TensorRule("h", {}),
                  TensorRule("h*", {{0, "dp"}}),
                  TensorRule("gone", {})};
  ApplySpec(graph, spec);
  // A name that the file has transposed counts its dims so; each value has all axes settled, where
  // it is made and again where it is read.
  CheckGraph(graph, R"(
    CHECK: graph @g(%x: f32[4@dp, 6])
    CHECK: transposed_aliases=["wt"]} : f32[6, 8@tp]
    CHECK: %h = matmul
    CHECK-NEXT: why=["node 'n': where it has tensor h"]} : f32[4@dp, 8@tp/4]
    CHECK-NEXT: why=["node 'n': where it has tensor h"]} : f32[4, 8]
    CHECK-NEXT: %y = neg %1)");
  EXPECT_EQ(graph.FindOutput("y")->producer->operands[0]->producer->attrs.StringList("axes"),
            (Strings{"dp", "tp"}));
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_NE(graph.notes[0].find("2 tensors"), std::string::npos) << graph.notes[0];
  EXPECT_NE(graph.notes[0].find("'h*', 'gone'"), std::string::npos) << graph.notes[0];

  auto refused = [&](std::vector<SpecRule> rules, std::string_view what) {
    spec.tensors = std::move(rules);
    ExpectThrown(
        [&] {
          Graph other = ParseAndVerify(kNamed);
          ApplySpec(other, spec);
        },
        "E2130", what);
  };
  refused({TensorRule("w", {{0, "tp"}}), TensorRule("wt", {{0, "tp"}})}, "are one parameter");
  refused({TensorRule("w", {{0, "tp", {}, 1, 5}})}, "has 6 elements, and is said to have 5");
  refused({TensorRule("h", {{1, "dp", {4, 4}}, {-1, "tp"}})}, "is cut in two ways");
}

TEST(ApplySpec, ARuleForANameThatTheFileHasTransposedCountsDimsSo) {
  for (const auto& [match, cut] : {std::pair("wt", "f32[6, 8@tp]"), {"w*", "f32[6@tp, 8]"}}) {
    Graph graph = ParseAndVerify(kNamed);
    Spec spec;
    spec.params = {TensorRule(match, {{0, "tp"}})};
    ApplySpec(graph, spec);
    EXPECT_EQ(TypeToString(graph.Params()[0]->out(), graph.mesh), cut);
  }
}

}  // namespace
}  // namespace shardc::testing
