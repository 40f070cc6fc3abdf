#include "passes/narrow_params.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/ir/data_source.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

std::string With(const std::string& ops, const std::string& outputs) {
  return "graph @g(%x: f32[2, 4]) -> (" + outputs + R"() {
    %w = param "w" : f32[4, 4]
    %v = param "v" : f32[4, 4]
    %xb = cast %x {to="bf16"} : bf16[2, 4]
    %wb = cast %w {to="bf16"} : bf16[4, 4]
    )" + ops +
         "\n  }";
}

TEST(NarrowParams, WhatIsReadInHalvesAlone) {
  CheckPasses(With(R"(
    %again = cast %w {to="bf16"} : bf16[4, 4]
    %y = matmul %xb, %wb : bf16[2, 4]
    %z = matmul %y, %again : bf16[2, 4]
    %u = matmul %x, %v : f32[2, 4])",
                   "%z, %u"),
              "narrow_params", R"(
    CHECK: %w = param "w" : bf16[4, 4]
    CHECK: %v = param "v" : f32[4, 4]
    CHECK-NOT: cast %w
    CHECK: matmul %xb, %w
    CHECK: matmul %y, %w)");
}

TEST(NarrowParams, TheDataIsRounded) {
  Graph graph = ParseAndVerify(With("%y = matmul %xb, %wb : bf16[2, 4]", "%y"));
  graph.sources["w"] = std::make_shared<DataSource>(
      HostTensor::Of<float>({4, 4}, std::vector<float>(16, 1.00390625f + 0.001f)));
  NarrowParams(graph);
  HostTensor got(DType::kBF16, {2, 3});
  graph.sources.at("w")->Read({1, 1}, {2, 3}, got.raw());
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(got.AsDouble(i), 1.0078125);
}

// Whoever looks at its gradient does not see its own bits.
TEST(NarrowParams, WhatHasAGradient) {
  CheckPasses(
      With("%y = matmul %xb, %wb : bf16[2, 4]\n%g = mul %v, %v : f32[4, 4]", "%y, grad.w: %g"),
      "narrow_params", R"(
    CHECK: %w = param "w" : bf16[4, 4]
    CHECK: %g = mul %v, %v : f32[4, 4])");
}

// One that is read as it is, too, or in two types; one that is an output or is updated.
TEST(NarrowParams, NotOtherwise) {
  const std::string product = "%y = matmul %xb, %wb : bf16[2, 4]\n";
  for (const std::string& text :
       {With(product + "%z = matmul %x, %w : f32[2, 4]", "%y, %z"),
        With(product + "%h = cast %w {to=\"f16\"} : f16[4, 4]", "%y, %h"), With(product, "%y, %w"),
        With(product + "update \"w\" %v", "%y")}) {
    CheckPasses(text, "narrow_params", R"(CHECK: param "w" : f32[4, 4])");
  }
}

// bf16 has fewer digits than f16, and is as large.
TEST(NarrowParams, NotToTheOtherHalf) {
  CheckPasses(R"(graph @g(%x: bf16[2, 4]) -> (%y) {
    %w = param "w" : f16[4, 4]
    %wb = cast %w {to="bf16"} : bf16[4, 4]
    %y = matmul %x, %wb : bf16[2, 4]
  })",
              "narrow_params", R"(CHECK: param "w" : f16[4, 4])");
}

// A tensor that is kept in pieces is of one type.
TEST(NarrowParams, AllPiecesOrNone) {
  const std::string text = R"(graph @g(%x: f32[2, 4]) -> (%y, %z) {
    %w = param "w[0:2]" {piece_dim=1, piece_of="w", piece_start=0, whole_size=4} : f32[4, 2]
    %v = param "w[2:4]" {piece_dim=1, piece_of="w", piece_start=2, whole_size=4} : f32[4, 2]
    %xb = cast %x {to="bf16"} : bf16[2, 4]
    %wb = cast %w {to="bf16"} : bf16[4, 2]
    %y = matmul %xb, %wb : bf16[2, 2]
)";
  CheckPasses(text + R"(
    %vb = cast %v {to="bf16"} : bf16[4, 2]
    %z = matmul %xb, %vb : bf16[2, 2]
  })",
              "narrow_params", R"(
    CHECK: param "w[0:2]" {piece_dim=1, piece_of="w", piece_start=0, whole_size=4} : bf16[4, 2]
    CHECK: param "w[2:4]" {piece_dim=1, piece_of="w", piece_start=2, whole_size=4} : bf16[4, 2])");
  CheckPasses(text + "    %z = matmul %x, %v : f32[2, 2]\n  }", "narrow_params", R"(
    CHECK: param "w[0:2]" {piece_dim=1, piece_of="w", piece_start=0, whole_size=4} : f32[4, 2]
    CHECK: param "w[2:4]" {piece_dim=1, piece_of="w", piece_start=2, whole_size=4} : f32[4, 2])");
}

}  // namespace
}  // namespace shardc::testing
