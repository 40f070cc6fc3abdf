#include "passes/overlap.h"

#include <gtest/gtest.h>

#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// Gradients travel as soon as they are made, the last layer's first, with the cheap op between.
TEST(Overlap, SumsBeginWhenTheirTermsAreThere) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%x: f32[8@dp, 4]) -> (%g0, %g1) {
    %a = tanh %x : f32[8@dp, 4]
    %b = tanh %a : f32[8@dp, 4]
    %d1 = matmul_tn %a, %b {phase="backward"} : f32[4, 4] partial(dp)
    %e = mul %a, %b {phase="backward"} : f32[8@dp, 4]
    %d0 = matmul_tn %x, %e {phase="backward"} : f32[4, 4] partial(dp)
    %g0 = all_reduce %d0 {axes=["dp"], phase="optimizer"} : f32[4, 4]
    %n1 = neg %d1 {phase="backward"} : f32[4, 4] partial(dp)
    %g1 = all_reduce %n1 {axes=["dp"], phase="backward"} : f32[4, 4]
  })",
              "overlap", R"(
    CHECK: %d1 = matmul_tn
    CHECK-NEXT: %n1 = neg %d1
    CHECK-NEXT: %g1 = all_reduce %n1
    CHECK-NEXT: %e = mul
    CHECK-NEXT: %d0 = matmul_tn
    CHECK-NEXT: %g0 = all_reduce %d0)");
}

// What the backward alone needs of the forward waits for the backward.
TEST(Overlap, NothingBeginsBeforeItsPhase) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8@tp, 4]) -> (%y, %z) {
    %s = reduce_sum %x {axes=[0]} : f32[4] partial(tp)
    %y = tanh %x : f32[8@tp, 4]
    %e = mul %y, %y {phase="backward"} : f32[8@tp, 4]
    %a = all_reduce %s {axes=["tp"], phase="backward"} : f32[4]
    %z = mul %e, %a {phase="backward"} : f32[8@tp, 4]
  })",
              "overlap", R"(
    CHECK: %y = tanh
    CHECK-NEXT: %e = mul
    CHECK-NEXT: %a = all_reduce
    CHECK-NEXT: %z = mul)");
}

// 64 MiB travel, for margin twice, while products of 2 * 4096^3 flops run.
constexpr char kGather[] = R"(mesh [dp=2]
  graph @g(%x: f32[8192@dp, 4096]) -> (%y) {
    %w = param "w" : f32[4096, 4096]
    %u = param "u" : f32[4096@dp, 4096]
    %0 = matmul %x, %w : f32[8192@dp, 4096]
    %1 = matmul %0, %w : f32[8192@dp, 4096]
    %2 = matmul %1, %w : f32[8192@dp, 4096]
    %3 = matmul %2, %w : f32[8192@dp, 4096]
    %c = cast %u {to="bf16"} : bf16[4096@dp, 4096]
    %v = cast %c {to="f32"} : f32[4096@dp, 4096]
    %4 = all_gather %v {axes=["dp"], dim=0} : f32[4096, 4096]
    %y = matmul %3, %4 : f32[8192@dp, 4096]
  })";

TEST(Overlap, GathersBeginWhileTheyCanTravelUnseen) {
  CheckPasses(kGather, "overlap", R"(
    CHECK: %0 = matmul %x, %w
    CHECK-NEXT: %c = cast %u
    CHECK-NEXT: %v = cast %c
    CHECK-NEXT: %_ = all_gather %v
    CHECK-NEXT: %_ = matmul %0, %w
    CHECK-NEXT: %_ = matmul
    CHECK-NEXT: %_ = matmul
    CHECK-NEXT: %y = matmul)");
}

std::string With(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Overlap, GathersStayInTheirPhase) {
  std::string text = kGather;
  for (const char* late : {R"({to="bf16")", R"({to="f32")", "dim=0"}) {
    text = With(text, late, StrCat(late, R"(, phase="backward")"));
  }
  text = With(text, "%2, %w", R"(%2, %w {phase="backward"})");
  text = With(text, "%3, %4", R"(%3, %4 {phase="backward"})");
  CheckPasses(text, "overlap", R"(
    CHECK: %_ = matmul %1, %w
    CHECK-NEXT: %c = cast %u
    CHECK-NEXT: %v = cast %c
    CHECK-NEXT: %_ = all_gather %v
    CHECK-NEXT: %_ = matmul %2, %w {phase="backward"}
    CHECK-NEXT: %y = matmul)");
}

// All on whole tensors of the same local size, with partial sums in the middle.
std::string WithSums() {
  std::string text = kGather;
  const std::string cut = "8192@dp";
  for (size_t at = 0; (at = text.find(cut)) != std::string::npos;) {
    text.replace(at, cut.size(), "4096");
  }
  for (const char* op : {"%1 = matmul %0", "%2 = matmul %1"}) {
    const std::string line = StrCat(op, ", %w : f32[4096, 4096]");
    text = With(text, line, line + " partial(dp)");
  }
  return text;
}

// Beside a collective that ranks wait for, a gather travels before it, or after it, where it is
// seen less.
TEST(Overlap, GathersKeepOutOfTheWayOfWhatIsAwaited) {
  const std::string sum = R"(%r = all_reduce %2 {axes=["dp"]} : f32[4096, 4096]
    %3 = matmul %r, %w)";
  CheckPasses(With(WithSums(), "%3 = matmul %2, %w", sum), "overlap", R"(
    CHECK: %c = cast %u
    CHECK-NEXT: %v = cast %c
    CHECK-NEXT: %_ = all_gather %v
    CHECK-NEXT: %_ = matmul %x, %w
    CHECK: %r = all_reduce
    CHECK-NEXT: %_ = matmul %r, %w)");
  // One product is behind the sums, none between or before them.
  std::string two = With(WithSums(), "%3 = matmul %2, %w", sum);
  two = With(two, "%2 = matmul %1, %w", R"(%q = all_reduce %1 {axes=["dp"]} : f32[4096, 4096]
    %2 = neg %q)");
  two = With(two, "%0 = matmul %x, %w", "%0 = neg %x");
  two = With(two, "%1 = matmul %0, %w", "%1 = neg %0");
  CheckPasses(two, "overlap", R"(
    CHECK: %q = all_reduce
    CHECK-NEXT: %_ = neg
    CHECK-NEXT: %r = all_reduce
    CHECK-NEXT: %c = cast %u
    CHECK-NEXT: %v = cast %c
    CHECK-NEXT: %_ = all_gather %v
    CHECK-NEXT: %_ = matmul %r, %w)");
}

// A sum that is read much later takes its time from a gather that begins before it.
TEST(Overlap, CollectivesShareALink) {
  std::string later =
      With(WithSums(), "%3 = matmul", R"(%r = all_reduce %2 {axes=["dp"]} : f32[4096, 4096]
    %3 = matmul)");
  later = With(later, "%y = matmul %3, %4 : f32[4096, 4096]",
               R"(%5 = matmul %3, %4 : f32[4096, 4096]
    %6 = matmul %5, %w : f32[4096, 4096]
    %7 = matmul %6, %w : f32[4096, 4096]
    %8 = matmul %7, %w : f32[4096, 4096]
    %y = add %8, %r : f32[4096, 4096])");
  CheckPasses(later, "overlap", R"(
    CHECK: %c = cast %u
    CHECK-NEXT: %v = cast %c
    CHECK-NEXT: %_ = all_gather %v
    CHECK-NEXT: %_ = matmul %x, %w)");
}

// What is made of a scattered gradient can wait; a chain of cheap ops as a whole, and not longer
// than for what is computed while it travels.
TEST(Overlap, CheapReadersWait) {
  CheckPasses(R"(mesh [dp=2]
  graph @g(%x: f32[8192@dp, 4096], %g: f32[4096@dp, 4096]) -> (%y, %s) {
    %w = param "w" : f32[4096, 4096]
    %0 = matmul_tn %x, %x : f32[4096, 4096] partial(dp)
    %r = reduce_scatter %0 {axes=["dp"], dim=0} : f32[4096@dp, 4096]
    %c = neg %r : f32[4096@dp, 4096]
    %s = add %g, %c : f32[4096@dp, 4096]
    %1 = matmul %x, %w : f32[8192@dp, 4096]
    %2 = matmul %1, %w : f32[8192@dp, 4096]
    %3 = matmul %2, %w : f32[8192@dp, 4096]
    %y = matmul %3, %w : f32[8192@dp, 4096]
  })",
              "overlap", R"(
    CHECK: %r = reduce_scatter
    CHECK-NEXT: %_ = matmul %x, %w
    CHECK-NEXT: %_ = matmul
    CHECK-NEXT: %c = neg
    CHECK-NEXT: %s = add
    CHECK-NEXT: %_ = matmul
    CHECK-NEXT: %y = matmul)");
}

}  // namespace
}  // namespace shardc::testing
