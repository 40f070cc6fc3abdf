#include "passes/find_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "tests/ir/cpu_time.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// "x-a(3) a-b(3)": where each layer begins and ends, and how many ops it has.
std::string Layers(std::string_view text) {
  Graph graph = ParseAndVerify(text);
  std::string list;
  for (const Layer& layer : FindLayers(graph)) {
    list += StrCat(list.empty() ? "" : " ", layer.in->name, "-", layer.out->name, "(",
                   layer.ops.size(), ")");
  }
  return list;
}

// Names and weights differ, a mask comes from outside, and a layer has two residuals.
TEST(FindLayers, PreNorm) {
  EXPECT_EQ(Layers(R"(graph @g(%x: f32[3, 4], %mask: f32[3, 4]) -> (%loss) {
    %u = param "u" : f32[4, 4]
    %v = param "v" : f32[4, 4]
    %m = neg %mask : f32[3, 4]
    %in = exp %x : f32[3, 4]
    %0 = matmul %in, %u {site="first"} : f32[3, 4]
    %1 = add %0, %m : f32[3, 4]
    %a = add %in, %1 : f32[3, 4]
    %2 = tanh %a : f32[3, 4]
    %b = add %2, %a : f32[3, 4]
    %3 = matmul %b, %v {site="second"} : f32[3, 4]
    %4 = add %3, %m : f32[3, 4]
    %c = add %b, %4 : f32[3, 4]
    %5 = tanh %c : f32[3, 4]
    %d = add %5, %c : f32[3, 4]
    %loss = reduce_sum %d {axes=[0, 1], keepdims=false} : f32[]
  })"),
            "in-b(5) b-d(5)");
}

// x + f(x) + g(x), where the norm is shared.
TEST(FindLayers, ParallelResidual) {
  EXPECT_EQ(Layers(R"(graph @g(%x: f32[3, 4]) -> (%loss) {
    %w = param "w" : f32[4, 4]
    %in = exp %x : f32[3, 4]
    %0 = neg %in : f32[3, 4]
    %1 = matmul %0, %w : f32[3, 4]
    %2 = sin %0 : f32[3, 4]
    %3 = add %in, %1 : f32[3, 4]
    %a = add %3, %2 : f32[3, 4]
    %4 = neg %a : f32[3, 4]
    %5 = matmul %4, %w : f32[3, 4]
    %6 = sin %4 : f32[3, 4]
    %7 = add %a, %5 : f32[3, 4]
    %b = add %7, %6 : f32[3, 4]
    %loss = reduce_sum %b {axes=[0, 1], keepdims=false} : f32[]
  })"),
            "in-a(5) a-b(5)");
}

// A layer may begin anywhere in its round: here between its two halves, where values are small. One
// of them is moved over the mesh; the cut is after the move.
TEST(FindLayers, BetweenTheSmallestValues) {
  EXPECT_EQ(Layers(R"(mesh [tp=2]
  graph @g(%x: f32[3, 16@tp]) -> (%loss) {
    %w = param "w" : f32[16@tp, 4]
    %v = param "v" : f32[4, 16@tp]
    %0 = tanh %x : f32[3, 16@tp]
    %1 = matmul %0, %w : f32[3, 4] partial(tp)
    %a = all_reduce %1 {axes=["tp"]} : f32[3, 4]
    %2 = matmul %a, %v : f32[3, 16@tp]
    %3 = tanh %2 : f32[3, 16@tp]
    %4 = matmul %3, %w : f32[3, 4] partial(tp)
    %b = all_reduce %4 {axes=["tp"]} : f32[3, 4]
    %5 = matmul %b, %v : f32[3, 16@tp]
    %6 = tanh %5 : f32[3, 16@tp]
    %7 = matmul %6, %w : f32[3, 4] partial(tp)
    %c = all_reduce %7 {axes=["tp"]} : f32[3, 4]
    %loss = reduce_sum %c {axes=[0, 1], keepdims=false} : f32[]
  })"),
            "a-b(4) b-c(4)");
}

// Two runs, with something else between: an encoder and a decoder, say.
TEST(FindLayers, SeveralRuns) {
  EXPECT_EQ(Layers(R"(graph @g(%x: f32[4, 4]) -> (%loss) {
    %w = param "w" : f32[4, 4]
    %0 = matmul %x, %w : f32[4, 4]
    %a = add %x, %0 : f32[4, 4]
    %1 = matmul %a, %w : f32[4, 4]
    %b = add %a, %1 : f32[4, 4]
    %in = exp %b : f32[4, 4]
    %2 = matmul_nt %in, %w : f32[4, 4]
    %c = add %in, %2 : f32[4, 4]
    %3 = matmul_nt %c, %w : f32[4, 4]
    %d = add %c, %3 : f32[4, 4]
    %loss = reduce_sum %d {axes=[0, 1], keepdims=false} : f32[]
  })"),
            "x-a(2) a-b(2) in-c(2) c-d(2)");
}

// Without a loss a model may have outputs on the way, as keys for a cache: layers are of the last
// one, whatever the order.
TEST(FindLayers, OutputsOnTheWay) {
  EXPECT_EQ(Layers(R"(graph @g(%x: f32[3, 4], %past: f32[3, 4], %more: f32[3, 4]) -> (%k, %l, %y) {
    %u = param "u" : f32[4, 4]
    %v = param "v" : f32[4, 4]
    %in = exp %x : f32[3, 4]
    %0 = matmul %in, %u : f32[3, 4]
    %k = concat %past, %0 {axis=0} : f32[6, 4]
    %1 = reduce_max %k {axes=[0], keepdims=true} : f32[1, 4]
    %a = add %in, %1 : f32[3, 4]
    %2 = matmul %a, %v : f32[3, 4]
    %l = concat %more, %2 {axis=0} : f32[6, 4]
    %3 = reduce_max %l {axes=[0], keepdims=true} : f32[1, 4]
    %b = add %a, %3 : f32[3, 4]
    %y = exp %b : f32[3, 4]
  })"),
            "in-a(4) a-b(4)");
}

// What repeats is cheap, and left to itself.
TEST(FindLayers, NoneOfCheapOps) {
  EXPECT_EQ(Layers(R"(graph @g(%x: f32[3, 4]) -> (%loss) {
    %0 = tanh %x : f32[3, 4]
    %1 = tanh %0 : f32[3, 4]
    %2 = tanh %1 : f32[3, 4]
    %loss = reduce_sum %2 {axes=[0, 1], keepdims=false} : f32[]
  })"),
            "");
}

TEST(FindLayers, NoneWhereNothingRepeats) {
  EXPECT_EQ(Layers(R"(graph @g(%x: f32[3, 4]) -> (%loss) {
    %w = param "w" : f32[4, 4]
    %0 = exp %x : f32[3, 4]
    %1 = matmul %0, %w : f32[3, 4]
    %2 = sin %1 : f32[3, 4]
    %3 = add %2, %0 : f32[3, 4]
    %loss = reduce_sum %3 {axes=[0, 1], keepdims=false} : f32[]
  })"),
            "");
}

// Of every layer something is in the loss, as what balances experts: its ways past the layers do
// not count, and its ops are in none. Where it has a weight of its own it is a part of the model.
TEST(FindLayers, BesideTermsOfTheLoss) {
  for (bool weight : {false, true}) {
    const std::string text = StrCat(R"(graph @g(%x: f32[3, 4]) -> (%loss) {
      %w = param "w" : f32[4, 4]
      %r = param "r" : f32[4, 4]
      %h = param "h" : f32[4, 4]
      %in = exp %x : f32[3, 4]
      %0 = matmul %in, %w : f32[3, 4]
      %a = add %in, %0 : f32[3, 4]
      %1 = matmul %a, %w : f32[3, 4]
      %b = add %a, %1 : f32[3, 4]
      %y = matmul %b, %h : f32[3, 4]
      %2 = reduce_sum %y {axes=[0, 1], keepdims=false} : f32[]
      %3 = mul %0, %1 : f32[3, 4]
      %4 = )",
                                    weight ? "matmul %3, %r" : "tanh %3", R"( : f32[3, 4]
      %5 = reduce_sum %4 {axes=[0, 1], keepdims=false} : f32[]
      %6 = add %5, %2 : f32[]
      %half = constant {value=tensor<f32[]: 0.5>} : f32[]
      %loss = mul %half, %6 : f32[]
    })");
    EXPECT_EQ(Layers(text), weight ? "" : "in-a(2) a-b(2)");
  }
}

// Two kinds take turns: what repeats are two layers, and names tell them apart.
TEST(FindLayers, OfSeveralKinds) {
  auto text = [](const std::string& kinds, const std::string& stem) {
    std::string ops;
    for (size_t i = 0; i < kinds.size(); ++i) {
      const std::string in = i == 0 ? "x" : StrCat("v", i - 1),
                        at = stem == "all"     ? stem
                             : stem == "lists" ? StrCat(i % 2 ? "attentions." : "mlps.", i / 2)
                                               : StrCat(stem, i);
      ops += StrCat("%m", i, " = matmul %", in, ", %w {site=\"", at, ".proj\"} : f32[3, 4]\n%n", i,
                    " = ", kinds[i] == 'a' ? "tanh" : "sin", " %m", i, " {site=\"", at,
                    "\"} : f32[3, 4]\n%v", i, " = add %", in, ", %n", i, " {site=\"", at,
                    "\"} : f32[3, 4]\n");
    }
    return StrCat("graph @g(%x: f32[3, 4]) -> (%loss) {\n%w = param \"w\" : f32[4, 4]\n", ops,
                  "%loss = reduce_sum %v", kinds.size() - 1,
                  " {axes=[0, 1], keepdims=false} : f32[]\n}");
  };
  EXPECT_EQ(Layers(text("abab", "h.")), "x-v0(3) v0-v1(3) v1-v2(3) v2-v3(3)");
  EXPECT_EQ(Layers(text("abab", "of")), "x-v0(3) v0-v1(3) v1-v2(3) v2-v3(3)");
  EXPECT_EQ(Layers(text("abab", "all")), "x-v1(6) v1-v3(6)");
  EXPECT_EQ(Layers(text("baaab", "h.")), "x-v0(3) v0-v1(3) v1-v2(3) v2-v3(3) v3-v4(3)");
  EXPECT_EQ(Layers(text("abab", "lists")), "x-v1(6) v1-v3(6)");
  EXPECT_EQ(Layers(text("aab", "h.")), "x-v0(3) v0-v1(3) v1-v2(3)");
  EXPECT_EQ(Layers(text("ab", "h.")), "x-v0(3) v0-v1(3)");
}

// The second layer reads what the first has inside: nothing is between them.
TEST(FindLayers, NoneAcrossAShortcut) {
  EXPECT_EQ(Layers(R"(graph @g(%x: f32[3, 4]) -> (%loss) {
    %w = param "w" : f32[4, 4]
    %in = exp %x : f32[3, 4]
    %0 = matmul %in, %w : f32[3, 4]
    %a = add %in, %0 : f32[3, 4]
    %1 = matmul %a, %w : f32[3, 4]
    %2 = add %1, %0 : f32[3, 4]
    %b = add %a, %2 : f32[3, 4]
    %loss = reduce_sum %b {axes=[0, 1], keepdims=false} : f32[]
  })"),
            "");
}

// Longer than any stack is deep: what lies between a value and where a way around it all ends, so
// that nothing in between is a value through which everything goes.
TEST(FindLayers, ASegmentAsLongAsTheGraph) {
  constexpr int kLength = 30'000;
  const char* ops[] = {"tanh", "sin", "cos", "neg"};
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput("x", TensorType(DType::kF32, {4}));
  Value* y = x;
  uint32_t random = 1;
  for (int i = 0; i < kLength; ++i) {
    random = random * 1664525 + 1013904223;
    y = b.Make(ops[random >> 30], {y});
  }
  graph.outputs.push_back({"y", b.Make("add", {x, y})});
  EXPECT_THAT(FindLayers(graph), ::testing::IsEmpty());
}

// Steps of a scan, each with a piece of its own.
TEST(FindLayers, VeryManyPiecesOfOneValue) {
  constexpr int64_t kPieces = 40'000;
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput("x", TensorType(DType::kF32, {kPieces}));
  Value* y = graph.AddInput("y", TensorType(DType::kF32, {1}));
  for (int64_t i = 0; i < kPieces; ++i) y = b.Make("tanh", {b.Add(y, b.Slice(x, 0, i, i + 1))});
  graph.outputs.push_back({"y", y});
  const double start = CpuSeconds();
  EXPECT_THAT(FindLayers(graph), ::testing::IsEmpty());
  EXPECT_LT(CpuSeconds() - start, 5);
}

}  // namespace
}  // namespace shardc::testing
