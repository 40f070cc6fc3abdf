// opt: passes on text, text to text.
#include <gmock/gmock.h>

#include "tests/passes/check_text.h"
#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kGraph = R"(mesh [tp=2]
graph @g(%x: f32[4, 8]) -> (%y) {
  %w = param "mlp.c_fc.weight" {role="MLP_UP"} : f32[8, 16]
  %v = param "mlp.c_proj.weight" {part="weight", role="MLP_DOWN"} : f32[16, 8]
  %0 = reshape %x {shape=[4, 8]} : f32[4, 8]
  %a = matmul %0, %w : f32[4, 16]
  %y = matmul %a, %v : f32[4, 8]
}
)";

class OptTest : public ToolTest {
 protected:
  void SetUp() override {
    ToolTest::SetUp();
    Write("g.shardc", kGraph);
  }
  std::string Opt(const std::string& arguments) const {
    ToolResult r = Tool("opt " + arguments);
    EXPECT_EQ(r.exit, 0) << r.err;
    EXPECT_EQ(r.err, "");
    return r.out;
  }
  void Fails(const std::string& arguments, int exit, const std::string& part) const {
    ToolResult r = Tool("opt " + arguments);
    EXPECT_EQ(r.exit, exit) << r.err;
    EXPECT_THAT(r.err, HasSubstr(part));
    EXPECT_EQ(r.out, "");
  }
};

TEST_F(OptTest, WithoutPassesPrintsTheGraph) {
  EXPECT_EQ(Opt("g.shardc"), kGraph);
  EXPECT_EQ(Opt("- <g.shardc"), kGraph);
}

TEST_F(OptTest, AFolderCannotBeRead) { Fails(".", 74, "E5001: .: cannot read: Is a directory"); }

TEST_F(OptTest, RunsPassesInOrderAndReadsItsOwnPrint) {
  CheckText(Opt("g.shardc --passes=canonicalize"), "CHECK-NOT: reshape\nCHECK: matmul %x, %w");
  std::string once =
      Opt("g.shardc --spec megatron --verify-each "
          "--passes=canonicalize,propagate,insert_reshards,lower_reshards");
  CheckText(once, R"(
    CHECK: %w = param "mlp.c_fc.weight" {role="MLP_UP"} : f32[8, 16@tp]
    CHECK-NEXT: %v = param "mlp.c_proj.weight" {part="weight", role="MLP_DOWN"} : f32[16@tp, 8]
    CHECK-NEXT: %a = matmul %x, %w : f32[4, 16@tp]
    CHECK-NEXT: = matmul %a, %v : f32[4, 8] partial(tp)
    CHECK-NEXT: = all_reduce)");
  Write("once.shardc", once);
  EXPECT_EQ(Opt("once.shardc"), once);
  // A pass more or less at a time makes no difference.
  Write("half.shardc", Opt("g.shardc --spec megatron --passes=canonicalize,propagate"));
  CheckText(Opt("half.shardc --passes=insert_reshards,lower_reshards"), R"(
    CHECK: = matmul %a, %v : f32[4, 8] partial(tp)
    CHECK-NEXT: = all_reduce)");
}

TEST_F(OptTest, RefusesUnknownPassesAndBadText) {
  Fails("g.shardc --passes=canonicalise", 2, "did you mean 'canonicalize'");
  Fails("g.shardc --passes=canonicalise", 2, "E6103");
  const std::string open = "g.shardc --spec megatron --passes=propagate,insert_reshards,";
  for (const char* pass : {"overlap", "bucket_reductions"}) {
    Fails(open + pass, 2, "run lower_reshards before it");
    Opt(open + "lower_reshards," + pass);
  }
  Fails("g.shardc --spec dp --passes=differentiate", 3, "the graph has no output \"loss\"");
  Write("vector.shardc", "graph @g(%x: f32[4]) -> (loss: %x) {\n}\n");
  Fails("vector.shardc --passes=differentiate", 3, "f32[4], no scalar");
  Fails("missing.shardc", 74, "missing.shardc");
  Write("bad.shardc", "graph @g(%x: f32[4]) -> (%y) {\n  %y = ad %x : f32[4]\n}\n");
  Fails("bad.shardc", 3, "bad.shardc:2:");
}

}  // namespace
}  // namespace shardc::testing
