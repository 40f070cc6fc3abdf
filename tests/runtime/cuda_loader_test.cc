// Where CUDA is looked for, and what a machine without it is told.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "frontend/gpt_config.h"
#include "passes/pipeline.h"
#include "runtime/cuda_loader/libraries.h"
#include "tests/exec/harness.h"
#include "tests/gpu/gpu.h"
#include "tests/ir/file_testing.h"
#include "tests/ir/thrown.h"

namespace shardc::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Not;
namespace fs = std::filesystem;

class Folders : public ::testing::Test {
 protected:
  std::string Make(const std::string& path) {
    fs::create_directories(root_ / path);
    return (root_ / path).string();
  }
  // Those found below the test's folder; the machine may have others.
  std::vector<std::string> Found(std::map<std::string, std::string> env) {
    std::vector<std::string> out;
    for (const std::string& f : CudaLibraryFolders("/nowhere", [&](const std::string& name) {
           auto it = env.find(name);
           return it == env.end() ? std::nullopt : std::optional(it->second);
         })) {
      if (f.starts_with(root_.string())) out.push_back(f);
    }
    return out;
  }
  const TemporaryFolder temporary_;
  const fs::path root_ = temporary_.path();
};

TEST_F(Folders, TheEnvironmentComesFirstThenToolkitThenPython) {
  std::string mine = Make("mine"), toolkit = Make("cuda/lib64"),
              wheel = Make("venv/lib/python3.12/site-packages/nvidia/cublas/lib"),
              user = Make("home/.local/lib/python3.11/site-packages/nvidia/nccl/lib");
  EXPECT_THAT(Found({{"HOME", root_ / "home"},
                     {"VIRTUAL_ENV", root_ / "venv"},
                     {"CUDA_HOME", root_ / "cuda"},
                     {"SHARDC_CUDA_LIBS", mine + ":" + (root_ / "absent").string()}}),
              ElementsAre(mine, toolkit, wheel, user));
}

TEST_F(Folders, ThePythonInPathIsAsked) {
  std::string bin = Make("py/bin"),
              wheel = Make("py/lib/python3.11/dist-packages/nvidia/cudnn/lib");
  fs::create_symlink("/bin/true", fs::path(bin) / "python3");
  EXPECT_THAT(Found({{"PATH", "/nowhere:" + bin}}), ElementsAre(wheel));
}

TEST_F(Folders, EveryLinkOfAPythonIsFollowed) {
  std::string bin = Make("bin"), venv = Make("venv/bin"), system = Make("usr/bin"),
              wheels = Make("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
  fs::create_symlink("/bin/true", fs::path(system) / "python3.12");
  fs::create_symlink("../../usr/bin/python3.12", fs::path(venv) / "python3");
  fs::create_symlink(fs::path(venv) / "python3", fs::path(bin) / "python3");
  EXPECT_THAT(Found({{"PATH", bin}}), ElementsAre(wheels));
}

TEST_F(Folders, ALinkToItselfEnds) {
  std::string bin = Make("bin");
  fs::create_symlink("/bin/true", fs::path(bin) / "python3");
  fs::create_symlink("python3", fs::path(bin) / "python");
  EXPECT_THAT(Found({{"PATH", bin}}), ElementsAre());
}

TEST_F(Folders, EachOnce) {
  std::string mine = Make("mine");
  EXPECT_THAT(Found({{"SHARDC_CUDA_LIBS", mine + ":" + mine}}), ElementsAre(mine));
}

// A plugin of CUDA 12 needs that one's, wherever $SHARDC_CUDA_LIBS has them.
TEST(CudaPlugin, NeedsTheLibrariesOfTheCudaThatBuiltIt) {
  EXPECT_THAT(CudaLibraries(12),
              ElementsAre("libcublasLt.so.12", "libnccl.so.2", "libnvrtc.so.12", "libcudnn.so.9"));
  EXPECT_EQ(CudaLibraries(13)[0], "libcublasLt.so.13");
}

TEST(CudaPlugin, TheEnvironmentNamesItAlone) {
  auto env = [](const std::string&) { return std::optional<std::string>("/x/plugin.so"); };
  EXPECT_THAT(CudaPluginPaths("/bin", env), ElementsAre("/x/plugin.so"));
  auto none = [](const std::string&) { return std::optional<std::string>(); };
  EXPECT_EQ(CudaPluginPaths("/opt/bin", none)[0], "/opt/bin/libshardc_cuda.so");
}

TEST(CudaMissing, IsOneLineAndExit74) {
  std::optional<Diagnostic> why = WhyNoGpu();
  if (!why) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(why->id(), "E4302");
  EXPECT_EQ(why->code(), ExitCode::kIo);
  EXPECT_THAT(why->message(), Not(::testing::HasSubstr("\n")));
  EXPECT_FALSE(why->message().empty());
}

TEST(CudaMissing, AnUnknownBackendIsE4304) {
  SessionOptions options;
  options.backend = "abacus";
  Program empty;
  EXPECT_EQ(Thrown([&] { Session session({&empty, 1}, options, nullptr); }).id(), "E4304");
}

}  // namespace
}  // namespace shardc::testing
