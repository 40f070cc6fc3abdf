// What is kept of timed choices: the file's form, what damages it, and that all ranks take the same
// way in every run.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "passes/pipeline.h"
#include "runtime/cuda/executor.h"
#include "runtime/cuda/kernel_choices.h"
#include "runtime/groups.h"
#include "tests/exec/harness.h"
#include "tests/ir/file_testing.h"
#include "tests/runtime/fake_device.h"

namespace shardc::testing {
namespace {

using cuda::KernelChoices;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Not;
namespace fs = std::filesystem;

const std::string kBytes("\0\xff\t\n9", 5);

TEST(KernelChoices, TextAndBack) {
  KernelChoices choices;
  choices.Set("b 1x2", kBytes);
  choices.Set("a", "");
  KernelChoices back = KernelChoices::Parse(choices.ToText());
  EXPECT_EQ(back.Find("b 1x2"), kBytes);
  EXPECT_EQ(back.Find("a"), "");
  EXPECT_EQ(back.Find("c"), std::nullopt);
  EXPECT_EQ(back.ToText(), choices.ToText());
}

TEST(KernelChoices, ADamagedLineIsLeftOut) {
  KernelChoices choices;
  for (const char* key : {"a", "b", "c"}) choices.Set(key, kBytes);
  const std::string good = choices.ToText();
  const size_t first = good.find('\n') + 1;
  for (size_t at = first; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = bad[at] == '0' ? '1' : '0';
    KernelChoices back = KernelChoices::Parse(bad);
    int left = 0;
    for (const char* key : {"a", "b", "c"}) {
      auto found = back.Find(key);
      left += found.has_value();
      EXPECT_TRUE(!found || found == kBytes) << "wrong bytes after damage at " << at;
    }
    EXPECT_LT(left, 3) << "damage at " << at;
  }
  // Cut short anywhere, it holds what was whole.
  for (size_t size = 0; size < good.size(); ++size) {
    KernelChoices back = KernelChoices::Parse(good.substr(0, size));
    for (const char* key : {"a", "b", "c"}) {
      EXPECT_TRUE(!back.Find(key) || back.Find(key) == kBytes);
    }
  }
}

TEST(KernelChoices, AnotherFormatHoldsNothing) {
  KernelChoices choices;
  choices.Set("a", kBytes);
  std::string text = choices.ToText();
  text[text.find(" 1\n") + 1] = '2';
  EXPECT_EQ(KernelChoices::Parse(text).Find("a"), std::nullopt);
  EXPECT_EQ(KernelChoices::Parse("").ToText(), KernelChoices().ToText());
}

// Has two ways, and notes which it took; the n-th measurement in the process finds another one
// faster than the one before.
class TwoWays : public cuda::CudaKernel {
 public:
  struct Log {
    int measured = 0;
    std::vector<std::string> taken;
  };
  TwoWays(std::string key, Log& log) : key_(std::move(key)), log_(log) {}
  void Tune(const cuda::Launch& launch, KernelChoices& choices) override {
    EXPECT_GT(launch.workspace_bytes, 0);
    std::string way = "proposed";
    if (auto known = choices.Find(key_)) {
      way = *known;
    } else if (choices.may_measure) {
      way = StrCat("way ", ++log_.measured);
      choices.Set(key_, way);
    }
    log_.taken.push_back(way);
  }
  void Enqueue(const cuda::Launch&) override {}
  int64_t workspace_bytes() const override { return 64; }

 private:
  std::string key_;
  Log& log_;
};

class Tuning : public ::testing::Test {
 protected:
  Tuning()
      : graph_(BuildGpt(
            ParseBuiltin("builtin:gpt?layers=1,hidden=32,heads=4,vocab=64,seq=8,batch=4"))) {
    Spec spec = SpecOf("megatron");
    CompileGraph(graph_, spec, MeshFor(spec, Mesh::Parse("tp=2")), {});
    programs_ = ProgramsFor(graph_);
  }
  std::string Path() const { return folder_ / "choices.txt"; }
  std::string File() const {
    std::ifstream in(Path());
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  // Loads all ranks; kernels of one op have one key.
  TwoWays::Log Load(const std::string& path) {
    TwoWays::Log log;
    FakeDevice device;
    auto carrier = cuda::MakeSharedDevice(device);
    std::vector<const Program*> pointers;
    for (const Program& p : programs_) pointers.push_back(&p);
    cuda::ExecutorOptions options;
    options.choices_path = path;
    cuda::Executor executor(
        device, *carrier, pointers, StageAxes(programs_), options,
        [&](const KernelRequest& r) { return std::make_unique<TwoWays>(r.instruction.op, log); },
        ReaderFor(graph_));
    return log;
  }
  // Both ranks took the same ways.
  static void ExpectAlike(const TwoWays::Log& log) {
    size_t half = log.taken.size() / 2;
    ASSERT_GT(half, 0u);
    for (size_t i = 0; i < half; ++i) EXPECT_EQ(log.taken[i], log.taken[half + i]);
  }

  Graph graph_;
  std::vector<Program> programs_;
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(Tuning, MeasuredOnceAndKept) {
  TwoWays::Log first = Load(Path());
  EXPECT_GT(first.measured, 3);
  ExpectAlike(first);
  const std::string file = File();
  TwoWays::Log second = Load(Path());
  EXPECT_EQ(second.measured, 0);
  EXPECT_EQ(second.taken, first.taken);
  EXPECT_EQ(File(), file);
}

// The first rank of each stage of a pipeline measures what its stage alone has.
TEST_F(Tuning, EachStageIsMeasured) {
  graph_ = BuildGpt(ParseBuiltin("builtin:gpt?layers=2,hidden=32,heads=4,vocab=64,seq=8,batch=4"));
  Spec spec = SpecOf("megatron");
  CompileGraph(graph_, spec, MeshFor(spec, Mesh::Parse("pp=2,tp=2")), {});
  programs_ = ProgramsFor(graph_);
  TwoWays::Log first = Load(Path());
  EXPECT_THAT(first.taken, Not(Contains("proposed")));
  std::set<std::string> ops;
  for (const Program& p : programs_) {
    for (const Instruction& i : p.instructions) {
      if (i.collective < 0) ops.insert(i.op);
    }
  }
  EXPECT_EQ(first.measured, ops.size()) << "each op once";
  TwoWays::Log second = Load(Path());
  EXPECT_EQ(second.measured, 0);
  EXPECT_EQ(second.taken, first.taken);
}

TEST_F(Tuning, ADamagedFileIsMadeAgain) {
  TwoWays::Log first = Load(Path());
  std::string file = File();
  std::ofstream(Path()) << "garbage" << file;
  TwoWays::Log second = Load(Path());
  EXPECT_EQ(second.measured, first.measured);
  EXPECT_EQ(File(), file);
  // One entry of it.
  file[file.size() - 2] ^= 1;
  std::ofstream(Path()) << file;
  EXPECT_EQ(Load(Path()).measured, 1);
  EXPECT_EQ(Load(Path()).measured, 0);
}

TEST_F(Tuning, NothingIsMeasuredThatCannotBeKept) {
  for (const std::string& path : {std::string(), (folder_ / "no/such/folder/file").string()}) {
    TwoWays::Log log = Load(path);
    EXPECT_EQ(log.measured, 0) << path;
    EXPECT_THAT(log.taken, Each("proposed"));
  }
  EXPECT_THAT(fs::directory_iterator(folder_) == fs::directory_iterator(), true);
}

TEST_F(Tuning, NoTemporaryFileIsLeft) {
  Load(Path());
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace shardc::testing
