// The matcher itself: what it must find, and what it must refuse.
#include "tests/passes/check_text.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

namespace shardc::testing {
namespace {

const std::string kText = "  %0 = add %x, %x : f32[4]\n  %h.1 = neg %0 : f32[4]\n  return\n";

TEST(CheckText, Matches) {
  CheckText(kText, R"(
    CHECK: %_ = add %x, %_ : f32[4]
    CHECK-NEXT: %h.1 = neg %_ : f32
    CHECK-NOT: add
    CHECK: return
    CHECK-NOT: neg)");
}

TEST(CheckText, RefusesTheWrongOrder) {
  EXPECT_NONFATAL_FAILURE(CheckText(kText, "CHECK: neg\nCHECK: add"), "is on no line");
}

TEST(CheckText, RefusesALineBetween) {
  EXPECT_NONFATAL_FAILURE(CheckText(kText, "CHECK: add\nCHECK-NEXT: return"), "is not the line");
}

TEST(CheckText, RefusesWhatMustNotBe) {
  EXPECT_NONFATAL_FAILURE(CheckText(kText, "CHECK-NOT: neg %_\nCHECK: return"), "must not be");
  EXPECT_NONFATAL_FAILURE(CheckText(kText, "CHECK: add\nCHECK-NOT: return"), "must not be");
}

TEST(CheckText, RefusesMistypedAndMissingChecks) {
  EXPECT_NONFATAL_FAILURE(CheckText(kText, "CHEK: add"), "is not a CHECK line");
  EXPECT_NONFATAL_FAILURE(CheckText(kText, "  \n"), "no CHECK line");
}

}  // namespace
}  // namespace shardc::testing
