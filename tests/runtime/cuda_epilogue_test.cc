// Groups of instructions as one product, through the executor: taken where a trial says so, with
// the results of separate kernels, in the right order, and alike in every run.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/cuda/kernel_choices.h"
#include "tests/ir/file_testing.h"
#include "tests/runtime/emulated_epilogues.h"
#include "tests/runtime/executor_fixture.h"

namespace shardc::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::StartsWith;
namespace fs = std::filesystem;

// A kernel that runs at once, as work of the device.
class OnDevice : public cuda::CudaKernel {
 public:
  OnDevice(FakeDevice& device, std::shared_ptr<cuda::CudaKernel> kernel,
           std::vector<FakeDevice::Touch> touches)
      : device_(device), kernel_(std::move(kernel)), touches_(std::move(touches)) {}
  void Enqueue(const cuda::Launch& launch) override {
    device_.Enqueue("fused", launch.stream, touches_,
                    [k = kernel_, launch] { k->Enqueue(launch); });
  }
  int64_t workspace_bytes() const override { return 256; }

 private:
  FakeDevice& device_;
  std::shared_ptr<cuda::CudaKernel> kernel_;
  std::vector<FakeDevice::Touch> touches_;
};

struct Setup {
  const char *spec, *mesh;
};
class CudaEpilogues : public ::testing::TestWithParam<Setup> {
 protected:
  CudaEpilogues() : compiled_(GetParam().spec, GetParam().mesh) {
    library_.synchronize = [this](cuda::Stream s) { device_->Synchronize(s); };
    library_.defer = [this](EmulatedEpilogues::Kernel kernel, const cuda::FusedProduct& p) {
      std::vector<FakeDevice::Touch> touches;
      auto touch = [&](const TensorView& v, bool write) {
        if (v.data) touches.push_back({v.data, v.num_elements() * DTypeSize(v.dtype), write});
      };
      for (const TensorView* v : {&p.left, &p.right, &p.bias}) touch(*v, false);
      touch(p.aux, p.epilogue == cuda::Epilogue::kGeluAux);
      touch(p.result, true);
      touch(p.sums, true);
      return std::make_unique<OnDevice>(*device_, std::move(kernel), std::move(touches));
    };
    NewDevice();
  }

  void NewDevice() {
    executor_.reset();
    carrier_.reset();
    device_ = std::make_unique<FakeDevice>();
    carrier_ = cuda::MakeSharedDevice(*device_);
  }
  cuda::Executor& Load(cuda::ExecutorOptions options = {}) {
    options.choices_path = Path();
    options.epilogues = &library_;
    executor_ = compiled_.On(*device_, *carrier_, options);
    return *executor_;
  }
  std::string Path() const { return folder_ / "choices.txt"; }
  // What the trials noted.
  std::vector<std::string> Choices() const {
    std::ifstream in(Path());
    std::stringstream text;
    text << in.rdbuf();
    const auto choices = cuda::KernelChoices::Parse(text.str());
    std::vector<std::string> out;
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with("epilogue ")) {
        out.push_back(choices.Find(line.substr(0, line.find('\t'))).value_or("damaged"));
      }
    }
    return out;
  }
  int64_t FusedWorks() const {
    return std::count_if(device_->works().begin(), device_->works().end(),
                         [](const auto& w) { return w.what == "fused"; });
  }
  // Against the CPU's of as many steps.
  void ExpectCpuResults(int steps) {
    auto cpu = compiled_.OnCpu();
    for (int i = 0; i < steps; ++i) cpu->Step();
    for (const NamedBuffer& o : compiled_.programs_[0].outputs) {
      EXPECT_LE(WorstDifference(compiled_.Gather(*executor_, o), cpu->Output(o.name)), 1e-5)
          << o.name;
    }
  }

  Compiled compiled_;
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
  std::unique_ptr<FakeDevice> device_;
  EmulatedEpilogues library_;
  std::unique_ptr<cuda::Carrier> carrier_;
  std::unique_ptr<cuda::Executor> executor_;
};

TEST_P(CudaEpilogues, AreTakenWithTheSameResults) {
  cuda::Executor& executor = Load();
  const auto groups = static_cast<int64_t>(executor.schedule().groups.size());
  EXPECT_GE(groups, 10);
  EXPECT_FALSE(Choices().empty());
  EXPECT_THAT(Choices(), Each(StartsWith("1 ")));
  // As it is, captured, and a replay.
  for (int step = 0; step < 3; ++step) {
    device_->Forget();
    executor.Step();
    EXPECT_EQ(executor.captured(), step > 0);
    const auto ranks = static_cast<int64_t>(compiled_.programs_.size());
    EXPECT_EQ(FusedWorks(), step < 2 ? groups * ranks : 0);
    EXPECT_THAT(device_->Races(), IsEmpty());
    EXPECT_THAT(device_->Strays(), IsEmpty());
  }
  ExpectCpuResults(3);
}

TEST_P(CudaEpilogues, AreTheSameInEveryOrderThatIsOpen) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    NewDevice();
    device_->Defer(seed);
    cuda::Executor& executor = Load();
    for (int step = 0; step < 3; ++step) executor.Step();
    ExpectCpuResults(3);
  }
}

TEST_P(CudaEpilogues, AreNotTakenWhereTheyDiffer) {
  library_.wrong = true;
  cuda::Executor& executor = Load();
  EXPECT_FALSE(Choices().empty());
  EXPECT_THAT(Choices(), Each(StartsWith("0 differs: result 0 is ")));
  device_->Forget();
  for (int step = 0; step < 3; ++step) executor.Step();
  EXPECT_EQ(FusedWorks(), 0);
  EXPECT_THAT(device_->Races(), IsEmpty());
  ExpectCpuResults(3);
}

TEST_P(CudaEpilogues, AreNotTakenWhereTheyAreSlower) {
  library_.took = 1;
  Load();
  EXPECT_FALSE(Choices().empty());
  EXPECT_THAT(Choices(), Each(StartsWith("0 1.0000 ms, ours 1.0000 ms")));
  device_->Forget();
  executor_->Step();
  EXPECT_EQ(FusedWorks(), 0);
}

TEST_P(CudaEpilogues, AreChosenOnceAndKept) {
  Load();
  const auto first = Choices();
  NewDevice();
  // They would lose now, and are not tried.
  library_.took = 9;
  library_.wrong = true;
  library_.ran = 0;
  cuda::Executor& executor = Load();
  EXPECT_EQ(library_.ran, 0);
  EXPECT_EQ(Choices(), first);
  library_.wrong = false;
  executor.Step();
  EXPECT_GT(library_.ran, 0);
  ExpectCpuResults(1);
}

TEST_P(CudaEpilogues, AreLeftAsideWhenNumbersAreChecked) {
  cuda::ExecutorOptions options;
  options.check_numerics = true;
  cuda::Executor& executor = Load(options);
  EXPECT_THAT(executor.schedule().groups, IsEmpty());
  executor.Step();
  EXPECT_EQ(library_.made, 0);
  ExpectCpuResults(1);
}

TEST_P(CudaEpilogues, AProfileGivesTheTimeToTheProduct) {
  cuda::Executor& executor = Load();
  executor.StartProfile(1);
  executor.Step();
  auto spans = executor.TakeProfile();
  const Profile profile{compiled_.programs_, spans, {}, {}};
  for (const cuda::ProductGroup& g : executor.schedule().groups) {
    for (int i : g.instructions) {
      EXPECT_EQ(profile.at(0, 0, static_cast<size_t>(i)).ns() > 0, i == g.product) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, CudaEpilogues,
                         ::testing::Values(Setup{"serial", ""}, Setup{"megatron", "tp=2"},
                                           Setup{"megatron", "dp=2,tp=2"}));

}  // namespace
}  // namespace shardc::testing
