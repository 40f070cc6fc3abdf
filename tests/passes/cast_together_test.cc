#include "passes/cast_together.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr char kModel[] = R"(graph @g(%x: f32[2, 4]) -> (%c, %y) {
  %u = param "u" : f32[4, 4]
  %v = param "v" : f32[4, 4]
  %ub = cast %u {to="bf16"} : bf16[4, 4]
  %xb = cast %x {to="bf16"} : bf16[2, 4]
  %a = matmul %xb, %ub : bf16[2, 4]
  %vb = cast %v {to="bf16"} : bf16[4, 4]
  %b = matmul %a, %vb : bf16[2, 4]
  %w = param "w" : f32[4, 4]
  %t = param "t" : f32[4, 4]
  %wb = cast %w {to="bf16"} : bf16[4, 4]
  %c = matmul %b, %wb : bf16[2, 4]
  %tb = cast %t {to="bf16"} : bf16[4, 4]
  %d = matmul %c, %tb : bf16[2, 4]
  %y = cast %d {to="f32"} : f32[2, 4]
})";

// Not what stands before the parameter, and no other cast.
TEST(CastTogether, CastsOfParamsFollowTheFirst) {
  CheckPasses(kModel, "cast_together", R"(
    CHECK: %ub = cast %u
    CHECK-NEXT: %vb = cast %v
    CHECK-NEXT: %xb = cast %x
    CHECK-NEXT: %a = matmul
    CHECK: %wb = cast %w
    CHECK-NEXT: %tb = cast %t
    CHECK-NEXT: %c = matmul
    CHECK: %y = cast %d)");
}

TEST(CastTogether, AsManyAsMayBeHeld) {
  for (const auto& [most, together] : {std::pair<int64_t, bool>{64, true}, {63, false}}) {
    Graph graph = ParseAndVerify(kModel);
    CastTogether(graph, most);
    EXPECT_EQ(PrintGraph(graph).find("%vb = cast") < PrintGraph(graph).find("%a = matmul"),
              together)
        << most;
  }
}

// Other ranks run them, or they are held for another microbatch.
TEST(CastTogether, OnlyWhatRunsTogether) {
  for (const char* where : {"stage", "microbatch"}) {
    const std::string first = StrCat(where, "=0"), second = StrCat(where, "=1");
    CheckPasses(StrCat(R"(graph @g(%x: bf16[2, 4]) -> (%b) {
  %u = param "u" : f32[4, 4]
  %v = param "v" : f32[4, 4]
  %ub = cast %u {to="bf16", )",
                       first, R"(} : bf16[4, 4]
  %a = matmul %x, %ub {)",
                       first, R"(} : bf16[2, 4]
  %vb = cast %v {to="bf16", )",
                       second, R"(} : bf16[4, 4]
  %b = matmul %a, %vb {)",
                       second, R"(} : bf16[2, 4]
})"),
                "cast_together", R"(
    CHECK: %a = matmul
    CHECK-NEXT: %vb = cast)");
  }
}

}  // namespace
}  // namespace shardc::testing
