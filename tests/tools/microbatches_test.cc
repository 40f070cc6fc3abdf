// The batch in pieces, from the command line: what is saved is as with one, the flag is over the
// spec, what dump says.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class MicrobatchesTool : public ToolTest {
 protected:
  static constexpr const char* kTraining = " --optimizer adamw --lr 1e-2 --eps 1e-3 --clip-norm 1 ";

  static constexpr const char* kEight =
      "'builtin:gpt?layers=2,hidden=32,heads=4,vocab=97,seq=16,batch=8'";

  void CompileEight(const std::string& folder, const std::string& options) const {
    ToolResult r = Tool(std::string("compile ") + kEight + " " + options + " -q -o " + folder);
    ASSERT_EQ(r.exit, 0) << r.err;
  }
};

TEST_F(MicrobatchesTool, TheSameResults) {
  CompileEight("whole", std::string("--spec serial") + kTraining);
  ToolResult r = Tool("run whole --random-inputs 1 --steps 3 --save whole.safetensors");
  ASSERT_EQ(r.exit, 0) << r.err;
  for (const char* options : {"--spec serial", "--spec megatron --mesh tp=2",
                              "--spec dp --zero 3 "
                              "--mesh dp=2"}) {
    CompileEight("plan", std::string(options) + kTraining + "--microbatches 2");
    r = Tool(
        "run plan --random-inputs 1 --steps 3 --check whole.safetensors --rtol 1e-3 "
        "--atol 1e-5");
    EXPECT_EQ(r.exit, 0) << options << ": " << r.err;
  }
}

// Without ignored labels the mean of the batches' means is the mean over all of them.
TEST_F(MicrobatchesTool, BatchesAreAccumulated) {
  CompileEight("whole", std::string("--spec serial") + kTraining);
  ToolResult r = Tool("run whole --random-inputs 1 --steps 3 --save whole.safetensors");
  ASSERT_EQ(r.exit, 0) << r.err;
  for (const char* options : {"--spec serial", "--spec megatron --mesh pp=2,dp=2 --recompute full",
                              "--spec dp --zero 3 --mesh dp=2"}) {
    r = Tool(StrCat("compile 'builtin:gpt?layers=2,hidden=32,heads=4,vocab=97,seq=16,batch=2' ",
                    options, kTraining, "--accumulate 4 -q -o plan"));
    ASSERT_EQ(r.exit, 0) << r.err;
    r = Tool(
        "run plan --random-inputs 1 --steps 3 --check whole.safetensors --rtol 1e-3 "
        "--atol 1e-5");
    EXPECT_EQ(r.exit, 0) << options << ": " << r.err;
  }
}

TEST_F(MicrobatchesTool, TheFlagIsOverTheSpec) {
  Write("two.textproto", "microbatches: 2\n");
  CompileEight("one", std::string("--spec two.textproto --microbatches 1") + kTraining);
  CompileEight("two", std::string("--spec two.textproto") + kTraining);
  CompileEight("four", std::string("--spec two.textproto --microbatches 4") + kTraining);
  const int64_t one = Dump("one")["memory"]["activations"],
                two = Dump("two")["memory"]["activations"],
                four = Dump("four")["memory"]["activations"];
  EXPECT_LT(two, one);
  EXPECT_LT(four, two);
}

TEST_F(MicrobatchesTool, WrongLabelsAreNamedByTheirPlaceInTheBatch) {
  WriteIds();
  WriteIds("bad.npy", 18, 99);  // [1, 2], which is [1, 1] once shifted
  for (const char* mesh : {"tp=1", "tp=2"}) {
    Compile("plan", std::string("--spec megatron --microbatches 2 --mesh ") + mesh);
    ToolResult r = Tool("run plan --input input_ids=@ids.npy --input labels=@bad.npy");
    EXPECT_EQ(r.exit, 2);
    EXPECT_THAT(r.err, HasSubstr("labels[1, 1] = 99")) << mesh;
  }
}

TEST_F(MicrobatchesTool, Refusals) {
  auto refused = [&](const std::string& options, int exit, const std::string& what) {
    ToolResult r = Tool(std::string("compile ") + kEight + " -o plan " + options);
    EXPECT_EQ(r.exit, exit) << r.err;
    EXPECT_THAT(r.err, HasSubstr(what));
    EXPECT_EQ(List("."), "");
  };
  refused("--microbatches 0", 2, "--microbatches");
  refused("--microbatches 3", 4, "E2110");
  refused("--microbatches 2 --accumulate 2", 2, "excludes");
  refused("--spec dp --mesh dp=2 --microbatches 8", 4, "at most 4 microbatches");
  refused("--microbatches-together 2", 4, "E2124");
  refused("--microbatches 2 --microbatches-together 0", 2, "--microbatches-together");
}

}  // namespace
}  // namespace shardc::testing
