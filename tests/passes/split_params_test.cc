#include "passes/split_params.h"

#include <gtest/gtest.h>

#include "ir/host_tensor.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// 8 query heads and 2 kv heads of 4 from one weight, stored as [out, in].
constexpr const char* kFused = R"(mesh [tp=RANKS]
  graph @g(%x: f32[2, 3, 16]) -> (%o) {
    %w = param "qkv" {role="QKV"} : f32[48@tp, 16]
    %b = param "bias" : f32[48@tp]
    %0 = matmul_nt %x, %w {site="attn"} : f32[2, 3, 48]
    %1 = add %0, %b : f32[2, 3, 48]
    %2, %3, %4 = split %1 {axis=2, sizes=[32, 8, 8]} : f32[2, 3, 32], f32[2, 3, 8], f32[2, 3, 8]
    %q = reshape %2 {shape=[2, 3, 8, 4]} : f32[2, 3, 8, 4]
    %k = reshape %3 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
    %v = reshape %4 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
    %o, %l = attention %q, %k, %v {causal=true, layout="bshd", scale=0.5} : f32[2, 3, 8, 4], f32[2, 8, 3]
  })";

std::string Fused(int ranks) {
  std::string text = kFused;
  return text.replace(text.find("RANKS"), 5, std::to_string(ranks));
}

TEST(SplitParams, AWeightForEachPiece) {
  CheckPasses(Fused(4), "split_params", R"(
    CHECK: %w = param "qkv[0:32]" {piece_dim=0, piece_of="qkv", piece_start=0, role="QKV", whole_size=48} : f32[32@tp, 16]
    CHECK: param "qkv[32:40]" {piece_dim=0, piece_of="qkv", piece_start=32, role="QKV", whole_size=48} : f32[8@tp, 16]
    CHECK: param "qkv[40:48]" {piece_dim=0, piece_of="qkv", piece_start=40, role="QKV", whole_size=48} : f32[8@tp, 16]
    CHECK: param "bias[0:32]" {piece_dim=0, piece_of="bias", piece_start=0, whole_size=48} : f32[32@tp]
    CHECK: %4 = matmul_nt %x, %w {site="attn"} : f32[2, 3, 32]
    CHECK-NEXT: %5 = add %4, %b : f32[2, 3, 32]
    CHECK-NEXT: %6 = matmul_nt %x, %0 {site="attn"} : f32[2, 3, 8]
    CHECK-NEXT: %7 = add %6, %2 : f32[2, 3, 8]
    CHECK-NEXT: %8 = matmul_nt %x, %1 {site="attn"} : f32[2, 3, 8]
    CHECK-NEXT: %9 = add %8, %3 : f32[2, 3, 8]
    CHECK-NEXT: %q = reshape %5
    CHECK-NEXT: %k = reshape %7
    CHECK-NEXT: %v = reshape %9)");
}

// 9 query heads on 3 kv heads for 2 ranks: 6 and 3 of the one, 2 and 1 of the others.
TEST(SplitParams, BlocksOfOtherSizes) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 16]) -> (%o) {
    %w = param "qkv" : f32[16, 60@tp]
    %0 = matmul %x, %w : f32[2, 3, 60]
    %1, %2, %3 = split %0 {axis=2, sizes=[36, 12, 12]} : f32[2, 3, 36], f32[2, 3, 12], f32[2, 3, 12]
    %q = reshape %1 {shape=[2, 3, 9, 4]} : f32[2, 3, 9, 4]
    %k = reshape %2 {shape=[2, 3, 3, 4]} : f32[2, 3, 3, 4]
    %v = reshape %3 {shape=[2, 3, 3, 4]} : f32[2, 3, 3, 4]
    %o, %l = attention %q, %k, %v {causal=true, layout="bshd", scale=0.5} : f32[2, 3, 9, 4], f32[2, 9, 3]
  })",
              "split_params,infer_layouts", R"(
    CHECK: param "qkv[0:36]" {piece_dim=1, piece_of="qkv", piece_start=0, whole_size=60} : f32[16, 36@tp%12]
    CHECK: param "qkv[36:48]" {piece_dim=1, piece_of="qkv", piece_start=36, whole_size=60} : f32[16, 12@tp%4]
    CHECK: param "qkv[48:60]" {piece_dim=1, piece_of="qkv", piece_start=48, whole_size=60} : f32[16, 12@tp%4])");
}

// Heads side by side, split after they were taken apart, as Falcon has it.
TEST(SplitParams, ThroughAReshape) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 16]) -> (%o) {
    %w = param "qkv" : f32[16, 32@tp]
    %0 = matmul %x, %w : f32[2, 3, 32]
    %1 = reshape %0 {shape=[2, 3, 8, 4]} : f32[2, 3, 8, 4]
    %q, %k, %v = split %1 {axis=2, sizes=[6, 1, 1]} : f32[2, 3, 6, 4], f32[2, 3, 1, 4], f32[2, 3, 1, 4]
    %o, %l = attention %q, %k, %v {causal=true, layout="bshd", scale=0.5} : f32[2, 3, 6, 4], f32[2, 6, 3]
  })",
              "split_params,split_axes", R"(
    CHECK: param "qkv[0:24]" {piece_dim=1, piece_of="qkv", piece_start=0, whole_size=32} : f32[16, 24@tp]
    CHECK: param "qkv[24:28]" {piece_dim=1, piece_of="qkv", piece_start=24, whole_size=32} : f32[16, 4]
    CHECK: param "qkv[28:32]" {piece_dim=1, piece_of="qkv", piece_start=28, whole_size=32} : f32[16, 4]
    CHECK: reshape %_ {shape=[2, 3, 6, 4]} : f32[2, 3, 6, 4]
    CHECK: reshape %_ {shape=[2, 3, 1, 4]} : f32[2, 3, 1, 4])");
}

// A single head has no factor by which it is known behind a transpose.
TEST(SplitParams, ASingleHeadBehindATranspose) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 16]) -> (%o) {
    %w = param "qkv" : f32[16, 36@tp]
    %0 = matmul %x, %w : f32[2, 3, 36]
    %1 = reshape %0 {shape=[2, 3, 1, 9, 4]} : f32[2, 3, 1, 9, 4]
    %2 = transpose %1 {perm=[0, 2, 3, 1, 4]} : f32[2, 1, 9, 3, 4]
    %3, %4, %5 = split %2 {axis=2, sizes=[7, 1, 1]} : f32[2, 1, 7, 3, 4], f32[2, 1, 1, 3, 4], f32[2, 1, 1, 3, 4]
    %q = reshape %3 {shape=[2, 7, 3, 4]} : f32[2, 7, 3, 4]
    %k = reshape %4 {shape=[2, 1, 3, 4]} : f32[2, 1, 3, 4]
    %v = reshape %5 {shape=[2, 1, 3, 4]} : f32[2, 1, 3, 4]
    %o, %l = attention %q, %k, %v {causal=true, layout="bhsd", scale=0.5} : f32[2, 7, 3, 4], f32[2, 7, 3]
  })",
              "split_params,split_axes", R"(
    CHECK: param "qkv[0:28]" {piece_dim=1, piece_of="qkv", piece_start=0, whole_size=36} : f32[16, 28@tp]
    CHECK: param "qkv[28:32]" {piece_dim=1, piece_of="qkv", piece_start=28, whole_size=36} : f32[16, 4]
    CHECK: param "qkv[32:36]" {piece_dim=1, piece_of="qkv", piece_start=32, whole_size=36} : f32[16, 4])");
}

// torch.nn.MultiheadAttention over another sequence: q has a product of its own, k and v have one.
TEST(SplitParams, SegmentsWithinAPiece) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 16], %y: f32[2, 5, 16]) -> (%o) {
    %w = param "in_proj" {role="QKV"} : f32[48@tp, 16]
    %0, %1 = split %w {axis=0, sizes=[16, 32]} : f32[16, 16], f32[32, 16]
    %2 = matmul_nt %x, %0 : f32[2, 3, 16]
    %3 = matmul_nt %y, %1 : f32[2, 5, 32]
    %4 = reshape %3 {shape=[2, 5, 2, 4, 4]} : f32[2, 5, 2, 4, 4]
    %5, %6 = split %4 {axis=2, sizes=[1, 1]} : f32[2, 5, 1, 4, 4], f32[2, 5, 1, 4, 4]
    %q = reshape %2 {shape=[2, 3, 4, 4]} : f32[2, 3, 4, 4]
    %k = reshape %5 {shape=[2, 5, 4, 4]} : f32[2, 5, 4, 4]
    %v = reshape %6 {shape=[2, 5, 4, 4]} : f32[2, 5, 4, 4]
    %o, %l = attention %q, %k, %v {causal=false, layout="bshd", scale=0.5} : f32[2, 3, 4, 4], f32[2, 4, 3]
  })",
              "split_params,infer_layouts,propagate", R"(
    CHECK: param "in_proj[0:16]" {piece_dim=0, piece_of="in_proj", piece_start=0, role="QKV", whole_size=48} : f32[16@tp, 16]
    CHECK: param "in_proj[16:48]" {piece_dim=0, piece_of="in_proj", piece_start=16, role="QKV", whole_size=48} : f32[32@tp/2, 16]
    CHECK: matmul_nt %y, %_ : f32[2, 5, 32@tp/2]
    CHECK: attention %q, %k, %v {causal=false, layout="bshd", scale=0.5} : f32[2, 3, 4@tp, 4], f32[2, 4@tp, 3])");
}

// A spec cuts what is split over cp beside tp, and of the pieces the queries alone can take it.
TEST(SplitParams, WhereASpecCutsWhatIsSplit) {
  std::string text = Fused(2);
  text.replace(text.find("tp=2"), 4, "tp=2, cp=4");
  const std::string add = "%1 = add %0, %b : f32[2, 3, 48]\n";
  text.replace(text.find(add), add.size(),
               "%7 = add %0, %b : f32[2, 3, 48]\n    %1 = sharding_constraint %7 {axes=[\"cp\"], "
               "role=\"QKV\"} : f32[2, 3, 48@cp]\n");
  CheckPasses(text, "split_params", R"(
    CHECK: param "qkv[0:32]"
    CHECK: = sharding_constraint %_ {axes=["cp"], role="QKV"} : f32[2, 3, 32@cp]
    CHECK: = sharding_constraint %_ {axes=["cp"], role="QKV"} : f32[2, 3, 8@cp])");
}

// A piece that nothing reads, and a split that is dead.
TEST(SplitParams, WhatIsNotRead) {
  constexpr const char* kText = R"(mesh [tp=4]
  graph @g(%x: f32[2, 3, 16]) -> (%o) {
    %w = param "qkv" : f32[16, 56@tp]
    %0 = matmul %x, %w : f32[2, 3, 56]
    %1, %2, %3, %4 = split %0 {axis=2, sizes=[32, 8, 8, 8]} : f32[2, 3, 32], f32[2, 3, 8], f32[2, 3, 8], f32[2, 3, 8]
    %q = reshape %1 {shape=[2, 3, 8, 4]} : f32[2, 3, 8, 4]
    %k = reshape %2 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
    %v = reshape %3 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
    %o, %l = attention %q, %k, %v {causal=true, layout="bshd", scale=0.5} : f32[2, 3, 8, 4], f32[2, 8, 3]
  })";
  CheckPasses(kText, "split_params", "CHECK: split");
  std::string dead = Fused(4);
  dead.replace(dead.rfind('}'), 1,
               "  %d, %e = split %o {axis=2, sizes=[4, 4]} : f32[2, 3, 4, 4], f32[2, 3, 4, 4]\n}");
  CheckPasses(dead, "split_params", R"(
    CHECK: param "qkv[0:32]"
    CHECK-NOT: split)");
}

TEST(SplitParams, ThePiecesHaveTheData) {
  struct Count : TensorSource {
    void Read(const Shape& offset, const Shape& size, void* out) const override {
      auto* to = static_cast<float*>(out);
      for (int64_t i = 0; i < size[0]; ++i) *to++ = static_cast<float>(offset[0] + i);
    }
  };
  Graph graph = ParseAndVerify(Fused(4));
  graph.sources["bias"] = std::make_shared<Count>();
  SplitParams(graph);
  EXPECT_FALSE(graph.sources.contains("bias"));
  float got[3];
  graph.sources.at("bias[32:40]")->Read({2}, {3}, got);
  EXPECT_EQ(got[0], 34);
  EXPECT_EQ(got[2], 36);
}

// Enough heads for the ranks; a weight that something else reads; a dim that is not cut.
TEST(SplitParams, NotOtherwise) {
  std::string shared = Fused(4), whole = Fused(4);
  shared.replace(shared.find("-> (%o)"), 7, "-> (%o, %w)");
  for (const char* cut : {"48@tp", "48@tp"}) {
    whole.replace(whole.find(cut), 5, "48");
  }
  for (const std::string& text : {Fused(2), shared, whole}) {
    CheckPasses(text, "split_params", "CHECK: split");
  }
}

// A filter over the sequence for each channel, of one parameter, between the product and the split,
// as Mamba-2 has it: x by heads, B and C for all of them; what is split is itself a piece.
constexpr const char* kFiltered = R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 16]) -> (OUTPUTS) {
    %w = param "in" : f32[16, 28@tp]
    %t = param "taps" : f32[20, 1, 2]
    %b = param "bias" : f32[20]
    %0 = matmul %x, %w : f32[2, 3, 28]
    %z, %1 = split %0 {axis=2, sizes=[8, 20]} : f32[2, 3, 8], f32[2, 3, 20]
    %2 = transpose %1 {perm=[0, 2, 1]} : f32[2, 20, 3]
    %3 = pad %2 {high=[0, 0, 0], low=[0, 0, 1], value=0.0} : f32[2, 20, 4]
    %4 = reshape %t {shape=[20, 2]} : f32[20, 2]
    %5, %6 = split %4 {axis=1, sizes=[1, 1]} : f32[20, 1], f32[20, 1]
    %7 = slice %3 {limits=[2, 20, 3], starts=[0, 0, 0], steps=[1, 1, 1]} : f32[2, 20, 3]
    %8 = mul %7, %5 : f32[2, 20, 3]
    %9 = slice %3 {limits=[2, 20, 4], starts=[0, 0, 1], steps=[1, 1, 1]} : f32[2, 20, 3]
    %10 = mul %9, %6 : f32[2, 20, 3]
    %11 = add %8, %10 : f32[2, 20, 3]
    %12 = reshape %b {shape=[20, 1]} : f32[20, 1]
    %13 = add %11, %12 : f32[2, 20, 3]
    %14 = transpose %13 {perm=[0, 2, 1]} : f32[2, 3, 20]
    %15, %B, %C = split %14 {axis=2, sizes=[8, 6, 6]} : f32[2, 3, 8], f32[2, 3, 6], f32[2, 3, 6]
    %16 = mul %15, %z : f32[2, 3, 8]
    %17 = reshape %16 {shape=[2, 3, 2, 4]} : f32[2, 3, 2, 4]
    %18 = transpose %17 {perm=[0, 2, 1, 3]} : f32[2, 2, 3, 4]
    %19 = matmul_nt %C, %B : f32[2, 3, 3]
    %20 = reshape %19 {shape=[2, 1, 3, 3]} : f32[2, 1, 3, 3]
    %21 = broadcast_to %20 {shape=[2, 2, 3, 3]} : f32[2, 2, 3, 3]
    %y = matmul %21, %18 : f32[2, 2, 3, 4]
  })";

std::string Filtered(const std::string& outputs) {
  std::string text = kFiltered;
  return text.replace(text.find("OUTPUTS"), 7, outputs);
}

TEST(SplitParams, ThroughAFilterToPiecesOfPieces) {
  CheckPasses(Filtered("%y"), "split_params,split_axes,infer_layouts,follow_cuts", R"(
    CHECK: param "in[0:8]" {piece_dim=1, piece_of="in", piece_start=0, whole_size=28} : f32[16, 8@tp]
    CHECK: param "in[8:16]" {piece_dim=1, piece_of="in", piece_start=8, whole_size=28} : f32[16, 8@tp]
    CHECK: param "in[16:22]" {piece_dim=1, piece_of="in", piece_start=16, whole_size=28} : f32[16, 6]
    CHECK: param "in[22:28]" {piece_dim=1, piece_of="in", piece_start=22, whole_size=28} : f32[16, 6]
    CHECK: param "taps[0:8]" {piece_dim=0, piece_of="taps", piece_start=0, whole_size=20} : f32[8@tp, 1, 2]
    CHECK: param "taps[8:14]" {piece_dim=0, piece_of="taps", piece_start=8, whole_size=20} : f32[6, 1, 2]
    CHECK: param "bias[0:8]" {piece_dim=0, piece_of="bias", piece_start=0, whole_size=20} : f32[8@tp]
    CHECK: slice %_ {limits=[2, 8, 3], starts=[0, 0, 0], steps=[1, 1, 1]} : f32[2, 8, 3]
    CHECK: split %_ {axis=1, sizes=[1, 1]} : f32[8, 1], f32[8, 1]
    CHECK: slice %_ {limits=[2, 6, 3], starts=[0, 0, 0], steps=[1, 1, 1]} : f32[2, 6, 3])");
}

// Not along another dim than that of which a parameter is a piece.
TEST(SplitParams, APieceStaysOneOfItsDim) {
  for (const char* dim : {"0", "1"}) {
    std::string text = Filtered("%y");
    const std::string name = R"("in" )";
    text.replace(text.find(name), name.size(),
                 StrCat(R"("in[0:28]" {piece_dim=)", dim,
                        R"(, piece_of="in", piece_start=0, whole_size=30} )"));
    const bool same = std::string_view(dim) == "1";
    CheckPasses(text, "split_params",
                same ? R"(
      CHECK: param "in[0:8]" {piece_dim=1, piece_of="in", piece_start=0, whole_size=30}
      CHECK: param "in[22:28]" {piece_dim=1, piece_of="in", piece_start=22, whole_size=30})"
                     : R"(
      CHECK: param "in[0:28]" {piece_dim=0, piece_of="in", piece_start=0, whole_size=30} : f32[16, 28@tp]
      CHECK-NOT: param "in[)");
  }
}

// What is on the way is an output, too.
TEST(SplitParams, WhatIsReadOtherwiseStaysInOnePiece) {
  CheckPasses(Filtered("%y, %3"), "split_params", R"(
    CHECK: param "in[8:28]"
    CHECK: param "taps" : f32[20, 1, 2])");
}

// Of a constant each piece reads its part, also where others read the constant.
TEST(SplitParams, PastConstants) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%y, %z, %c) {
    %w = param "w" : f32[8, 7@tp]
    %c = constant {value=tensor<f32[7]: 1, 2, 3, 4, 5, 6, 7>} : f32[7]
    %0 = matmul %x, %w : f32[2, 3, 7]
    %1 = max %0, %c : f32[2, 3, 7]
    %y, %2 = split %1 {axis=2, sizes=[4, 3]} : f32[2, 3, 4], f32[2, 3, 3]
    %z = matmul_nt %2, %2 : f32[2, 3, 3]
  })",
              "split_params", R"(
    CHECK: param "w[0:4]"
    CHECK: param "w[4:7]"
    CHECK: slice %c {limits=[4], starts=[0], steps=[1]} : f32[4]
    CHECK: slice %c {limits=[7], starts=[4], steps=[1]} : f32[3])");
}

}  // namespace
}  // namespace shardc::testing
