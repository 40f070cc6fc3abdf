// compile: how much memory the weights take.
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/frontend/import_testing.h"
#include "tests/tools/tool.h"

extern char** environ;

namespace shardc::testing {
namespace {

using import_testing::Model;

constexpr int64_t kRows = 1024, kColumns = 4096, kBytes = kRows * kColumns * 4;
constexpr int kMatrices = 6;

// The most that the tool had resident, file pages too, in MiB.
int64_t PeakMiB(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SHARDC_TOOL);
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, SHARDC_TOOL, nullptr, nullptr, argv.data(), environ), 0);
  int status = 0;
  struct rusage usage {};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
  return usage.ru_maxrss / 1024;
}

class CompileMemory : public ToolTest {
 protected:
  // x times six matrices of 16 MiB, whose data is in a file of its own: two values, then a hole.
  void WriteModel() const {
    Model m;
    m.Input("x", {"2", std::to_string(kRows)});
    std::string data = Path("model.data"), last = "x";
    int fd = open(data.c_str(), O_CREAT | O_WRONLY, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, kMatrices * kBytes), 0);
    for (int i = 0; i < kMatrices; ++i) {
      const float values[] = {0.25f, -0.5f};
      ASSERT_EQ(pwrite(fd, values, sizeof(values), i * kBytes),
                static_cast<ssize_t>(sizeof(values)));
      std::string name = "w" + std::to_string(i), next = "y" + std::to_string(i);
      bool wide = i % 2 == 0;
      auto& w = m.Floats(name, {wide ? kRows : kColumns, wide ? kColumns : kRows}, {});
      w.set_data_location(onnx::TensorProto::EXTERNAL);
      for (auto [key, value] : {std::pair<std::string, std::string>("location", "model.data"),
                                {"offset", std::to_string(i * kBytes)},
                                {"length", std::to_string(kBytes)}}) {
        auto* entry = w.add_external_data();
        entry->set_key(key);
        entry->set_value(value);
      }
      m.Node("MatMul", {last, name}, {next});
      last = next;
    }
    close(fd);
    m.Output(last);
    Write("model.onnx", m.proto.SerializeAsString());
  }
};

TEST_F(CompileMemory, OfExternalDataIsThatOfATensor) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  WriteModel();
  auto peak = [&](const std::string& weights) {
    return PeakMiB({"compile", Path("model.onnx"), "--loss", "none", "--weights", weights, "-q",
                    "-o", Path("plan_" + weights)});
  };
  int64_t none = peak("none");
  // A tensor as it is read and once more in the file's pages; the six are 96 MiB.
  EXPECT_LT(peak("split") - none, 2 * kBytes / (1 << 20) + 16);
}

}  // namespace
}  // namespace shardc::testing
