#include "passes/infer_layouts.h"

#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/diagnostic.h"
#include "ir/text.h"
#include "passes/split_axes.h"
#include "tests/ir/cpu_time.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// q, k and v side by side in %1, 12 heads of 4 each; what makes it comes first.
std::string SplitAsHeads(const std::string& made) {
  return made + R"(
    %2, %3, %4 = split %1 {axis=2, sizes=[48, 48, 48]} : f32[2, 3, 48], f32[2, 3, 48], f32[2, 3, 48]
    %q = reshape %2 {shape=[2, 3, 12, 4]} : f32[2, 3, 12, 4]
    %k = reshape %3 {shape=[2, 3, 12, 4]} : f32[2, 3, 12, 4]
    %v = reshape %4 {shape=[2, 3, 12, 4]} : f32[2, 3, 12, 4]
  })";
}

// HF GPT-2's c_attn: each segment is cut between heads.
TEST(InferLayouts, FusedQkvBySplit) {
  CheckPasses(SplitAsHeads(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 48]) -> (%q, %k, %v) {
    %w = param "c_attn.weight" : f32[48, 144@tp]
    %b = param "c_attn.bias" : f32[144@tp]
    %0 = matmul %x, %w : f32[2, 3, 144]
    %1 = add %0, %b : f32[2, 3, 144])"),
              "infer_layouts", R"(
    CHECK: %w = param "c_attn.weight" : f32[48, 144@tp/3]
    CHECK-NEXT: %b = param "c_attn.bias" : f32[144@tp/3])");
}

// What the spec cuts behind a weight that is whole.
TEST(InferLayouts, ValuesThatTheSpecCuts) {
  CheckPasses(SplitAsHeads(R"(mesh [cp=2]
  graph @g(%x: f32[2, 3, 48]) -> (%q, %k, %v) {
    %w = param "c_attn.weight" : f32[48, 144]
    %0 = matmul %x, %w : f32[2, 3, 144]
    %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"]} : f32[2, 3, 144@cp])"),
              "infer_layouts", R"(
    CHECK: %w = param "c_attn.weight" : f32[48, 144]
    CHECK: %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"]} : f32[2, 3, 144@cp/3])");
}

// What an earlier block gives is cut as the spec says, and not as what it was put together from.
TEST(InferLayouts, BehindAnotherValueThatTheSpecCuts) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%a: f32[2, 4, 8], %b: f32[2, 4, 8], %c: f32[2, 4, 8]) -> (%o, %y) {
    %0 = concat %a, %b, %c {axis=1} : f32[2, 12, 8]
    %1 = sharding_constraint %0 {axes=["tp"], why=["spec s:1:1"]} : f32[2, 12@tp, 8]
    %y = slice %1 {limits=[2, 7, 8], starts=[0, 1, 0], steps=[1, 1, 1]} : f32[2, 6, 8]
    %2 = neg %1 : f32[2, 12, 8]
    %3 = sharding_constraint %2 {axes=["tp"], why=["spec s:1:1"]} : f32[2, 12@tp, 8]
    %o = add %1, %3 : f32[2, 12, 8]
  })",
              "infer_layouts", R"(
    CHECK: %1 = sharding_constraint %0 {axes=["tp"], why=["spec s:1:1"]} : f32[2, 12@tp, 8]
    CHECK: %3 = sharding_constraint %2 {axes=["tp"], why=["spec s:1:1"]} : f32[2, 12@tp, 8])");
}

// 6 query heads in 2 groups: cp cuts the groups that tp leaves to each rank, not both of them.
TEST(InferLayouts, ValuesAreCutBesideTheirWeight) {
  CheckPasses(R"(mesh [tp=2, cp=3]
  graph @g(%x: f32[2, 6, 48], %k: f32[2, 6, 2, 8], %v: f32[2, 6, 2, 8]) -> (%o) {
    %w = param "q" : f32[48, 48@tp]
    %0 = matmul %x, %w : f32[2, 6, 48]
    %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"]} : f32[2, 6, 48@cp]
    %q = reshape %1 {shape=[2, 6, 6, 8]} : f32[2, 6, 6, 8]
    %o, %lse = attention %q, %k, %v {causal=true, layout="bshd", scale=0.5} : f32[2, 6, 6, 8], f32[2, 6, 6]
  })",
              "infer_layouts", R"(
    CHECK: %w = param "q" : f32[48, 48@tp]
    CHECK: %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"]} : f32[2, 6, 48@(tp,cp)])");
}

// Of the weight's axes those of which the spec says something else have their place.
TEST(InferLayouts, ValuesAreNotCutTwiceByAnAxis) {
  CheckPasses(R"(mesh [a=2, b=3]
  graph @g(%x: f32[4, 6]) -> (%y) {
    %w = param "w" : f32[6, 12@(a,b)]
    %0 = matmul %x, %w : f32[4, 12]
    %1 = sharding_constraint %0 {axes=["a", "b"]} : f32[4@a, 12@b]
    %y = neg %1 : f32[4, 12]
  })",
              "infer_layouts",
              R"(CHECK: %1 = sharding_constraint %0 {axes=["a", "b"]} : f32[4@a, 12@b])");
}

// 6 query heads on 3 kv heads: a granule is the two query heads of a kv head, of which not each
// rank would get one of k and v. The value stays cut as it was asked.
TEST(InferLayouts, ValuesWithoutAGranuleForEachRank) {
  CheckPasses(R"(mesh [cp=2]
  graph @g(%x: f32[2, 6, 48]) -> (%o) {
    %w = param "c_attn.weight" : f32[48, 96]
    %0 = matmul %x, %w : f32[2, 6, 96]
    %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"]} : f32[2, 6, 96@cp]
    %2, %3, %4 = split %1 {axis=2, sizes=[48, 24, 24]} : f32[2, 6, 48], f32[2, 6, 24], f32[2, 6, 24]
    %q = reshape %2 {shape=[2, 6, 6, 8]} : f32[2, 6, 6, 8]
    %k = reshape %3 {shape=[2, 6, 3, 8]} : f32[2, 6, 3, 8]
    %v = reshape %4 {shape=[2, 6, 3, 8]} : f32[2, 6, 3, 8]
    %o, %lse = attention %q, %k, %v {causal=true, layout="bshd", scale=0.5} : f32[2, 6, 6, 8], f32[2, 6, 6]
  })",
              "infer_layouts", R"(
    CHECK: %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"]} : f32[2, 6, 96@cp])");
}

// The same as 3 x heads x head_dim in one reshape.
TEST(InferLayouts, FusedQkvByReshape) {
  constexpr const char* kText = R"(mesh [tp=2]
  graph @g(%x: f32[6, 48]) -> (%y) {
    %w = param "w" : f32[48, 144@tp]
    %0 = matmul %x, %w : f32[6, 144]
    %1 = reshape %0 {shape=[6, 3, 12, 4]} : f32[6, 3, 12, 4]
    %2 = slice %1 {limits=[6, 1, 12, 4], starts=[0, 0, 0, 0], steps=[1, 1, 1, 1]} : f32[6, 1, 12, 4]
    %y = reshape %2 {shape=[6, 12, 4]} : f32[6, 12, 4]
  })";
  CheckPasses(kText, "infer_layouts", R"(CHECK: %w = param "w" : f32[48, 144@tp/3])");
}

// heads x 3 x head_dim: whole heads, q, k and v of each together.
TEST(InferLayouts, HeadsFirst) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 20]) -> (%y) {
    %w = param "w" : f32[20, 60@tp]
    %0 = matmul %x, %w : f32[6, 60]
    %1 = reshape %0 {shape=[6, 5, 3, 4]} : f32[6, 5, 3, 4]
    %2 = slice %1 {limits=[6, 5, 1, 4], starts=[0, 0, 0, 0], steps=[1, 1, 1, 1]} : f32[6, 5, 1, 4]
    %y = reshape %2 {shape=[6, 5, 4]} : f32[6, 5, 4]
  })",
              "infer_layouts", R"(CHECK: %w = param "w" : f32[20, 60@tp%12])");
}

// What nothing takes apart is cut at multiples of 8 where that pads little: here the columns of one
// weight and the rows of the next, and a vocabulary.
TEST(InferLayouts, LargeDimsAreCutAtMultiplesOfEight) {
  constexpr const char* kText = R"(mesh [tp=2]
  graph @g(%x: f32[6, 16]) -> (%y) {
    %up = param "up" : f32[16, WIDTH@tp]
    %bias = param "bias" : f32[WIDTH@tp]
    %down = param "down" : f32[WIDTH@tp, 16]
    %0 = matmul %x, %up : f32[6, WIDTH]
    %1 = add %0, %bias : f32[6, WIDTH]
    %2 = tanh %1 : f32[6, WIDTH]
    %y = matmul %2, %down : f32[6, 16]
  })";
  for (auto [width, cut] : {std::pair("1025", "1025@tp%8"),
                            {"1036", "1036@tp%8"},
                            {"1040", "1040@tp"},
                            {"1023", "1023@tp"},
                            {"1022", "1022@tp"}}) {
    std::string text = kText;
    for (size_t at; (at = text.find("WIDTH")) != std::string::npos;) text.replace(at, 5, width);
    CheckPasses(text, "infer_layouts",
                StrCat("CHECK: %up = param \"up\" : f32[16, ", cut, "]\n",
                       "CHECK-NEXT: %bias = param \"bias\" : f32[", cut, "]\n",
                       "CHECK-NEXT: %down = param \"down\" : f32[", cut, ", 16]"));
  }
  // Heads are not, neither where they are taken apart nor where they come together.
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 16]) -> (%y) {
    %w = param "w" : f32[16, 1164@tp]
    %o = param "o" : f32[1164@tp, 16]
    %0 = matmul %x, %w : f32[2, 3, 1164]
    %1 = reshape %0 {shape=[2, 3, 12, 97]} : f32[2, 3, 12, 97]
    %2 = softmax %1 {axis=3} : f32[2, 3, 12, 97]
    %3 = reshape %2 {shape=[2, 3, 1164]} : f32[2, 3, 1164]
    %y = matmul %3, %o : f32[2, 3, 16]
  })",
              "infer_layouts", R"(
    CHECK: %w = param "w" : f32[16, 1164@tp]
    CHECK-NEXT: %o = param "o" : f32[1164@tp, 16])");
}

// Nor what is computed with parts of a split, or what the spec cuts by itself, which is even.
TEST(InferLayouts, LargeDimsAreCutAsWhatTheyMeet) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 16]) -> (%y) {
    %w = param "gate" : f32[16, 1025@tp]
    %f = param "up and more" : f32[16, 2050@tp]
    %0 = matmul %x, %w : f32[6, 1025]
    %1 = matmul %x, %f : f32[6, 2050]
    %2, %3 = split %1 {axis=1, sizes=[1025, 1025]} : f32[6, 1025], f32[6, 1025]
    %y = mul %0, %2 : f32[6, 1025]
  })",
              "infer_layouts", R"(CHECK: %w = param "gate" : f32[16, 1025@tp])");
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 1025@tp]) -> (%y) {
    %w = param "w" : f32[1025@tp, 16]
    %y = matmul %x, %w : f32[6, 16]
  })",
              "infer_layouts", R"(CHECK: %w = param "w" : f32[1025@tp, 16])");
}

// 5 heads over two ranks: 3 and 2, never a part of one.
TEST(InferLayouts, UnevenHeadsGetAGranule) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 20]) -> (%q) {
    %w = param "w" : f32[20, 20@tp]
    %0 = matmul %x, %w : f32[2, 3, 20]
    %q = reshape %0 {shape=[2, 3, 5, 4]} : f32[2, 3, 5, 4]
  })",
              "infer_layouts", R"(CHECK: %w = param "w" : f32[20, 20@tp%4])");
}

// 3 heads for 4 ranks, of which the last has none. What the heads are contracted with follows,
// though 4 elements of each head could be dealt out to 4 ranks.
TEST(InferLayouts, FewerHeadsThanRanks) {
  CheckPasses(R"(mesh [tp=4]
  graph @g(%x: f32[2, 3, 12], %k: f32[2, 3, 1, 4]) -> (%y) {
    %out = param "out" : f32[12@tp, 12]
    %w = param "q" : f32[12, 12@tp]
    %0 = matmul %x, %w : f32[2, 3, 12]
    %q = reshape %0 {shape=[2, 3, 3, 4]} : f32[2, 3, 3, 4]
    %o, %l = attention %q, %k, %k {causal=true, layout="bshd", scale=0.5} : f32[2, 3, 3, 4], f32[2, 3, 3]
    %1 = reshape %o {shape=[2, 3, 12]} : f32[2, 3, 12]
    %y = matmul %1, %out : f32[2, 3, 12]
  })",
              "infer_layouts", R"(
    CHECK: %out = param "out" : f32[12@tp%4, 12]
    CHECK-NEXT: %w = param "q" : f32[12, 12@tp%4])");
}

// 2 groups of 3 query heads: each of 3 ranks takes a head of both groups, and k and v, which could
// give 2 ranks a group, are not cut apart from these.
TEST(InferLayouts, FewerHeadsThanRanksBesideOthersThatAreEnough) {
  CheckPasses(R"(mesh [tp=3]
  graph @g(%x: f32[2, 3, 12]) -> (%o) {
    %w = param "q" : f32[12, 24@tp]
    %u = param "k" : f32[12, 8@tp]
    %0 = matmul %x, %w : f32[2, 3, 24]
    %1 = matmul %x, %u : f32[2, 3, 8]
    %q = reshape %0 {shape=[2, 3, 6, 4]} : f32[2, 3, 6, 4]
    %k = reshape %1 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
    %o, %l = attention %q, %k, %k {causal=true, layout="bshd", scale=0.5} : f32[2, 3, 6, 4], f32[2, 6, 3]
  })",
              "infer_layouts", R"(
    CHECK: %w = param "q" : f32[12, 24@tp/2]
    CHECK-NEXT: %u = param "k" : f32[12, 8@tp])");
}

// 3 ranks cannot share 2 heads of k and v: a note says what that costs, and none does where 4 can.
TEST(InferLayouts, HeadsCutWithinAreNoted) {
  for (const int ranks : {3, 4}) {
    Graph graph = ParseGraph(StrCat("mesh [tp=", ranks, R"(]
      graph @g(%x: f32[2, 3, 12]) -> (%o) {
        %u = param "k" : f32[12, 8@tp]
        %1 = matmul %x, %u : f32[2, 3, 8]
        %q = param "up" : f32[12, 32@tp]
        %0 = matmul %x, %q : f32[2, 3, 32]
        %2 = reshape %0 {shape=[2, 3, 8, 4]} : f32[2, 3, 8, 4]
        %k = reshape %1 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
        %o, %l = attention %2, %k, %k {causal=true, layout="bshd", scale=0.5} : f32[2, 3, 8, 4], f32[2, 8, 3]
      })"),
                             "test.shardc");
    SplitAxes(graph);
    graph.notes.clear();
    InferLayouts(graph);
    const Strings noted = {
        "k has 2 heads for 3 ranks of tp, which are cut within: the ranks gather what they make"};
    EXPECT_EQ(graph.notes, ranks == 3 ? noted : Strings{});
  }
}

// What the heads are multiplied with is cut within each: whole heads would not fit it.
TEST(InferLayouts, FewerHeadsThanRanksBesideOthersThatAreCutWithin) {
  CheckPasses(R"(mesh [tp=4]
  graph @g(%x: f32[2, 4, 12]) -> (%y) {
    %w = param "scores" : f32[12, 12@tp]
    %u = param "v" : f32[12, 12@tp]
    %0 = matmul %x, %w : f32[2, 4, 12]
    %1 = matmul %x, %u : f32[2, 4, 12]
    %2 = reshape %0 {shape=[2, 4, 3, 4]} : f32[2, 4, 3, 4]
    %3 = reshape %1 {shape=[2, 4, 3, 4]} : f32[2, 4, 3, 4]
    %4 = transpose %2 {perm=[0, 2, 1, 3]} : f32[2, 3, 4, 4]
    %5 = transpose %3 {perm=[0, 2, 1, 3]} : f32[2, 3, 4, 4]
    %6 = cumsum %4 {axis=3, exclusive=false, reverse=false} : f32[2, 3, 4, 4]
    %y = matmul %6, %5 : f32[2, 3, 4, 4]
  })",
              "infer_layouts", R"(
    CHECK: %w = param "scores" : f32[12, 12@tp]
    CHECK-NEXT: %u = param "v" : f32[12, 12@tp/3])");
}

// Tokens that the spec cuts over the same ranks are gathered whatever the heads do.
TEST(InferLayouts, FewerHeadsThanRanksBesideCutTokens) {
  CheckPasses(R"(mesh [tp=4]
  graph @g(%in: f32[2, 4, 12], %k: f32[2, 4, 1, 4]) -> (%r) {
    %out = param "out" : f32[12@tp, 12]
    %w = param "q" : f32[12, 12@tp]
    %x = sharding_constraint %in {axes=["tp"]} : f32[2, 4@tp, 12]
    %0 = matmul %x, %w : f32[2, 4, 12]
    %q = reshape %0 {shape=[2, 4, 3, 4]} : f32[2, 4, 3, 4]
    %o, %l = attention %q, %k, %k {causal=true, layout="bshd", scale=0.5} : f32[2, 4, 3, 4], f32[2, 3, 4]
    %1 = reshape %o {shape=[2, 4, 12]} : f32[2, 4, 12]
    %y = matmul %1, %out : f32[2, 4, 12]
    %r = sharding_constraint %y {axes=["tp"]} : f32[2, 4@tp, 12]
  })",
              "infer_layouts", R"(
    CHECK: %out = param "out" : f32[12@tp%4, 12]
    CHECK-NEXT: %w = param "q" : f32[12, 12@tp%4])");
}

// Nor are k and v, where a spec cuts heads further for the tokens of another axis.
TEST(InferLayouts, FewerHeadsThanRanksBesideOthersThatAreCutFurther) {
  CheckPasses(R"(mesh [tp=3, cp=2]
  graph @g(%x: f32[2, 4, 12]) -> (%o) {
    %w = param "q" : f32[12, 24@tp]
    %u = param "k" : f32[12, 8@tp]
    %0 = matmul %x, %w : f32[2, 4, 24]
    %1 = matmul %x, %u : f32[2, 4, 8]
    %2 = sharding_constraint %0 {axes=["cp"]} : f32[2, 4, 24@cp]
    %3 = sharding_constraint %1 {axes=["cp"]} : f32[2, 4, 8@cp]
    %q = reshape %2 {shape=[2, 4, 6, 4]} : f32[2, 4, 6, 4]
    %k = reshape %3 {shape=[2, 4, 2, 4]} : f32[2, 4, 2, 4]
    %o, %l = attention %q, %k, %k {causal=true, layout="bshd", scale=0.5} : f32[2, 4, 6, 4], f32[2, 6, 4]
  })",
              "infer_layouts", R"(
    CHECK: %w = param "q" : f32[12, 24@tp/2]
    CHECK-NEXT: %u = param "k" : f32[12, 8@tp])");
}

// 8 query heads and 2 kv heads of 4.
TEST(InferLayouts, GroupedQueryAttentionHasUnequalSegments) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 32]) -> (%q, %k, %v) {
    %w = param "qkv" : f32[48@tp, 32]
    %0 = matmul_nt %x, %w : f32[2, 3, 48]
    %1, %2, %3 = split %0 {axis=2, sizes=[32, 8, 8]} : f32[2, 3, 32], f32[2, 3, 8], f32[2, 3, 8]
    %q = reshape %1 {shape=[2, 3, 8, 4]} : f32[2, 3, 8, 4]
    %k = reshape %2 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
    %v = reshape %3 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
  })",
              "infer_layouts", R"(CHECK: %w = param "qkv" : f32[48@tp/[32,8,8], 32])");
}

TEST(InferLayouts, GateAndUp) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 8]) -> (%y) {
    %w = param "gate_up" : f32[8, 40@tp]
    %0 = matmul %x, %w : f32[6, 40]
    %gate, %up = split %0 {axis=1, sizes=[20, 20]} : f32[6, 20], f32[6, 20]
    %1 = silu %gate : f32[6, 20]
    %y = mul %1, %up : f32[6, 20]
  })",
              "infer_layouts", R"(CHECK: %w = param "gate_up" : f32[8, 40@tp/2])");
}

// Gate and up of each of three experts, which are one behind the other.
TEST(InferLayouts, GateAndUpOfEach) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 8]) -> (%y) {
    %w = param "gate_up" {columns=[0], role="MLP_UP", rows=[1], stacked=[0, 3]} : f32[120@tp/3, 8]
    %0 = reshape %w {shape=[3, 40, 8]} : f32[3, 40, 8]
    %1 = matmul_nt %x, %0 : f32[3, 6, 40]
    %gate, %up = split %1 {axis=2, sizes=[20, 20]} : f32[3, 6, 20], f32[3, 6, 20]
    %2 = silu %gate : f32[3, 6, 20]
    %y = mul %2, %up : f32[3, 6, 20]
  })",
              "infer_layouts", R"(CHECK: stacked=[0, 3]} : f32[120@tp/6, 8])");
}

// A row-cut weight is cut as what it is contracted with: o comes in heads.
TEST(InferLayouts, ContractedDimsLookBackward) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%o: f32[2, 3, 5, 4]) -> (%y) {
    %w = param "c_proj" : f32[20@tp, 20]
    %0 = reshape %o {shape=[2, 3, 20]} : f32[2, 3, 20]
    %y = matmul %0, %w : f32[2, 3, 20]
  })",
              "infer_layouts", R"(CHECK: %w = param "c_proj" : f32[20@tp%4, 20])");
}

// A gate is cut as the heads that it meets.
TEST(InferLayouts, FactorsLookBackward) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 20], %o: f32[2, 3, 5, 4]) -> (%y) {
    %g = param "gate" : f32[20, 20@tp]
    %w = param "c_proj" : f32[20@tp, 20]
    %0 = reshape %o {shape=[2, 3, 20]} : f32[2, 3, 20]
    %1 = matmul %x, %g : f32[2, 3, 20]
    %2 = sigmoid %1 : f32[2, 3, 20]
    %3 = mul %0, %2 : f32[2, 3, 20]
    %y = matmul %3, %w : f32[2, 3, 20]
  })",
              "infer_layouts", R"(
    CHECK: %g = param "gate" : f32[20, 20@tp%4]
    CHECK-NEXT: %w = param "c_proj" : f32[20@tp%4, 20])");
}

// The user's own segments stay, and a dim that nothing takes apart is cut evenly.
TEST(InferLayouts, LeavesTheRestAlone) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 8]) -> (%y, %z) {
    %w = param "w" : f32[8, 24@tp/[8,16]]
    %v = param "v" : f32[8, 9@tp]
    %0 = matmul %x, %w : f32[6, 24]
    %y = reshape %0 {shape=[6, 3, 8]} : f32[6, 3, 8]
    %z = matmul %x, %v : f32[6, 9]
  })",
              "infer_layouts", R"(
    CHECK: %w = param "w" : f32[8, 24@tp/[8,16]]
    CHECK-NEXT: %v = param "v" : f32[8, 9@tp])");
}

// A long sequence, of which each step uses the weight, and what all of them make is joined.
TEST(InferLayouts, TakesTimeForEachStepOfASequenceOnce) {
  constexpr int kSteps = 1500;
  Graph graph;
  graph.mesh = Mesh::Parse("tp=2");
  Builder b(graph);
  Value* w = b.Param("w", DType::kF32, {8, 8});
  w->type.sharding.dims[1].axes = {0};
  Value* h = graph.AddInput("h", TensorType(DType::kF32, {4, 8}));
  std::vector<Value*> steps;
  for (int t = 0; t < kSteps; ++t) {
    h = b.Make("tanh", {b.Make("matmul", {h, w})});
    steps.push_back(b.Reshape(h, {4, 1, 8}));
  }
  graph.outputs.push_back({"y", b.Make("concat", steps, {{"axis", int64_t{1}}})});
  const double start = CpuSeconds();
  InferLayouts(graph);
  EXPECT_LT(CpuSeconds() - start, 5);
  EXPECT_EQ(TypeToString(w->type, graph.mesh), "f32[8, 8@tp]");
}

}  // namespace
}  // namespace shardc::testing
