#include "passes/sink_reductions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ir/diagnostic.h"
#include "tests/ir/cpu_time.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

void Check(std::string_view text, std::string_view checks) {
  Graph graph = ParseAndVerify(text);
  RunPasses(graph, "optimize_reshards");
  CheckGraph(graph, checks, true);
}

// The norm of all gradients. To pair its terms takes time cubic in their number.
TEST(SinkReductions, ALongSum) {
  std::string text = "mesh [tp=2]\ngraph @g(%x: f32[], %t0: f32[]) -> (%y) {\n";
  const int terms = 3000;
  for (int i = 1; i <= terms; ++i) {
    text += StrCat("%t", i, " = add %t", i - 1, ", %x : f32[]\n");
  }
  text += StrCat("%y = exp %t", terms, " : f32[]\n}");
  Check(text, "CHECK: %y = exp");
}

// Branches that run in parallel need one all_reduce.
TEST(SinkReductions, SumsOfReductionsAreReducedOnce) {
  Check(R"(mesh [tp=2]
  graph @g(%a: f32[8, 4@tp], %b: f32[8, 4@tp], %x: f32[8]) -> (%y, %z) {
    %0 = reduce_sum %a {axes=[1], keepdims=false} : f32[8] partial(tp)
    %1 = reshard %0 {why=["a"]} : f32[8]
    %2 = reduce_sum %b {axes=[1], keepdims=false} : f32[8] partial(tp)
    %3 = reshard %2 {why=["b"]} : f32[8]
    %y = add %1, %3 : f32[8]
    %4 = neg %0 : f32[8] partial(tp)
    %5 = reshard %4 {why=["c"]} : f32[8]
    %6 = add %x, %5 : f32[8]
    %7 = neg %2 : f32[8] partial(tp)
    %8 = reshard %7 {why=["d"]} : f32[8]
    %z = add %6, %8 : f32[8]
  })",
        R"(
    CHECK: %2 = add %0, %1 : f32[8] partial(tp)
    CHECK-NEXT: %3 = reshard %2 {why=["a", "b"]} : f32[8]
    CHECK-NEXT: %4 = neg %0
    CHECK-NEXT: %5 = neg %1
    CHECK-NEXT: %6 = add %4, %5 : f32[8] partial(tp)
    CHECK-NEXT: %7 = reshard %6 {why=["c", "d"]} : f32[8]
    CHECK-NEXT: %z = add %x, %7)");
}

// A gradient that is partial over b and feeds a product with another reduction behind it: summed
// there, once over both axes, and not before.
TEST(SinkReductions, AReductionMovesBehindLinearUsersWhereThatIsLess) {
  Check(R"(mesh [a=2, b=2]
  graph @g(%x: f32[64, 8], %k: f32[64, 4@a, 2@b], %q: f32[64, 8@(a,b)]) -> (%y, grad.w: %g) {
    %w = param "w" : f32[8, 4@a]
    %v = param "v" : f32[8, 8@(a,b)]
    %0 = reduce_sum %k {axes=[2], keepdims=false} : f32[64, 4@a] partial(b)
    %1 = reshard %0 {why=["k"]} : f32[64, 4@a]
    %2 = matmul_nt %1, %w : f32[64, 8] partial(a)
    %g = matmul_tn %x, %1 {batch=0} : f32[8, 4@a]
    %3 = matmul_nt %q, %v : f32[64, 8] partial(a,b)
    %4 = reshard %3 {why=["q"]} : f32[64, 8] partial(a)
    %5 = add %2, %4 : f32[64, 8] partial(a)
    %y = reshard %5 {why=["y"]} : f32[64, 8]
  })",
        R"(
    CHECK: %1 = matmul_nt %0, %w : f32[64, 8] partial(a,b)
    CHECK-NEXT: %g = matmul_tn %x, %0 {batch=0} : f32[8, 4@a] partial(b)
    CHECK-NEXT: %2 = reshard %g {for="matmul_tn", why=["k", "partial through matmul_tn"]} : f32[8, 4@a]
    CHECK: %4 = add %1, %3 : f32[64, 8] partial(a,b)
    CHECK-NEXT: %5 = reshard %4 {for="matmul_nt", why=["k", "partial through matmul_nt", "q"]} : f32[64, 8]
    CHECK-NOT: reshard)");
}

TEST(SinkReductions, TheyNeedNotSayWhyTheyAreThere) {
  Check(R"(mesh [tp=2]
  graph @g(%a: f32[8, 4@tp], %b: f32[8, 4@tp], %c: f32[8, 4, 2@tp]) -> (%y, %z) {
    %0 = reduce_sum %a {axes=[1]} : f32[8] partial(tp)
    %1 = reshard %0 : f32[8]
    %2 = reduce_sum %b {axes=[1]} : f32[8] partial(tp)
    %3 = reshard %2 : f32[8]
    %y = add %1, %3 : f32[8]
    %4 = reduce_sum %c {axes=[2]} : f32[8, 4] partial(tp)
    %5 = reshard %4 : f32[8, 4]
    %z = reduce_sum %5 {axes=[1]} : f32[8]
  })",
        R"(
    CHECK: %2 = add %0, %1 : f32[8] partial(tp)
    CHECK-NEXT: %3 = reshard %2 : f32[8]
    CHECK-NEXT: %4 = reduce_sum %c {axes=[2]} : f32[8, 4] partial(tp)
    CHECK-NEXT: %z = reduce_sum %4 {axes=[1]} : f32[8] partial(tp)
    CHECK-NEXT: %5 = reshard %z {for="reduce_sum", why=["partial through reduce_sum"]} : f32[8])");
}

// Twice the weight's bytes would travel, or a user is not linear.
TEST(SinkReductions, NotBehindUsersThatMakeMoreOfIt) {
  for (const char* user : {"matmul %1, %w", "exp %1"}) {
    std::string type = user[0] == 'm' ? "f32[4, 64]" : "f32[4, 8]";
    Check(StrCat(R"(mesh [b=2]
  graph @g(%k: f32[4, 8, 2@b]) -> (%y) {
    %w = param "w" : f32[8, 64]
    %0 = reduce_sum %k {axes=[2], keepdims=false} : f32[4, 8] partial(b)
    %1 = reshard %0 {why=[]} : f32[4, 8]
    %y = )",
                 user, " : ", type, "\n}"),
          "CHECK: %1 = reshard %0\nCHECK-NEXT: %y = ");
  }
}

// Parallel branches whose last products have biases, in the orders in which models add them.
TEST(SinkReductions, SumsOfReductionsWithBiasesAreReducedOnce) {
  constexpr const char* kHead = R"(mesh [tp=2]
  graph @g(%x: f32[4, 12@tp], %r: f32[4, 6]) -> (%y) {
    %u = param "u" : f32[6]
    %v = param "v" : f32[12@tp, 6]
    %w = param "w" : f32[12@tp, 6]
    %0 = matmul %x, %v : f32[4, 6] partial(tp)
    %1 = reshard %0 {why=["a"]} : f32[4, 6]
    %2 = matmul %x, %w : f32[4, 6] partial(tp)
    %3 = reshard %2 {why=["b"]} : f32[4, 6]
)";
  constexpr const char* kReducedOnce = R"(
    CHECK: %0 = matmul %x, %v
    CHECK-NEXT: %1 = matmul %x, %w
    CHECK-NEXT: %2 = add %0, %1 : f32[4, 6] partial(tp)
    CHECK-NEXT: %3 = reshard %2 {why=["a", "b"]} : f32[4, 6]
    CHECK-NOT: reshard)";
  for (
      const char* adds : {
          "%4 = add %3, %u : f32[4, 6]\n %5 = add %1, %4 : f32[4, 6]\n %y = add %5, %r : f32[4, 6]",
          "%4 = add %u, %1 : f32[4, 6]\n %5 = add %3, %u : f32[4, 6]\n %6 = add %4, %5 : f32[4, "
          "6]\n "
          "%y = add %6, %r : f32[4, 6]",
          "%4 = add %1, %r : f32[4, 6]\n %5 = add %3, %u : f32[4, 6]\n %y = add %4, %5 : f32[4, 6]",
          "%4 = add %1, %u : f32[4, 6]\n %5 = add %4, %u : f32[4, 6]\n %6 = add %3, %u : f32[4, "
          "6]\n "
          "%y = add %5, %6 : f32[4, 6]",
      }) {
    SCOPED_TRACE(adds);
    Check(std::string(kHead) + adds + "\n  }", kReducedOnce);
  }
}

// Sums of gradients in mixed precision: added wide, sent narrow.
TEST(SinkReductions, ReductionsThatAreWidenedToBeAddedAreOne) {
  Check(R"(mesh [tp=2]
  graph @g(%x: bf16[4, 12@tp]) -> (%y) {
    %v = param "v" : bf16[12@tp, 6]
    %w = param "w" : bf16[12@tp, 6]
    %0 = matmul %x, %v : bf16[4, 6] partial(tp)
    %1 = reshard %0 {why=["a"]} : bf16[4, 6]
    %2 = cast %1 {to="f32"} : f32[4, 6]
    %3 = matmul %x, %w : bf16[4, 6] partial(tp)
    %4 = reshard %3 {why=["b"]} : bf16[4, 6]
    %5 = cast %4 {to="f32"} : f32[4, 6]
    %y = add %2, %5 : f32[4, 6]
  })",
        R"(
    CHECK: %0 = matmul %x, %v
    CHECK-NEXT: %1 = matmul %x, %w
    CHECK-NEXT: %2 = cast %0 {to="f32"} : f32[4, 6] partial(tp)
    CHECK-NEXT: %3 = cast %1 {to="f32"} : f32[4, 6] partial(tp)
    CHECK-NEXT: %4 = add %2, %3 : f32[4, 6] partial(tp)
    CHECK-NEXT: %5 = cast %4 {to="bf16"} : bf16[4, 6] partial(tp)
    CHECK-NEXT: %6 = reshard %5 {why=["a", "b"]} : bf16[4, 6]
    CHECK-NEXT: %7 = cast %6 {to="f32"} : f32[4, 6]
    CHECK-NOT: reshard)");
}

// A table that a lookup reads in f32 and a product in bf16.
TEST(SinkReductions, OneOfThemMayBeWideAlready) {
  for (bool wide_first : {false, true}) {
    Check(StrCat(R"(mesh [tp=2]
    graph @g(%x: bf16[4, 12@tp], %u: f32[4, 12@tp]) -> (%y) {
      %v = param "v" : bf16[12@tp, 6]
      %w = param "w" : f32[12@tp, 6]
      %0 = matmul %x, %v : bf16[4, 6] partial(tp)
      %1 = reshard %0 {why=["a"]} : bf16[4, 6]
      %2 = cast %1 {to="f32"} : f32[4, 6]
      %3 = matmul %u, %w : f32[4, 6] partial(tp)
      %4 = reshard %3 {why=["b"]} : f32[4, 6]
      %y = add )",
                 wide_first ? "%4, %2" : "%2, %4", R"( : f32[4, 6]
    })"),
          StrCat(R"(
      CHECK: %0 = matmul %x, %v
      CHECK: %1 = matmul %u, %w
      CHECK-NEXT: %2 = cast %0 {to="f32"} : f32[4, 6] partial(tp)
      CHECK-NEXT: %3 = add )",
                 wide_first ? "%1, %2" : "%2, %1", R"( : f32[4, 6] partial(tp)
      CHECK-NEXT: %4 = reshard %3 {why=[)",
                 wide_first ? R"("b", "a")" : R"("a", "b")", R"(]} : f32[4, 6]
      CHECK-NOT: reshard)"));
  }
}

// The narrow one stays for it: behind its wider copy it would be narrow again. So experts in f32
// are added to shared ones in bf16.
TEST(SinkReductions, OneOfThemMayComeFromFurtherAway) {
  Check(R"(mesh [tp=2]
  graph @g(%a: bf16[4, 6@tp], %w: bf16[6@tp, 6], %b: f32[8, 6] partial(tp)) -> (%y) {
    %0 = reshard %b {why=["experts"]} : f32[8, 6]
    %1 = reshape %0 {shape=[2, 4, 6]} : f32[2, 4, 6]
    %2 = reduce_sum %1 {axes=[0], keepdims=false} : f32[4, 6]
    %3 = matmul %a, %w : bf16[4, 6] partial(tp)
    %4 = reshard %3 {why=["a product"]} : bf16[4, 6]
    %5 = cast %4 {to="f32"} : f32[4, 6]
    %y = add %2, %5 : f32[4, 6]
  })",
        R"(
    CHECK: %1 = reduce_sum %0 {axes=[0], keepdims=false} : f32[4, 6] partial(tp)
    CHECK-NEXT: %2 = matmul %a, %w : bf16[4, 6] partial(tp)
    CHECK-NEXT: %3 = cast %2 {to="f32"} : f32[4, 6] partial(tp)
    CHECK-NEXT: %4 = add %1, %3 : f32[4, 6] partial(tp)
    CHECK-NEXT: %5 = reshard %4 {for="reduce_sum", why=["experts", "partial through reduce_sum", "a product"]} : f32[4, 6])");
}

// The outputs of all experts: one reduction of their sum, and a small one for the weights'
// gradient. Of the bias each rank adds its share.
TEST(SinkReductions, ASumOverExpertsIsReducedWithTheBiasInside) {
  Check(R"(mesh [tp=2]
  graph @g(%a: f32[3, 8, 12@tp], %s: f32[3, 8, 1], %dy: f32[8, 6]) -> (%y, %ds) {
    %w = param "w" : f32[3, 12@tp, 6]
    %b = param "b" : f32[3, 1, 6]
    %p = matmul %a, %w : f32[3, 8, 6] partial(tp)
    %0 = reshard %p {why=["cut"]} : f32[3, 8, 6]
    %q = add %0, %b : f32[3, 8, 6]
    %m = mul %q, %s : f32[3, 8, 6]
    %t = reduce_sum %m {axes=[0]} : f32[8, 6]
    %y = tanh %t : f32[8, 6]
    %d = mul %q, %dy {phase="backward"} : f32[3, 8, 6]
    %e = reduce_sum %d {axes=[2], phase="backward"} : f32[3, 8]
    %ds = tanh %e {phase="backward"} : f32[3, 8]
  })",
        R"(
    CHECK: %p = matmul %a, %w : f32[3, 8, 6] partial(tp)
    CHECK-NEXT: %0 = constant {value=tensor<f32[]: 0.5>} : f32[]
    CHECK-NEXT: %1 = mul %b, %0 : f32[3, 1, 6]
    CHECK-NEXT: %2 = broadcast_to %1 {shape=[2, 3, 1, 6]} : f32[2@tp, 3, 1, 6]
    CHECK-NEXT: %3 = reduce_sum %2 {axes=[0], keepdims=false} : f32[3, 1, 6] partial(tp)
    CHECK-NEXT: %q = add %p, %3 : f32[3, 8, 6] partial(tp)
    CHECK-NEXT: %m = mul %q, %s : f32[3, 8, 6] partial(tp)
    CHECK-NEXT: %t = reduce_sum %m {axes=[0]} : f32[8, 6] partial(tp)
    CHECK-NEXT: %_ = reshard %t
    CHECK-NEXT: %y = tanh %_
    CHECK-NEXT: %d = mul %q, %dy
    CHECK-NEXT: %e = reduce_sum %d
    CHECK-NEXT: %_ = reshard %e {
    CHECK-NEXT: %ds = tanh
    CHECK-NOT: reshard)");
}

// The experts that a token goes to, each a row: of the bias each rank looks up its share.
TEST(SinkReductions, ASumOverLookedUpExpertsIsReducedWithTheBiasInside) {
  Check(R"(mesh [tp=2]
  graph @g(%p: f32[8, 2, 6] partial(tp), %s: f32[8, 2, 1], %at: i64[8, 2]) -> (%y) {
    %b = param "b" : f32[3, 6]
    %0 = reshard %p {why=["cut"]} : f32[8, 2, 6]
    %r = gather %b, %at {axis=0} : f32[8, 2, 6]
    %q = add %0, %r : f32[8, 2, 6]
    %m = mul %q, %s : f32[8, 2, 6]
    %t = reduce_sum %m {axes=[1]} : f32[8, 6]
    %y = tanh %t : f32[8, 6]
  })",
        R"(
    CHECK: %1 = mul %b, %0 : f32[3, 6]
    CHECK-NEXT: %2 = broadcast_to %1 {shape=[2, 3, 6]} : f32[2@tp, 3, 6]
    CHECK-NEXT: %3 = reduce_sum %2 {axes=[0], keepdims=false} : f32[3, 6] partial(tp)
    CHECK-NEXT: %4 = gather %3, %at {axis=0} : f32[8, 2, 6] partial(tp)
    CHECK-NEXT: %q = add %p, %4 : f32[8, 2, 6] partial(tp)
    CHECK-NEXT: %m = mul %q, %s : f32[8, 2, 6] partial(tp)
    CHECK-NEXT: %t = reduce_sum %m {axes=[1]} : f32[8, 6] partial(tp)
    CHECK-NEXT: %_ = reshard %t
    CHECK-NEXT: %y = tanh %_
    CHECK-NOT: reshard)");
}

// Each expert by itself, scaled by the weight that its tokens give it.
TEST(SinkReductions, ExpertsInALoopAreReducedOnce) {
  Check(R"(mesh [tp=2]
  graph @g(%p: f32[8, 6] partial(tp), %q: f32[8, 6] partial(tp), %r: f32[8, 6] partial(tp), %s: f32[8, 1], %dy: f32[8, 6]) -> (%y, %d0, %d1, %d2) {
    %0 = reshard %p {why=["cut"]} : f32[8, 6]
    %a = mul %0, %s : f32[8, 6]
    %1 = reshard %q {why=["cut"]} : f32[8, 6]
    %b = mul %1, %s : f32[8, 6]
    %ab = add %a, %b : f32[8, 6]
    %2 = reshard %r {why=["cut"]} : f32[8, 6]
    %c = mul %2, %s : f32[8, 6]
    %abc = add %ab, %c : f32[8, 6]
    %y = tanh %abc : f32[8, 6]
    %3 = mul %0, %dy {phase="backward"} : f32[8, 6]
    %d0 = reduce_sum %3 {axes=[1], phase="backward"} : f32[8]
    %4 = mul %1, %dy {phase="backward"} : f32[8, 6]
    %d1 = reduce_sum %4 {axes=[1], phase="backward"} : f32[8]
    %5 = mul %2, %dy {phase="backward"} : f32[8, 6]
    %d2 = reduce_sum %5 {axes=[1], phase="backward"} : f32[8]
  })",
        R"(
    CHECK-NOT: reshard %p
    CHECK-NOT: reshard %q
    CHECK-NOT: reshard %r
    CHECK: %0 = add %a, %b : f32[8, 6] partial(tp)
    CHECK: %1 = add %0, %c : f32[8, 6] partial(tp)
    CHECK-NEXT: %2 = reshard %1
    CHECK-NEXT: %y = tanh %2 : f32[8, 6])");
}

// A residual is no bias: what is as large as the sum stays as it is.
TEST(SinkReductions, NotBesideWhatIsLarge) {
  Check(R"(mesh [tp=2]
  graph @g(%p: f32[3, 8, 6] partial(tp), %x: f32[3, 8, 6]) -> (%y) {
    %0 = reshard %p {why=["cut"]} : f32[3, 8, 6]
    %q = add %0, %x : f32[3, 8, 6]
    %y = reduce_sum %q {axes=[0]} : f32[8, 6]
  })",
        R"(
    CHECK: %0 = reshard %p
    CHECK-NEXT: %q = add %0, %x : f32[3, 8, 6]
    CHECK-NEXT: %y = reduce_sum %q)");
}

// Columns that become rows: less travels before. That each is in the sum of all must not be looked
// at for each anew (the test's time limit).
TEST(SinkReductions, ManyThatStay) {
  std::string text = "mesh [tp=2]\ngraph @g(%p: f32[8, 1] partial(tp), %w: f32[512]) -> (%y) {\n";
  constexpr int kExperts = 256;
  for (int i = 0; i < kExperts; ++i) {
    text += StrCat("%p", i, " = mul %p, %p", i, "s : f32[8, 1] partial(tp)\n");
    text.insert(text.find('\n', text.find("graph")) + 1,
                StrCat("%p", i, "s = constant {value=tensor<f32[]: ", i, ">} : f32[]\n"));
    text += StrCat("%r", i, " = reshard %p", i, " {why=[]} : f32[8, 1]\n");
    text += StrCat("%m", i, " = mul %r", i, ", %w : f32[8, 512]\n");
    const std::string before = i == 0 ? "%m0" : StrCat("%a", i - 1);
    text += StrCat("%a", i, " = add ", before, ", %m", i, " : f32[8, 512]\n");
  }
  text += StrCat("%y = tanh %a", kExperts - 1, " : f32[8, 512]\n}");
  Check(text, StrCat("CHECK: %r", kExperts - 1, " = reshard %p", kExperts - 1));
}

TEST(SinkReductions, NotWhereASumInBetweenIsReadBySomethingElse) {
  Check(R"(mesh [tp=2]
  graph @g(%x: f32[4, 12@tp], %u: f32[6]) -> (%y, %z) {
    %v = param "v" : f32[12@tp, 6]
    %w = param "w" : f32[12@tp, 6]
    %0 = matmul %x, %v : f32[4, 6] partial(tp)
    %1 = reshard %0 {why=["a"]} : f32[4, 6]
    %2 = matmul %x, %w : f32[4, 6] partial(tp)
    %3 = reshard %2 {why=["b"]} : f32[4, 6]
    %4 = add %3, %u : f32[4, 6]
    %y = add %1, %4 : f32[4, 6]
    %z = neg %4 : f32[4, 6]
  })",
        R"(
    CHECK: reshard
    CHECK: reshard
    CHECK: %y = add %1, %4)");
}

TEST(SinkReductions, NotWhereAReductionIsReadBySomethingElse) {
  Check(R"(mesh [tp=2]
  graph @g(%a: f32[8, 4@tp], %b: f32[8, 4@tp]) -> (%y, %z) {
    %0 = reduce_sum %a {axes=[1], keepdims=false} : f32[8] partial(tp)
    %1 = reshard %0 {why=[]} : f32[8]
    %2 = reduce_sum %b {axes=[1], keepdims=false} : f32[8] partial(tp)
    %3 = reshard %2 {why=[]} : f32[8]
    %y = add %1, %3 : f32[8]
    %z = neg %3 : f32[8]
  })",
        "CHECK: %y = add %1, %3");
}

// As the norm of all gradients is, each of which is an output.
TEST(SinkReductions, EachTermOfALongSumIsLookedAtOnce) {
  constexpr int kTerms = 4000;
  std::string inputs, outputs, ops;
  for (int i = 0; i < kTerms; ++i) {
    inputs += StrCat(", %x", i, ": f32[8]");
    outputs += StrCat(", %n", i);
    ops += StrCat("%n", i, " = neg %x", i, " : f32[8]\n", "%t", i, " = exp %n", i, " : f32[8]\n",
                  "%s", i, " = add %", i ? StrCat("s", i - 1) : "1", ", %t", i, " : f32[8]\n");
  }
  Graph graph = ParseAndVerify(StrCat(R"(mesh [tp=2]
  graph @g(%a: f32[8, 4@tp], %b: f32[8, 4@tp])",
                                      inputs, ") -> (%y", outputs, R"() {
    %0 = reduce_sum %a {axes=[1], keepdims=false} : f32[8] partial(tp)
    %1 = reshard %0 {why=[]} : f32[8]
    )",
                                      ops, R"(
    %2 = reduce_sum %b {axes=[1], keepdims=false} : f32[8] partial(tp)
    %3 = reshard %2 {why=[]} : f32[8]
    %y = add %3, %s)",
                                      kTerms - 1, " : f32[8]\n}"));
  const double start = CpuSeconds();
  RunPasses(graph, "optimize_reshards");
  EXPECT_LT(CpuSeconds() - start, 5);
  // The two reductions have become one.
  CheckGraph(graph, "CHECK: reshard\nCHECK-NOT: reshard", true);
}

// To its first term it is a long way down, which is not to be gone by recursion.
TEST(SinkReductions, ALongSumIsPutTogetherAgain) {
  constexpr int kTerms = 100'000, kValues = 500;
  std::string inputs, ops;
  for (int i = 0; i < kValues; ++i) inputs += StrCat(", %x", i, ": f32[8]");
  for (int i = 1; i <= kTerms; ++i) {
    ops += StrCat("%s", i, " = add %s", i - 1, ", %x", i % kValues, " : f32[8]\n");
  }
  Graph graph = ParseAndVerify(StrCat(R"(mesh [tp=2]
  graph @g(%a: f32[8, 4@tp], %b: f32[8, 4@tp], %c: f32[])",
                                      inputs, R"() -> (%y) {
    %0 = reduce_sum %a {axes=[1], keepdims=false} : f32[8] partial(tp)
    %1 = reshard %0 {why=[]} : f32[8]
    %s0 = add %1, %c : f32[8]
    )",
                                      ops, R"(
    %2 = reduce_sum %b {axes=[1], keepdims=false} : f32[8] partial(tp)
    %3 = reshard %2 {why=[]} : f32[8]
    %y = add %s)",
                                      kTerms, ", %3 : f32[8]\n}"));
  RunPasses(graph, "optimize_reshards");
  const auto reshards =
      std::ranges::count_if(graph.ops(), [](const auto& op) { return op->name() == "reshard"; });
  EXPECT_EQ(reshards, 1);
}

// To what reads the last one it is too far, by recursion too.
TEST(SinkReductions, AVeryLongChainOfCopies) {
  constexpr int kCopies = 200'000;
  std::string ops;
  for (int i = 1; i <= kCopies; ++i) {
    const char* type = i % 2 ? "bf16" : "f32";
    ops += StrCat("%c", i, " = cast %c", i - 1, " {to=\"", type, "\"} : ", type, "[8]\n");
  }
  Graph graph = ParseAndVerify(StrCat(R"(mesh [tp=2]
  graph @g(%a: f32[8, 4@tp]) -> (%y) {
    %0 = reduce_sum %a {axes=[1], keepdims=false} : f32[8] partial(tp)
    %c0 = reshard %0 {why=[]} : f32[8]
    )",
                                      ops, "%y = neg %c", kCopies, " : f32[8]\n}"));
  RunPasses(graph, "optimize_reshards");
  CheckGraph(graph, "CHECK: reshard\nCHECK-NOT: reshard", true);
}

// Two norms of one value, as a parallel block has them: the gradients that they hand on are added,
// and so are reduced together, in the type that their operands travelled in. Those of their weights
// become partial for it.
TEST(SinkReductions, WhatTwoNormsHandOnIsReducedOnce) {
  for (const std::string type : {"f32", "bf16"}) {
    SCOPED_TRACE(type);
    auto norm = [&](std::string_view weight, int at) {
      return StrCat("%", at, " = matmul %d, %", weight, " : ", type, "[8, 60] partial(tp)\n%",
                    at + 1, " = reshard %", at, " {why=[]} : ", type, "[8, 60]\n%", at + 2, ", %",
                    weight, "_grad = rms_norm_grad %", at + 1,
                    ", %x, %rstd, %w : f32[8, 60], f32[60]\n");
    };
    Graph graph = ParseAndVerify(
        StrCat("mesh [tp=2]\ngraph @g(%x: f32[8, 60], %rstd: f32[8], %d: ", type,
               "[8, 12@tp], %r: f32[8, 60]) -> (%y, %a_grad, %b_grad) {\n",
               "%w = param \"w\" : f32[60]\n%a = param \"a\" : ", type,
               "[12@tp, 60]\n%b = param \"b\" : ", type, "[12@tp, 60]\n", norm("a", 0),
               norm("b", 3), "%6 = add %r, %2 : f32[8, 60]\n%y = add %6, %5 : f32[8, 60]\n}"));
    RunPasses(graph, "optimize_reshards");
    std::vector<std::string> reduced;
    for (const auto& op : graph.ops()) {
      if (op->name() == "reshard") reduced.push_back(TypeToString(op->out(), graph.mesh));
    }
    EXPECT_THAT(reduced, ::testing::UnorderedElementsAre(type + "[8, 60]", "f32[60]", "f32[60]"));
  }
}

// In halves it travels on either side of the cast, but is no part of what is reduced behind it.
TEST(SinkReductions, AReductionOfHalvesStaysBeforeAWiderOne) {
  Check(R"(mesh [a=2, b=4]
  graph @g(%x: bf16[16, 4] partial(a,b)) -> (%y) {
    %0 = reshard %x {why=[]} : bf16[16, 4] partial(b)
    %1 = cast %0 {to="f32"} : f32[16, 4] partial(b)
    %y = reshard %1 {why=[]} : f32[16@(a,b), 4]
  })",
        R"(
    CHECK: %0 = reshard %x
    CHECK-NEXT: %1 = cast %0
    CHECK-NEXT: %y = reshard %1)");
}

// The gradient of a key that ranks along b share is reduced with those along a, because what it is
// added to is reduced over both, to the whole sum or to parts of it.
TEST(SinkReductions, AReductionBecomesAPartOfOneOverMoreAxes) {
  for (const std::string sum : {"f32[4, 60]", "f32[4@(a,b), 60]"}) {
    SCOPED_TRACE(sum);
    Check(StrCat(R"(mesh [a=2, b=2]
  graph @g(%x: f32[4, 12@(a,b)], %z: f32[4, 8@b]) -> (%y) {
    %u = param "u" : f32[12@(a,b), 60]
    %v = param "v" : f32[8@b, 12@a]
    %w = param "w" : f32[12@a, 60]
    %0 = matmul %x, %u : f32[4, 60] partial(a, b)
    %1 = reshard %0 {why=["u"]} : )",
                 sum, R"(
    %2 = matmul %z, %v : f32[4, 12@a] partial(b)
    %3 = reshard %2 {why=["v"]} : f32[4, 12@a]
    %4 = matmul %3, %w : f32[4, 60] partial(a)
    %5 = reshard %4 {why=["w"]} : )",
                 sum, "\n    %y = add %1, %5 : ", sum, "\n  }"),
          R"(
    CHECK: %2 = matmul %1, %w : f32[4, 60] partial(a,b)
    CHECK-NEXT: %3 = add %0, %2 : f32[4, 60] partial(a,b)
    CHECK-NEXT: %4 = reshard %3
    CHECK-NOT: reshard)");
  }
}

}  // namespace
}  // namespace shardc::testing
