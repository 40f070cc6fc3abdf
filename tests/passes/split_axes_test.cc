#include "passes/split_axes.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// Separate projections of `heads` query heads and `kv` key/value heads of 4.
std::string Attention(const std::string& mesh, int heads, int kv) {
  int q = 4 * heads, k = 4 * kv;
  return StrCat("mesh [", mesh, "]\n",
                "graph @g(%x: f32[2, 3, 16]) -> (%y) {\n"
                "  %wq = param \"q\" : f32[16, ",
                q, "@tp]\n  %wk = param \"k\" : f32[16, ", k, "@tp]\n  %bk = param \"kb\" : f32[",
                k, "@tp]\n  %wv = param \"v\" : f32[16, ", k, "@tp]\n  %wo = param \"o\" : f32[", q,
                "@tp, 16]\n"
                "  %0 = matmul %x, %wq : f32[2, 3, ",
                q, "]\n  %1 = matmul %x, %wk : f32[2, 3, ", k, "]\n  %2 = add %1, %bk : f32[2, 3, ",
                k, "]\n  %3 = matmul %x, %wv : f32[2, 3, ", k,
                "]\n  %q = reshape %0 {shape=[2, 3, ", heads, ", 4]} : f32[2, 3, ", heads,
                ", 4]\n  %k = reshape %2 {shape=[2, 3, ", kv, ", 4]} : f32[2, 3, ", kv,
                ", 4]\n  %v = reshape %3 {shape=[2, 3, ", kv, ", 4]} : f32[2, 3, ", kv,
                ", 4]\n  %o, %l = attention %q, %k, %v {causal=true, layout=\"bshd\", scale=0.5} : "
                "f32[2, 3, ",
                heads, ", 4], f32[2, ", heads, ", 3]\n  %4 = reshape %o {shape=[2, 3, ", q,
                "]} : f32[2, 3, ", q, "]\n  %y = matmul %4, %wo : f32[2, 3, 16]\n}\n");
}

TEST(SplitAxes, KvHeadsAreRepeatedOverTheMinorPart) {
  Graph graph = ParseAndVerify(Attention("dp=2, tp=4", 8, 2));
  RunPasses(graph, "split_axes");
  CheckGraph(graph, R"(
    CHECK: mesh [dp=2, tp.0=2, tp.1=2]
    CHECK: %wq = param "q" : f32[16, 32@(tp.0,tp.1)]
    CHECK-NEXT: %wk = param "k" : f32[16, 8@tp.0]
    CHECK-NEXT: %bk = param "kb" : f32[8@tp.0]
    CHECK-NEXT: %wv = param "v" : f32[16, 8@tp.0]
    CHECK-NEXT: %wo = param "o" : f32[32@(tp.0,tp.1), 16])");
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_EQ(graph.notes[0],
            "k and 2 more hold 2 heads for 4 ranks of tp: each is repeated on 2 ranks");
}

// No rank sends a query, a key or a value.
TEST(SplitAxes, AttentionNeedsNoCommunicationThen) {
  for (int heads : {8, 6, 12}) {
    Graph graph = ParseAndVerify(Attention("tp=4", heads, 2));
    RunPasses(graph, "split_axes,infer_layouts,propagate,insert_reshards");
    CheckGraph(graph, R"(
    CHECK: @(tp.0,tp.1)
    CHECK: %y = matmul %_, %wo : f32[2, 3, 16] partial(tp.0,tp.1)
    CHECK-NEXT: %_ = reshard %y)",
               true);
    int reshards = 0;
    for (const auto& op : graph.ops()) reshards += op->name() == "reshard";
    EXPECT_EQ(reshards, 1) << heads << "\n" << PrintGraph(graph);
  }
}

// kv heads that are repeated for the query heads, and products of batches.
std::string WrittenOut(const std::string& mesh) {
  return StrCat("mesh [", mesh, "]\n", R"(graph @g(%x: f32[2, 3, 16]) -> (%y) {
    %wq = param "q" : f32[16, 32@tp]
    %wk = param "k" : f32[16, 8@tp]
    %wv = param "v" : f32[16, 8@tp]
    %wo = param "o" : f32[32@tp, 16]
    %0 = matmul %x, %wq : f32[2, 3, 32]
    %1 = matmul %x, %wk : f32[2, 3, 8]
    %2 = matmul %x, %wv : f32[2, 3, 8]
    %3 = reshape %0 {shape=[2, 3, 8, 4]} : f32[2, 3, 8, 4]
    %4 = reshape %1 {shape=[2, 3, 2, 1, 4]} : f32[2, 3, 2, 1, 4]
    %5 = reshape %2 {shape=[2, 3, 2, 1, 4]} : f32[2, 3, 2, 1, 4]
    %6 = broadcast_to %4 {shape=[2, 3, 2, 4, 4]} : f32[2, 3, 2, 4, 4]
    %7 = broadcast_to %5 {shape=[2, 3, 2, 4, 4]} : f32[2, 3, 2, 4, 4]
    %8 = reshape %6 {shape=[2, 3, 8, 4]} : f32[2, 3, 8, 4]
    %9 = reshape %7 {shape=[2, 3, 8, 4]} : f32[2, 3, 8, 4]
    %q = transpose %3 {perm=[0, 2, 1, 3]} : f32[2, 8, 3, 4]
    %k = transpose %8 {perm=[0, 2, 1, 3]} : f32[2, 8, 3, 4]
    %v = transpose %9 {perm=[0, 2, 1, 3]} : f32[2, 8, 3, 4]
    %10 = matmul_nt %q, %k : f32[2, 8, 3, 3]
    %11 = tanh %10 : f32[2, 8, 3, 3]
    %12 = softmax %11 {axis=3} : f32[2, 8, 3, 3]
    %13 = matmul %12, %v : f32[2, 8, 3, 4]
    %14 = transpose %13 {perm=[0, 2, 1, 3]} : f32[2, 3, 8, 4]
    %15 = reshape %14 {shape=[2, 3, 32]} : f32[2, 3, 32]
    %y = matmul %15, %wo : f32[2, 3, 16]
  })");
}

TEST(SplitAxes, HeadsThatAreRepeatedByThemselves) {
  Graph graph = ParseAndVerify(WrittenOut("tp=4"));
  RunPasses(graph, "split_axes,infer_layouts,propagate,insert_reshards");
  CheckGraph(graph, R"(
    CHECK: mesh [tp.0=2, tp.1=2]
    CHECK: %wk = param "k" : f32[16, 8@tp.0]
    CHECK-NEXT: %wv = param "v" : f32[16, 8@tp.0]
    CHECK: broadcast_to %_ {shape=[2, 3, 2, 4, 4]} : f32[2, 3, 2@tp.0, 4@tp.1, 4]
    CHECK: %y = matmul %_, %wo : f32[2, 3, 16] partial(tp.0,tp.1)
    CHECK-NEXT: %_ = reshard %y)");
  int reshards = 0;
  for (const auto& op : graph.ops()) reshards += op->name() == "reshard";
  EXPECT_EQ(reshards, 1) << PrintGraph(graph);
  // Enough heads; more ranks than there are query heads.
  for (const char* mesh : {"tp=2", "tp=16"}) {
    CheckPasses(WrittenOut(mesh), "split_axes", StrCat("CHECK: mesh [", mesh, "]"));
  }
}

// Keys that a spec cuts over cp beside what cuts their weight: 4 heads, of which tp leaves 2.
TEST(SplitAxes, ValuesBesideTheirWeight) {
  std::string text = Attention("tp=2, cp=4", 8, 4);
  const std::string add = "%2 = add %1, %bk : f32[2, 3, 16]\n";
  text.replace(text.find(add), add.size(),
               "%7 = add %1, %bk : f32[2, 3, 16]\n  %2 = sharding_constraint %7 {axes=[\"cp\"], "
               "site=\"k\"} : f32[2, 3, 16@cp]\n");
  Graph graph = ParseAndVerify(text);
  RunPasses(graph, "split_axes,infer_layouts,propagate");
  CheckGraph(graph, R"(
    CHECK: mesh [tp=2, cp.0=2, cp.1=2]
    CHECK: %bk = param "kb" : f32[16@tp]
    CHECK: sharding_constraint %_ {axes=["cp.0", "cp.1"], site="k"} : f32[2, 3, 16@(tp,cp.0)])");
  ASSERT_EQ(graph.notes.size(), 1u);
  EXPECT_EQ(graph.notes[0],
            "the result of add holds 2 heads for 4 ranks of cp: each is repeated on 2 ranks");
}

TEST(SplitAxes, NamesThatAreTaken) {
  CheckPasses(Attention("tp=4, tp.0=2", 8, 2), "split_axes",
              "CHECK: mesh [tp..0=2, tp..1=2, tp.0=2]");
}

TEST(SplitAxes, OneHeadForAllStaysWhole) {
  CheckPasses(Attention("tp=4", 8, 1), "split_axes,infer_layouts", R"(
    CHECK: mesh [tp=4]
    CHECK: %wq = param "q" : f32[16, 32@tp]
    CHECK-NEXT: %wk = param "k" : f32[16, 4]
    CHECK-NEXT: %bk = param "kb" : f32[4]
    CHECK-NEXT: %wv = param "v" : f32[16, 4]
    CHECK-NEXT: %wo = param "o" : f32[32@tp, 16])");
}

// Enough heads; heads that do not divide the ranks; as many query heads as kv heads.
TEST(SplitAxes, NotOtherwise) {
  for (auto [ranks, heads, kv] : {std::tuple(2, 8, 2), {2, 9, 3}, {4, 12, 3}, {8, 4, 4}}) {
    Graph graph = ParseAndVerify(Attention(StrCat("tp=", ranks), heads, kv));
    std::string before = PrintGraph(graph);
    SplitAxes(graph);
    EXPECT_EQ(PrintGraph(graph), before);
    EXPECT_TRUE(graph.notes.empty());
  }
}

// Layers with 2 and with 4 kv heads over 8 ranks.
TEST(SplitAxes, SeveralTimes) {
  std::string two = Attention("tp=8", 16, 2), four = Attention("tp=8", 16, 4);
  // The second attention after the first, with names of its own.
  std::string body = four.substr(four.find("{\n") + 2);
  body = body.substr(0, body.rfind('}'));
  std::string renamed;
  for (size_t i = 0; i < body.size(); ++i) {
    renamed += body[i];
    if (body[i] == '%') renamed += body.compare(i, 3, "%x,") == 0 ? "" : "b_";
    if (body.compare(i, 6, "param ") == 0) {
      renamed += "aram \"b_";
      i += 6;
    }
  }
  std::string both = two.substr(0, two.rfind('}')) + renamed + "}\n";
  size_t at = both.find("(%y)");
  both.replace(at, 4, "(%y, %b_y)");
  CheckPasses(both, "split_axes", R"(
    CHECK: mesh [tp.0=2, tp.1=2, tp.2=2]
    CHECK: %wq = param "q" : f32[16, 64@(tp.0,tp.1,tp.2)]
    CHECK-NEXT: %wk = param "k" : f32[16, 8@tp.0]
    CHECK: %b_wk = param "b_k" : f32[16, 16@(tp.0,tp.1)])");
}

// What two projections give is summed over in a product of both: no rank has a part of it. Over
// columns of a weight the sum stays.
TEST(SplitAxes, WhatIsSummedOverStaysWhole) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y, %z) {
    %b = param "b" : f32[8, 4@tp]
    %c = param "c" : f32[8, 4@tp]
    %u = param "up" : f32[8, 4@tp]
    %d = param "down" : f32[4@tp, 8]
    %0 = matmul %x, %b : f32[2, 3, 4]
    %1 = matmul %x, %c : f32[2, 3, 4]
    %2 = silu %1 : f32[2, 3, 4]
    %y = matmul_nt %0, %2 : f32[2, 3, 3]
    %3 = matmul %x, %u : f32[2, 3, 4]
    %z = matmul %3, %d : f32[2, 3, 8]
  })",
              "split_axes", R"(
    CHECK: %b = param "b" : f32[8, 4]
    CHECK-NEXT: %c = param "c" : f32[8, 4]
    CHECK-NEXT: %u = param "up" : f32[8, 4@tp]
    CHECK-NEXT: %d = param "down" : f32[4@tp, 8])");
}

// In the first layer the products are with rows of the embedding, and are none the less.
TEST(SplitAxes, WhatIsMadeOfALookupIsSummedOver) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%i: i64[2, 3]) -> (%y) {
    %e = param "embedding" : f32[9, 8]
    %b = param "b" : f32[8, 4@tp]
    %c = param "c" : f32[8, 4@tp]
    %x = gather %e, %i {axis=0} : f32[2, 3, 8]
    %0 = matmul %x, %b : f32[2, 3, 4]
    %1 = matmul %x, %c : f32[2, 3, 4]
    %y = matmul_nt %0, %1 : f32[2, 3, 3]
  })",
              "split_axes", R"(
    CHECK: %b = param "b" : f32[8, 4]
    CHECK-NEXT: %c = param "c" : f32[8, 4])");
}

// Experts that each token looks up are weights, too: of what is summed over every rank has a part.
TEST(SplitAxes, WhatIsLookedUpIsAWeight) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[3, 1, 8], %i: i64[3]) -> (%y) {
    %u = param "up" : f32[4, 8, 12@tp]
    %d = param "down" : f32[4, 12@tp, 8]
    %0 = gather %u, %i {axis=0} : f32[3, 8, 12]
    %1 = gather %d, %i {axis=0} : f32[3, 12, 8]
    %2 = matmul %x, %0 : f32[3, 1, 12]
    %3 = silu %2 : f32[3, 1, 12]
    %y = matmul %3, %1 : f32[3, 1, 8]
  })",
              "split_axes", R"(
    CHECK: %u = param "up" : f32[4, 8, 12@tp]
    CHECK-NEXT: %d = param "down" : f32[4, 12@tp, 8])");
}

// The update of low rank is a product of weights, and no score.
TEST(SplitAxes, AWeightWithAnUpdateIsOne) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y) {
    %u = param "up" : f32[8, 12@tp]
    %d = param "down" : f32[12@tp, 8]
    %a = param "A" : f32[12, 2]
    %b = param "B" : f32[2, 8]
    %0 = matmul %x, %u : f32[2, 3, 12]
    %1 = silu %0 : f32[2, 3, 12]
    %2 = matmul %a, %b : f32[12, 8]
    %3 = add %d, %2 : f32[12, 8]
    %y = matmul %1, %3 : f32[2, 3, 8]
  })",
              "split_axes", R"(
    CHECK: %u = param "up" : f32[8, 12@tp]
    CHECK-NEXT: %d = param "down" : f32[12@tp, 8])");
}

}  // namespace
}  // namespace shardc::testing
