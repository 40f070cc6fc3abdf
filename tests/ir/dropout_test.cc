// What ops that drop elements are told, and where the elements of a part lie in the whole.
#include "ir/dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/attention_part.h"
#include "ir/builder.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/text.h"
#include "tests/ir/thrown.h"

namespace shardc::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTypes = " : f32[2, 3, 4, 5], f32[2, 3, 4]\n}\n";

std::string Attention(const std::string& rest) {
  return "graph @g(%q: f32[2, 3, 4, 5], %n: i64[], %f: f32[], %m: f32[4, 4]) -> (%o) {\n"
         "  %o, %l = attention %q, %q, %q" +
         rest + kTypes;
}

std::string ErrorOf(const std::string& text) {
  return TextThrownBy([&] { ParseGraph(text, "t"); });
}

TEST(AttentionThatDrops, IsVerified) {
  EXPECT_EQ(ErrorOf(Attention(", %n {ratio=0.1, scale=0.5}")), "none");
  EXPECT_EQ(ErrorOf(Attention(", %m, %n {ratio=0.1, scale=0.5}")), "none");
  const std::pair<const char*, const char*> kBad[] = {
      {" {ratio=0.1, scale=0.5}", "its last operand must be the step"},
      {", %m {ratio=0.1, scale=0.5}", "the step"},
      {", %f {ratio=0.1, scale=0.5}", "the step"},
      {", %m, %n {scale=0.5}", "without a ratio it has no operand behind the mask"},
      {", %n {scale=0.5}", "the mask"},
      {", %n {ratio=1.5, scale=0.5}", "ratio 1.5 is not in [0, 1]"},
      {", %n {origin=[1, 0], ratio=0.5, scale=0.5}", "origin has 2 entries"},
      {", %n {origin=[1, 0, 0, 0], ratio=0.5, scale=0.5, whole=[2, 3, 4, 4]}", "is no part of"},
      {", %n {origin=[-1, 0, 0, 0], ratio=0.5, scale=0.5}", "is no part of"},
      {", %n {ratio=0.5, scale=0.5, whole=[2, 3, 4]}", "is no part of"},
      {", %n {origin=[9223372036854775807, 0, 0, 0], ratio=0.5, scale=0.5, whole=[9, 3, 4, 4]}",
       "is no part of"},
      {", %n {ratio=0.5, scale=0.5, whole=[4611686018427387904, 3, 4, 4]}", "too"},
  };
  for (auto [rest, error] : kBad) {
    EXPECT_THAT(ErrorOf(Attention(rest)), HasSubstr("E1101")) << rest;
    EXPECT_THAT(ErrorOf(Attention(rest)), HasSubstr(error)) << rest;
  }
  // The mask of a causal one goes by its place, too.
  EXPECT_EQ(
      ErrorOf(Attention(" {causal=true, origin=[0, 0, 5, 0], scale=0.5, whole=[2, 3, 9, 4]}")),
      "none");
  EXPECT_THAT(
      ErrorOf(Attention(" {causal=true, origin=[0, 0, 6, 0], scale=0.5, whole=[2, 3, 9, 4]}")),
      HasSubstr("is no part of"));
  EXPECT_THAT(ErrorOf(Attention(" {causal=true, scale=0.5, whole=[2, 3, 4611686018427387904, 4]}")),
              HasSubstr("too"));
  const std::string packed =
      "graph @g(%x: f32[2, 4, 9, 5], %n: i64[]) -> (%o) {\n  %o, %l = packed_attention %x";
  const std::string types = " : f32[2, 4, 3, 5], f32[2, 3, 4]\n}\n";
  EXPECT_EQ(ErrorOf(packed + ", %n {ratio=0.1, scale=0.5}" + types), "none");
  EXPECT_THAT(ErrorOf(packed + " {ratio=0.1, scale=0.5}" + types), HasSubstr("last operand"));
  EXPECT_THAT(ErrorOf(packed + ", %n {scale=0.5}" + types), HasSubstr("last operand"));
  const std::string later = " {causal=true, origin=[0, 0, 3, 0], scale=0.5, whole=[2, 3, ";
  EXPECT_EQ(ErrorOf(packed + later + "7, 4]}" + types), "none");
  EXPECT_THAT(ErrorOf(packed + later + "9, 4]}" + types), HasSubstr("the last of the whole"));
}

TEST(AttentionThatDrops, KeepsItsText) {
  const std::string text = Attention(
      ", %m, %n {origin=[0, 1, 0, 0], ratio=0.1, scale=0.5, seed=7, stream=3, whole=[2, 4, 4, 4]}");
  EXPECT_EQ(PrintGraph(ParseGraph(text, "t")), text);
}

TEST(AttentionThatDrops, KeepsItsCausalMaskWithout) {
  Graph graph = ParseGraph(
      Attention(", %n {causal=true, origin=[0, 0, 5, 0], ratio=0.1, scale=0.5, seed=7, stream=3, "
                "whole=[2, 3, 9, 4]}"),
      "t");
  Builder b(graph);
  const Op& op = *graph.outputs[0].value->producer;
  const Op& without = *op.def->undropped(b, op)[0]->producer;
  EXPECT_FALSE(Drops(without));
  EXPECT_EQ(CausalDiagonal(without.attrs, 4, 4), 0);
  EXPECT_EQ(without.attrs.IntList("origin"), (Ints{0, 0, 5, 0}));
  EXPECT_EQ(without.attrs.IntList("whole"), (Ints{2, 3, 9, 4}));
}

// Five heads over three ranks, two, two and one with padding, of a part that begins at [1, 2, 3].
TEST(AttentionThatDrops, KnowsThePlacesOfItsProbabilities) {
  const Mesh mesh({{"tp", 3}});
  TensorType type(DType::kF32, {2, 3, 5, 4});  // [b, queries, heads, d]
  type.sharding.dims[2].axes = {0};
  const Attributes attrs = {{"origin", Ints{1, 2, 3, 0}}, {"whole", Ints{4, 9, 8, 6}}};
  KernelCall call;
  call.attrs = &attrs;
  call.mesh = &mesh;
  const TensorView o = {nullptr, DType::kF32, {2, 3, 2, 4}, &type};
  constexpr int64_t kHead = 8 * 6, kBatch = 9 * kHead;
  call.rank = 1;
  ProbabilityPlaces places = PlacesOfProbabilities(call, o, false, 6);
  EXPECT_THAT(places.batch, ElementsAre(kBatch, 2 * kBatch));
  EXPECT_THAT(places.head, ElementsAre(4 * kHead, 5 * kHead));
  EXPECT_THAT(places.query, ElementsAre(18, 24, 30));
  call.rank = 2;
  places = PlacesOfProbabilities(call, o, false, 6);
  EXPECT_THAT(places.head, ElementsAre(6 * kHead, 0));
}

// Seven queries of a part that begins at the third of eleven, over three ranks: three, two, two.
TEST(CausalAttention, KnowsThePlaceOfItsQueries) {
  const Mesh mesh({{"cp", 3}});
  for (bool heads_first : {false, true}) {
    const size_t query = heads_first ? 2 : 1;
    TensorType type(DType::kF32, {2, 5, 5, 4});
    type.shape[query] = 7;
    type.sharding.dims[query].axes = {0};
    Shape local = type.shape;
    local[query] = 3;
    const TensorView q = {nullptr, DType::kF32, local, &type};
    const Attributes whole, part = {{"origin", Ints{0, 0, 2, 0}}, {"whole", Ints{2, 5, 11, 20}}};
    KernelCall call;
    call.mesh = &mesh;
    for (auto [rank, first] : {std::pair{0, 0}, {1, 3}, {2, 5}}) {
      call.rank = rank;
      call.attrs = &whole;
      EXPECT_EQ(CausalDiagonal(call, q, heads_first, 20), 13 + first);
      call.attrs = &part;
      EXPECT_EQ(CausalDiagonal(call, q, heads_first, 20), 9 + 2 + first);
    }
  }
}

}  // namespace
}  // namespace shardc::testing
