// compile: arguments that make no sense.
#include <gmock/gmock.h>

#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CompileArguments : public ToolTest {
 protected:
  void Refuses(const std::string& options, const std::string& part) const {
    ToolResult r = Tool(std::string("compile ") + kModel + " -o plan " + options);
    EXPECT_EQ(r.exit, 2) << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr("E6104"), HasSubstr(part)));
    EXPECT_EQ(List("."), "");
  }
};

TEST_F(CompileArguments, SizesOfSymbolsAndInputs) {
  Refuses("--bind batch", "is not symbol=size");
  Refuses("--bind batch=two", "'two' is not a positive size");
  Refuses("--bind batch=0", "'0' is not a positive size");
  Refuses("--shape input_ids", "is not input=2x32");
  Refuses("--shape input_ids=2x", "'' is not a positive size");
  Refuses("--shape ids=2x16", "the one input input_ids");
}

}  // namespace
}  // namespace shardc::testing
