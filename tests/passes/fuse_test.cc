#include "passes/fuse.h"

#include <gtest/gtest.h>

#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

TEST(Fuse, ProductAndBiasAreLinear) {
  CheckPasses(R"(graph @g(%x: f32[2, 3, 4]) -> (%y, %z) {
    %w = param "w" : f32[4, 5]
    %v = param "v" : f32[6, 5]
    %b = param "b" : f32[5]
    %c = param "c" : f32[6]
    %0 = matmul %x, %w {site="fc"} : f32[2, 3, 5]
    %y = add %0, %b : f32[2, 3, 5]
    %1 = matmul_nt %y, %v : f32[2, 3, 6]
    %z = add %c, %1 : f32[2, 3, 6]
  })",
              "fuse", R"(
    CHECK: %0 = linear %x, %w, %b {nt=false, site="fc"} : f32[2, 3, 5]
    CHECK-NEXT: %1 = linear %0, %v, %c {nt=true} : f32[2, 3, 6]
    CHECK-NEXT: })");
}

TEST(Fuse, CutTypesStay) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[3, 4]) -> (%y) {
    %w = param "w" : f32[4, 6@tp]
    %b = param "b" : f32[6@tp]
    %0 = matmul %x, %w : f32[3, 6@tp]
    %y = add %0, %b : f32[3, 6@tp]
  })",
              "fuse", "CHECK: = linear %x, %w, %b {nt=false} : f32[3, 6@tp]");
}

// The product has another reader, the bias is no vector, the weight is batched, or the product is
// added to something itself.
TEST(Fuse, KeepsProductsThatOthersRead) {
  CheckPasses(R"(
  graph @g(%x: f32[3, 4], %q: f32[2, 3, 4], %k: f32[2, 4, 5]) -> (%y, %z, %u, %t, %s) {
    %w = param "w" : f32[4, 5]
    %b = param "b" : f32[5]
    %m = param "m" : f32[3, 5]
    %0 = matmul %x, %w : f32[3, 5]
    %y = add %0, %b : f32[3, 5]
    %z = neg %0 : f32[3, 5]
    %2 = matmul %q, %k : f32[2, 3, 5]
    %u = add %2, %b : f32[2, 3, 5]
    %3 = exp %x : f32[3, 4]
    %4 = matmul %3, %w : f32[3, 5]
    %t = add %4, %m : f32[3, 5]
    %5 = matmul %x, %w, %m : f32[3, 5]
    %s = add %5, %b : f32[3, 5]
  })",
              "fuse", "CHECK-NOT: linear");
}

TEST(Fuse, OpsOfOneStageAndOneMicrobatch) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %r: f32[3, 5]) -> (%1, %2, %4) {
    %w = param "w" : f32[4, 5]
    %b = param "b" : f32[5]
    %0 = matmul %x, %w {stage=0} : f32[3, 5]
    %1 = add %0, %b {stage=1} : f32[3, 5]
    %2 = add %1, %r {stage=1, microbatch=0} : f32[3, 5]
    %3, %m, %v = layer_norm %2 {eps=1e-05, stage=1, microbatch=1} : f32[3, 5], f32[3], f32[3]
    %4 = neg %3 : f32[3, 5]
  })",
              "fuse", R"(
    CHECK: matmul
    CHECK: add
    CHECK: add
    CHECK: layer_norm)");
}

TEST(Fuse, ResidualAndNorm) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %r: f32[3, 4]) -> (%y, %z) {
    %w = param "w" : f32[4]
    %b = param "b" : f32[4]
    %0 = add %x, %r : f32[3, 4]
    %1, %2, %3 = layer_norm %0, %w, %b {eps=1e-05, site="ln_2"} : f32[3, 4], f32[3], f32[3]
    %y = neg %1 : f32[3, 4]
    %z = add %0, %y : f32[3, 4]
  })",
              "fuse", R"(
    CHECK: %0, %1, %2, %3 = add_layer_norm %x, %r, %w, %b {eps=1e-05, site="ln_2"} : f32[3, 4], f32[3, 4], f32[3], f32[3]
    CHECK-NEXT: %y = neg %1
    CHECK-NEXT: %z = add %0, %y)");
}

TEST(Fuse, NotWhereTheSumIsReadBefore) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %r: f32[3, 4]) -> (%y, %z) {
    %0 = add %x, %r : f32[3, 4]
    %z = neg %0 : f32[3, 4]
    %y, %1, %2 = layer_norm %0 {eps=1e-05} : f32[3, 4], f32[3], f32[3]
  })",
              "fuse", "CHECK: add %x, %r\nCHECK: neg %0\nCHECK: layer_norm %0");
}

TEST(Fuse, NotWhereTheSumIsItsOwnWeight) {
  CheckPasses(R"(graph @g(%x: f32[4], %r: f32[4]) -> (%y) {
    %0 = add %x, %r : f32[4]
    %y, %mean, %rstd = layer_norm %0, %0 {eps=0.1} : f32[4], f32[], f32[]
  })",
              "fuse", "CHECK: layer_norm %0, %0");
}

TEST(Fuse, NotWhereTheSumBroadcasts) {
  CheckPasses(R"(graph @g(%x: f32[3, 4], %r: f32[4]) -> (%y) {
    %0 = add %x, %r : f32[3, 4]
    %y, %1, %2 = layer_norm %0 {eps=1e-05} : f32[3, 4], f32[3], f32[3]
  })",
              "fuse", "CHECK: add %x, %r\nCHECK: layer_norm %0");
}

// What a norm passes back, the sum with the residual's gradient, its copy for the next products and
// the gradient of their bias.
TEST(Fuse, NormGradientAndResidual) {
  CheckPasses(
      R"(graph @g(%r: f32[2, 3, 4], %d: f32[2, 3, 4], %x: f32[2, 3, 4], %m: f32[2, 3], %s: f32[2, 3]) -> (%y, %c, %b, %dw, %db) {
    %w = param "w" : f32[4]
    %0, %dw, %db = layer_norm_grad %d, %x, %m, %s, %w {bias=true, site="ln_2"} : f32[2, 3, 4], f32[4], f32[4]
    %y = add %r, %0 : f32[2, 3, 4]
    %b = reduce_sum %y {axes=[0, 1]} : f32[4]
    %c = cast %y {to="bf16"} : bf16[2, 3, 4]
  })",
      "fuse", R"(
    CHECK: %y, %c, %dw, %db, %b = layer_norm_grad_add %r, %d, %x, %m, %s, %w {bias=true, out="bf16", sums=true, site="ln_2"} : f32[2, 3, 4], bf16[2, 3, 4], f32[4], f32[4], f32[4]
    CHECK-NEXT: })");
  CheckPasses(R"(graph @g(%r: f32[3, 4], %d: f32[3, 4], %x: f32[3, 4], %s: f32[3]) -> (%y, %c, %b) {
    %0 = rms_norm_grad %d, %x, %s : f32[3, 4]
    %y = add %0, %r : f32[3, 4]
    %c = cast %y {to="f16"} : f16[3, 4]
    %b = reduce_sum %y {axes=[1]} : f32[3]
  })",
              "fuse", R"(
    CHECK: %y, %c = rms_norm_grad_add %r, %d, %x, %s {out="f16"} : f32[3, 4], f16[3, 4]
    CHECK-NEXT: %b = reduce_sum %y)");
}

// What the gradient is added to must be there before it; nothing else may read it.
TEST(Fuse, NotWhereTheNormGradientIsReadElsewhere) {
  CheckPasses(R"(graph @g(%r: f32[3, 4], %d: f32[3, 4], %x: f32[3, 4], %s: f32[3]) -> (%c, %z) {
    %0 = rms_norm_grad %d, %x, %s : f32[3, 4]
    %y = add %0, %r : f32[3, 4]
    %c = cast %y {to="bf16"} : bf16[3, 4]
    %z = neg %0 : f32[3, 4]
  })",
              "fuse", "CHECK-NOT: rms_norm_grad_add");
  CheckPasses(R"(graph @g(%r: f32[3, 4], %d: f32[3, 4], %x: f32[3, 4], %s: f32[3]) -> (%c) {
    %0 = rms_norm_grad %d, %x, %s : f32[3, 4]
    %1 = neg %r : f32[3, 4]
    %y = add %0, %1 : f32[3, 4]
    %c = cast %y {to="bf16"} : bf16[3, 4]
  })",
              "fuse", "CHECK-NOT: rms_norm_grad_add");
}

// Kernels give what the norm gave in f32, or in the copy's type.
TEST(Fuse, NormGradientThatMakesTheNormAgain) {
  const std::string text =
      R"(graph @g(%r: f32[3, 4], %d: f32[3, 4], %x: f32[3, 4], %s: f32[3]) -> (%y, %c, %n) {
    %0, %n = rms_norm_grad %d, %x, %s {y="bf16"} : f32[3, 4], bf16[3, 4]
    %y = add %0, %r : f32[3, 4]
    %c = cast %y {to="bf16"} : bf16[3, 4]
  })";
  CheckPasses(text, "fuse",
              "CHECK: %y, %c, %n = rms_norm_grad_add %r, %d, %x, %s {out=\"bf16\", y=");
  std::string other = text;
  const size_t copy = other.find("%c = ");
  other.replace(copy, std::string::npos, "%c = cast %y {to=\"f16\"} : f16[3, 4]\n  }");
  CheckPasses(other, "fuse", "CHECK-NOT: rms_norm_grad_add");
}

// The padding of the sum is whatever it is; a column's sum must not have it.
TEST(Fuse, SumsOfPaddedRowsStayApart) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%r: f32[3@dp, 4], %d: f32[3@dp, 4], %x: f32[3@dp, 4], %s: f32[3@dp]) -> (%c, %b) {
    %0 = rms_norm_grad %d, %x, %s : f32[3@dp, 4]
    %y = add %r, %0 : f32[3@dp, 4]
    %b = reduce_sum %y {axes=[0]} : f32[4] partial(dp)
    %c = cast %y {to="bf16"} : bf16[3@dp, 4]
  })",
              "fuse", R"(
    CHECK: rms_norm_grad_add %r, %d, %x, %s {out="bf16"}
    CHECK-NEXT: reduce_sum)");
}

// From the projection to its gradient: nothing is copied, forward or backward.
constexpr char kProjected[] = R"(mesh [tp=2]
  graph @g(%x: f32[2, 4, 12@tp/3], %d: f32[2, 4, 2@tp, 2]) -> (%o, %dx) {
    %0, %1, %2 = split %x {axis=2, sizes=[4, 4, 4]} : f32[2, 4, 4@tp], f32[2, 4, 4@tp], f32[2, 4, 4@tp]
    %q = reshape %0 {shape=[2, 4, 2, 2]} : f32[2, 4, 2@tp, 2]
    %k = reshape %1 {shape=[2, 4, 2, 2]} : f32[2, 4, 2@tp, 2]
    %v = reshape %2 {shape=[2, 4, 2, 2]} : f32[2, 4, 2@tp, 2]
    %o, %l = attention %q, %k, %v {causal=true, layout="bshd", scale=0.5, site="attn"} : f32[2, 4, 2@tp, 2], f32[2, 2@tp, 4]
    %dq, %dk, %dv = attention_grad %d, %q, %k, %v, %o, %l {causal=true, layout="bshd", scale=0.5} : f32[2, 4, 2@tp, 2], f32[2, 4, 2@tp, 2], f32[2, 4, 2@tp, 2]
    %3 = reshape %dq {shape=[2, 4, 4]} : f32[2, 4, 4@tp]
    %4 = reshape %dk {shape=[2, 4, 4]} : f32[2, 4, 4@tp]
    %5 = reshape %dv {shape=[2, 4, 4]} : f32[2, 4, 4@tp]
    %dx = concat %3, %4, %5 {axis=2} : f32[2, 4, 12@tp/3]
  })";

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(Fuse, AttentionWhereTheProjectionLeftIt) {
  CheckPasses(kProjected, "fuse", R"(
    CHECK-NOT: split
    CHECK: %0 = reshape %x {shape=[2, 4, 6, 2], site="attn"} : f32[2, 4, 6@tp/3, 2]
    CHECK-NEXT: %o, %l = packed_attention %0 {causal=true, scale=0.5, site="attn"} : f32[2, 4, 2@tp, 2], f32[2, 2@tp, 4]
    CHECK-NEXT: %1 = reshape %x {shape=[2, 4, 6, 2]} : f32[2, 4, 6@tp/3, 2]
    CHECK-NEXT: %2 = packed_attention_grad %d, %1, %o, %l {causal=true, scale=0.5} : f32[2, 4, 6@tp/3, 2]
    CHECK-NEXT: %dx = reshape %2 {shape=[2, 4, 12]} : f32[2, 4, 12@tp/3]
    CHECK-NEXT: })");
}

TEST(Fuse, AttentionThatDrops) {
  std::string text =
      Replaced(kProjected, "%d: f32[2, 4, 2@tp, 2])", "%d: f32[2, 4, 2@tp, 2], %n: i64[])");
  text = Replaced(text, "%q, %k, %v {causal=true, ",
                  "%q, %k, %v, %n {causal=true, ratio=0.5, stream=3, ");
  text = Replaced(text, "%o, %l {causal=true, ", "%o, %l, %n {causal=true, ratio=0.5, stream=3, ");
  CheckPasses(text, "fuse", R"(
    CHECK: %o, %l = packed_attention %0, %n {causal=true, ratio=0.5, scale=0.5, stream=3, site="attn"} : f32[2, 4, 2@tp, 2], f32[2, 2@tp, 4]
    CHECK: %2 = packed_attention_grad %d, %1, %o, %l, %n {causal=true, ratio=0.5, scale=0.5, stream=3} : f32[2, 4, 6@tp/3, 2]
    CHECK-NEXT: %dx = reshape %2 {shape=[2, 4, 12]} : f32[2, 4, 12@tp/3])");
}

TEST(Fuse, NotWhereThePartsAreReadApart) {
  const std::string text = kProjected;
  // In another order, by others, or in another layout.
  for (const std::string& other :
       {Replaced(text, "concat %3, %4, %5", "concat %4, %3, %5"),
        Replaced(text, "attention %q, %k, %v", "attention %q, %v, %k"),
        Replaced(Replaced(text, "(%o, %dx)", "(%o, %dx, %n)"),
                 "    %dx =", "    %n = neg %k : f32[2, 4, 2@tp, 2]\n    %dx ="),
        Replaced(text, "(%o, %dx)", "(%o, %dx, %v)"),
        Replaced(text, "(%o, %dx)", "(%o, %dx, %4)")}) {
    SCOPED_TRACE(other);
    CheckPasses(other, "fuse", "CHECK: split\nCHECK-NOT: packed_attention");
  }
}

// Rows that are taken apart are more rows with fewer heads each, of which a row of x holds several.
TEST(Fuse, AttentionOfOtherRowsThanWereSplit) {
  CheckPasses(R"(graph @g(%x: f32[2, 4, 36]) -> (%o) {
    %0, %1, %2 = split %x {axis=2, sizes=[12, 12, 12]} : f32[2, 4, 12], f32[2, 4, 12], f32[2, 4, 12]
    %q = reshape %0 {shape=[2, 8, 3, 2]} : f32[2, 8, 3, 2]
    %k = reshape %1 {shape=[2, 8, 3, 2]} : f32[2, 8, 3, 2]
    %v = reshape %2 {shape=[2, 8, 3, 2]} : f32[2, 8, 3, 2]
    %o, %l = attention %q, %k, %v {scale=0.5, layout="bshd"} : f32[2, 8, 3, 2], f32[2, 3, 8]
  })",
              "fuse", "CHECK: split\nCHECK-NOT: packed_attention");
}

// Where others follow these queries do not see all keys: packed_attention has no word for it.
TEST(Fuse, AttentionOfAPartOfTheQueries) {
  auto part = [](int64_t first) {
    const std::string place =
        StrCat("causal=true, origin=[0, 0, ", first, ", 0], whole=[2, 4, 9, 4]");
    std::string text = Replaced(kProjected, "%q, %k, %v {causal=true", "%q, %k, %v {" + place);
    return Replaced(text, "%o, %l {causal=true", "%o, %l {" + place);
  };
  CheckPasses(part(3), "fuse", "CHECK: split\nCHECK-NOT: packed_attention");
  CheckPasses(part(5), "fuse", "CHECK: packed_attention\nCHECK: packed_attention_grad");
}

// The gradient of the loss is there before the loss, and rows of halves begin where products like
// it.
constexpr char kLoss[] =
    R"(graph @g(%x: bf16[2, 4], %labels: i64[2], %n: f32[2]) -> (%loss, %dx, %dw) {
    %w = param "w" : bf16[7, 4]
    %0 = matmul_nt %x, %w {out="f32"} : f32[2, 7]
    %loss, %1 = cross_entropy %0, %labels : f32[2], f32[2]
    %2 = reciprocal %n {phase="backward"} : f32[2]
    %3 = cross_entropy_grad %2, %0, %labels, %1 {out="bf16", phase="backward"} : bf16[2, 7]
    %dx = matmul %3, %w {phase="backward"} : bf16[2, 4]
    %dw = matmul_tn %3, %x {phase="backward"} : bf16[7, 4]
  })";

TEST(Fuse, LossAndItsGradient) {
  CheckPasses(kLoss, "fuse", R"(
    CHECK: %0 = matmul_nt %x, %w {length=8, out="f32"} : f32[2, 8]
    CHECK-NEXT: %1 = reciprocal %n
    CHECK-NEXT: %loss, %2 = cross_entropy_with_grad %1, %0, %labels {classes=7, out="bf16"} : f32[2], bf16[2, 8]
    CHECK-NEXT: %dx = matmul %2, %w {cols=7, phase="backward"} : bf16[2, 4]
    CHECK-NEXT: %dw = matmul_tn %2, %x {cols=7, phase="backward"} : bf16[7, 4]
    CHECK-NEXT: })");
  // Whoever else reads the gradient reads it as it is.
  std::string other = Replaced(kLoss, "(%loss, %dx, %dw)", "(%loss, %dx, %dw, %s)");
  other = Replaced(other, "    %dx =", "    %s = reduce_sum %3 {axes=[0]} : bf16[7]\n    %dx =");
  CheckPasses(other, "fuse", R"(
    CHECK: %0 = matmul_nt %x, %w {out="f32"} : f32[2, 7]
    CHECK: cross_entropy_with_grad %1, %0, %labels {out="bf16"} : f32[2], bf16[2, 7]
    CHECK-NOT: cols)");
}

TEST(Fuse, LossOfLabelsThatAreComputedAgain) {
  std::string text = Replaced(kLoss, "%labels: i64[2]", "%ids: i64[3]");
  const std::string slice = " = slice %ids {starts=[1], limits=[3], steps=[1]} : i64[2]\n";
  text = Replaced(text, "    %w =", "    %labels" + slice + "    %w =");
  text = Replaced(text, "    %2 =", "    %again" + slice + "    %2 =");
  text = Replaced(text, "%0, %labels, %1 {out", "%0, %again, %1 {out");
  CheckPasses(text, "fuse", "CHECK: = cross_entropy_with_grad %1, %0, %labels");
  // Others they are not.
  text = Replaced(text, "starts=[1], limits=[3]", "starts=[0], limits=[2]");
  CheckPasses(text, "fuse", "CHECK-NOT: cross_entropy_with_grad");
}

TEST(Fuse, LossApartFromAPartialGradient) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%x: f32[2, 7], %labels: i64[2], %n: f32[2, 4@dp]) -> (%loss, %dx) {
    %loss, %1 = cross_entropy %x, %labels : f32[2], f32[2]
    %2 = reduce_sum %n {axes=[1]} : f32[2] partial(dp)
    %3 = cross_entropy_grad %2, %x, %labels, %1 : f32[2, 7] partial(dp)
    %dx = all_reduce %3 {axes=["dp"]} : f32[2, 7]
  })",
              "fuse", "CHECK: cross_entropy_grad\nCHECK-NOT: cross_entropy_with_grad");
}

// A gradient that waits for the loss; an lse that is wanted.
TEST(Fuse, LossApartFromItsGradient) {
  const std::string text = kLoss;
  for (const std::string& other : {Replaced(text, "reciprocal %n", "reciprocal %loss"),
                                   Replaced(text, "(%loss,", "(%loss, %1,")}) {
    SCOPED_TRACE(other);
    CheckPasses(other, "fuse", "CHECK-NOT: cross_entropy_with_grad");
  }
}

}  // namespace
}  // namespace shardc::testing
