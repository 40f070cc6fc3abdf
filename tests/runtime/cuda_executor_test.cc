// Whole plans through the CUDA executor on a device that records: the CPU's kernels run in place of
// CUDA's, so results must be the CPU session's, and everything that was enqueued must be ordered by
// streams and events.
#include <gmock/gmock.h>

#include <cstring>
#include <utility>

#include "runtime/cuda/peaks.h"
#include "runtime/cuda/runner.h"
#include "tests/ir/thrown.h"
#include "tests/runtime/executor_fixture.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Setup {
  const char *spec, *mesh;
};
class CudaExecutor : public ::testing::TestWithParam<Setup> {};

TEST_P(CudaExecutor, ResultsAreTheCpus) {
  Compiled c(GetParam().spec, GetParam().mesh);
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier);
  auto cpu = c.OnCpu();
  // The first step as it is, the second captured, the third a replay.
  for (int step = 0; step < 3; ++step) {
    executor->Step();
    cpu->Step();
    EXPECT_EQ(executor->captured(), step > 0);
    for (const NamedBuffer& o : c.Outputs()) {
      HostTensor expected = cpu->Output(o.name);
      EXPECT_LE(WorstDifference(c.Gather(*executor, o), expected), 1e-6)
          << o.name << ", step " << step;
    }
  }
  EXPECT_EQ(device.graphs_made, 1);
  EXPECT_EQ(device.graphs_launched, 2);
}

TEST_P(CudaExecutor, ResultsAreTheSameInEveryOrderThatIsOpen) {
  Compiled c(GetParam().spec, GetParam().mesh);
  auto cpu = c.OnCpu();
  cpu->Step();
  for (uint64_t seed = 0; seed < 4; ++seed) {
    FakeDevice device;
    device.Defer(seed);
    auto carrier = cuda::MakeSharedDevice(device);
    auto executor = c.On(device, *carrier);
    for (int step = 0; step < 3; ++step) executor->Step();
    for (const NamedBuffer& o : c.Outputs()) {
      EXPECT_LE(WorstDifference(c.Gather(*executor, o), cpu->Output(o.name)), 1e-6)
          << o.name << ", seed " << seed;
    }
  }
}

TEST_P(CudaExecutor, EverythingIsOrdered) {
  Compiled c(GetParam().spec, GetParam().mesh);
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier);
  device.Forget();
  for (int step = 0; step < 2; ++step) {
    executor->Step();
    EXPECT_THAT(device.Races(), IsEmpty());
    EXPECT_THAT(device.Strays(), IsEmpty());
  }
}

TEST_P(CudaExecutor, OneAllocationPerRankAndItsWorkspace) {
  Compiled c(GetParam().spec, GetParam().mesh);
  FakeDevice device;
  {
    auto carrier = cuda::MakeSharedDevice(device);
    auto executor = c.On(device, *carrier);
    int64_t ranks = static_cast<int64_t>(c.programs_.size());
    EXPECT_EQ(device.allocations, 2 * ranks);
    int64_t bytes = 0;
    for (const Program& p : c.programs_) bytes += cuda::LayOut(p).bytes + 128;
    EXPECT_EQ(device.allocated_bytes, bytes);
    EXPECT_EQ(executor->held_bytes(), device.allocated_bytes);
    executor->Step();
    executor->Step();
    EXPECT_EQ(device.allocations, 2 * ranks) << "steps allocate nothing";
  }
  EXPECT_EQ(device.live, 0) << "streams, events, graphs and memory are given back";
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, CudaExecutor,
    ::testing::Values(Setup{"serial", ""}, Setup{"megatron", "tp=2"}, Setup{"megatron", "tp=4"},
                      Setup{"megatron_sp", "cp=2,tp=2"}, Setup{"ulysses", "tp=2,cp=2"},
                      Setup{"megatron", "dp=2,tp=2"}, Setup{"megatron", "pp=2"},
                      Setup{"megatron", "pp=2,dp=2,tp=2"}));

TEST(CudaExecutorStep, StatesLiveOnOverGraphReplays) {
  Compiled c("megatron", "tp=2", "adamw");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier);
  auto cpu = c.OnCpu();
  for (int step = 0; step < 4; ++step) {
    executor->Step();
    cpu->Step();
  }
  for (const NamedBuffer& s : c.programs_[0].states) {
    EXPECT_LE(WorstDifference(c.Gather(*executor, s), cpu->State(s.name), 1e-3), 1e-5) << s.name;
  }
}

TEST(CudaExecutorStep, StatesThatAreNotFilledAreZero) {
  Compiled c("megatron", "tp=2", "adamw");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  StateReader all = ReaderFor(c.graph_);
  int skipped = 0;
  cuda::Executor executor(
      device, *carrier, c.pointers_, {}, {}, KernelsOn(device),
      [&](int64_t rank, const NamedBuffer& state, const Buffer& buffer, std::byte* local) {
        // Moments begin at zero, which nobody has to write.
        bool moment = state.name.ends_with(".m") || state.name.ends_with(".v");
        skipped += moment;
        if (!moment) all(rank, state, buffer, local);
      });
  EXPECT_GT(skipped, 0);
  c.SetInputs(executor);
  executor.Step();
  auto cpu = c.OnCpu();
  cpu->Step();
  for (const NamedBuffer& s : c.programs_[0].states) {
    EXPECT_LE(WorstDifference(c.Gather(executor, s), cpu->State(s.name), 1e-3), 1e-5) << s.name;
  }
}

TEST(CudaExecutorStep, CopiesOnlyInputsThatChanged) {
  Compiled c("serial", "");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier, {.capture = false});
  auto copies = [&] {
    device.Forget();
    executor->Step();
    return std::count_if(device.works().begin(), device.works().end(),
                         [](const auto& w) { return w.what == "copy in"; });
  };
  EXPECT_EQ(copies(), 2);
  EXPECT_EQ(copies(), 0);
  executor->Input(0, c.programs_[0].inputs[0].buffer);
  EXPECT_EQ(copies(), 1);
}

std::vector<std::string> Whats(const FakeDevice& device) {
  std::vector<std::string> whats;
  for (const FakeDevice::Work& w : device.works()) whats.push_back(w.what);
  return whats;
}

// However many instructions there are.
TEST(CudaExecutorStep, TheHostOnlyLaunchesTheGraphOfACapturedStep) {
  Compiled c("megatron", "tp=2");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier);
  executor->Step();
  executor->Step();
  const int64_t kernels = device.enqueued;
  device.Forget();
  executor->Step();
  EXPECT_THAT(Whats(device), ElementsAre("graph"));
  EXPECT_EQ(device.enqueued - kernels, 1) << "work, records and waits";
  EXPECT_GE(executor->host_seconds(), 0);
}

// Which CUDA launches in a time that does not grow with their number.
TEST(CudaExecutorStep, TheGraphOfOneRankIsOfKernelsAlone) {
  Compiled c("serial", "");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier);
  executor->Step();
  device.Forget();
  executor->Step();
  std::vector<std::string> whats = Whats(device);
  ASSERT_GT(whats.size(), 10u);
  EXPECT_EQ(whats.back(), "graph");
  EXPECT_THAT(whats, Each(Not(AnyOf("fill", "copy", "copy in", "copy out"))));
}

TEST(CudaExecutorStep, RunsWithoutAGraphWhenCaptureFails) {
  Compiled c("megatron", "tp=2");
  FakeDevice device;
  device.refuse_capture = true;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier);
  for (int step = 0; step < 3; ++step) executor->Step();
  EXPECT_FALSE(executor->captured());
  EXPECT_THAT(executor->capture_failure(), HasSubstr("not today"));
  auto cpu = c.OnCpu();
  cpu->Step();
  for (const NamedBuffer& o : c.Outputs()) {
    EXPECT_LE(WorstDifference(c.Gather(*executor, o), cpu->Output(o.name)), 1e-6) << o.name;
  }
}

TEST(CudaExecutorStep, AProfileTimesEveryInstructionAndLeavesTheGraphAside) {
  Compiled c("megatron", "tp=2");
  FakeDevice device;
  {
    auto carrier = cuda::MakeSharedDevice(device);
    auto executor = c.On(device, *carrier);
    EXPECT_TRUE(executor->TakeProfile()[0].empty()) << "nothing was asked for";
    executor->StartProfile(2);
    for (int step = 0; step < 3; ++step) {
      executor->Step();
      EXPECT_EQ(executor->captured(), step == 2);
    }
    executor->StartProfile(1);
    executor->Step();
    EXPECT_EQ(device.graphs_launched, 1);
    auto spans = executor->TakeProfile();
    ASSERT_EQ(spans.size(), 2u);
    const Profile profile{c.programs_, spans, {}, {}};
    EXPECT_EQ(profile.steps(), 1u);
    for (size_t i = 0; i < profile.instructions(0); ++i) {
      const Instruction& instruction = c.programs_[0].instructions[i];
      bool collective = instruction.collective >= 0;
      for (size_t r = 0; r < 2; ++r) {
        // Both ranks' kernels are enqueued between the events of the first.
        int64_t most = collective ? 4 : 2;
        EXPECT_GE(profile.at(r, 0, i).ns(), 1'000'000) << instruction.op;
        EXPECT_LE(profile.at(r, 0, i).ns(), most * 1'000'000) << instruction.op;
      }
    }
    std::vector<ProfileRow> rows = ProfileByOp(profile);
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const ProfileRow& r) {
      return r.name == "matmul" && r.calls > 0 && r.flops > 0 && r.seconds > 0;
    }));
    EXPECT_FALSE(ProfileCollectives(profile).empty());
  }
  EXPECT_EQ(device.live, 0);
}

// Throws, writes a fault or makes a NaN in place of the n-th kernel.
enum class Harm { kRefuse, kFault, kNan };
class BadKernel : public cuda::CudaKernel {
 public:
  // `position`: of the fault, in the whole tensor of ids.
  BadKernel(FakeDevice& device, const KernelRequest& r, Harm harm, int64_t position)
      : device_(device), out_(r.call.out[0]), harm_(harm), position_(position) {}
  void Enqueue(const cuda::Launch& launch) override {
    if (harm_ == Harm::kRefuse) throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "no");
    std::byte* data = out_.data;
    cuda::Fault* fault = launch.fault;
    device_.Enqueue("bad", launch.stream, {}, [=, this] {
      if (harm_ == Harm::kNan) std::memset(data, 0xff, 4);
      if (harm_ == Harm::kFault && !std::exchange(faulted_, true)) {
        *fault = {cuda::Fault::kBadId, position_, 99, 64};
      }
    });
  }

 private:
  FakeDevice& device_;
  TensorView out_;
  Harm harm_;
  int64_t position_;
  bool faulted_ = false;  // once: later steps have other ids
};

// Of the first kernel of that rank, or of the first that reads ids.
Diagnostic FailureOf(Harm harm, const char* mesh = "tp=2", int64_t rank = 0, int64_t position = 0) {
  Compiled c("megatron", mesh);
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  bool made = false;
  cuda::KernelMaker maker = [&](const KernelRequest& r) -> std::unique_ptr<cuda::CudaKernel> {
    const bool has_ids = r.instruction.op == "embedding";
    if (r.program.rank == rank && (has_ids || harm != Harm::kFault) && !std::exchange(made, true)) {
      return std::make_unique<BadKernel>(device, r, harm, position);
    }
    return std::make_unique<HostKernel>(device, r);
  };
  cuda::ExecutorOptions options;
  options.check_numerics = harm == Harm::kNan;
  cuda::Executor executor(device, *carrier, c.pointers_, {}, options, maker, ReaderFor(c.graph_));
  c.SetInputs(executor);
  try {
    executor.Step();
  } catch (const Diagnostic& d) {
    if (harm == Harm::kFault) {
      EXPECT_NO_THROW(executor.Step()) << "what was found is forgotten";
    }
    return d;
  }
  return Diagnostic("none", ExitCode::kOk, "", "the step did not fail");
}

TEST(CudaExecutorStep, ABadIdIsE4003) {
  Diagnostic d = FailureOf(Harm::kFault, "tp=2", 0, 5);
  EXPECT_EQ(d.id(), "E4003");
  EXPECT_EQ(d.where(), "rank 0, instruction 0 (embedding at transformer.wte)");
  EXPECT_EQ(d.message(), "ids[0, 5] = 99 is outside [0, 64); it comes from input 'input_ids'");
  // Of the second half of the batch; of a sequence that is cut.
  d = FailureOf(Harm::kFault, "dp=2", 1, 2 * 8 + 5);
  EXPECT_EQ(d.where(), "rank 1, instruction 0 (embedding at transformer.wte)");
  EXPECT_THAT(d.message(), HasSubstr("ids[2, 5] = 99 is outside [0, 64)"));
  d = FailureOf(Harm::kFault, "cp=2", 1, 8 + 4);
  EXPECT_THAT(d.message(), HasSubstr("ids[1, 4] = 99 is outside [0, 64)"));
}

TEST(CudaExecutorStep, ANanNamesItsInstruction) {
  Diagnostic d = FailureOf(Harm::kNan);
  EXPECT_EQ(d.id(), "E4005");
  EXPECT_THAT(d.where(), HasSubstr("rank 0, instruction"));
}

TEST(CudaExecutorStep, ARefusedLaunchNamesItsInstruction) {
  Diagnostic d = FailureOf(Harm::kRefuse);
  EXPECT_EQ(d.id(), "E4301");
  EXPECT_THAT(d.where(), HasSubstr("rank 0, instruction"));
}

TEST(CudaExecutorStep, AnOpWithoutKernelIsE4322) {
  Compiled c("serial", "");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  EXPECT_EQ(Thrown([&] {
              cuda::Executor executor(
                  device, *carrier, c.pointers_, {}, {},
                  [](const KernelRequest&) { return nullptr; }, ReaderFor(c.graph_));
            }).id(),
            "E4322");
  carrier.reset();
  EXPECT_EQ(device.live, 0) << "what the constructor took is given back";
}

// A carrier that finds out later that a peer is gone.
class LostPeer : public cuda::Carrier {
 public:
  void Enqueue(const Collective&, std::span<const cuda::Member>) override {}
  bool can_fail_later() const override { return true; }
  void Check() override {
    if (++checks > 3) throw Aborted(1, "gone");
  }
  void Abort(const std::string&) noexcept override {}
  int checks = 0;
};

TEST(CudaExecutorStep, AStepThatNeverEndsIsLeftWhenAPeerIsGone) {
  Compiled c("megatron", "tp=2");
  FakeDevice device;
  device.hang = true;
  LostPeer carrier;
  cuda::Executor executor(device, carrier, std::span(c.pointers_).first(1), {}, {},
                          KernelsOn(device), ReaderFor(c.graph_));
  const Program& p = c.programs_[0];
  for (const NamedBuffer& i : p.inputs) {
    std::memset(executor.Input(0, i.buffer), 0, static_cast<size_t>(p.buffers[i.buffer].bytes));
  }
  EXPECT_THROW(executor.Step(), Aborted);
}

TEST(CudaPeaks, AreOfTheProgramsTypeAndNeedNoMemoryThatIsNotThere) {
  Compiled c("serial", "");
  FakeDevice device;
  std::vector<DType> types;
  cuda::KernelMaker maker = [&](const KernelRequest& r) {
    types.push_back(r.call.in[0].dtype);
    return std::make_unique<HostKernel>(device, r);
  };
  // A kernel, or a copy, takes a millisecond there.
  MachinePeaks peaks = cuda::MeasurePeaks(device, c.programs_[0], maker, {16, 1000});
  EXPECT_DOUBLE_EQ(peaks.gemm_flops, 2 * 16 * 16 * 16 / 1e-3);
  EXPECT_DOUBLE_EQ(peaks.copy_bytes, 2 * 1000 / 1e-3);
  device.fail_allocation_over = 3 * 16 * 16 * 4;
  peaks = cuda::MeasurePeaks(device, c.programs_[0], maker, {16, 10000});
  EXPECT_GT(peaks.gemm_flops, 0);
  EXPECT_EQ(peaks.copy_bytes, 0);
  EXPECT_EQ(device.live, 0);
  for (Buffer& b : c.programs_[0].buffers) b.type.dtype = DType::kBF16;
  cuda::MeasurePeaks(device, c.programs_[0], maker, {16, 100});
  EXPECT_EQ(types, (std::vector<DType>{DType::kF32, DType::kF32, DType::kBF16}));
}

TEST(CudaRunner, MoreRanksThanGpusIsE4321) {
  Compiled c("megatron", "tp=2");
  cuda::Machine machine;
  machine.gpus = 1;
  SessionOptions options;
  StateReader reader = ReaderFor(c.graph_);
  const Diagnostic d = Thrown([&] { MakeRunnerOn(machine, {c.programs_, options, reader}); });
  EXPECT_EQ(d.id(), "E4321");
  EXPECT_EQ(d.code(), ExitCode::kIo);
  EXPECT_THAT(d.fix(), HasSubstr("--shared-device"));
}

TEST(CudaRunner, TellsWhatLibrariesTookFromTheWorkspace) {
  Compiled c("serial", "");
  constexpr int64_t kBefore = 12345, kEach = 100, kWorkspace = 4096;
  FakeDevice* device = nullptr;
  int64_t kernels = 0;
  struct Working : HostKernel {
    using HostKernel::HostKernel;
    int64_t workspace_bytes() const override { return kWorkspace; }
  };
  cuda::Machine machine;
  machine.gpus = 1;
  machine.open = [&](int) {
    auto made = std::make_unique<FakeDevice>();
    made->library_bytes = kBefore;
    device = made.get();
    return made;
  };
  machine.make_kernel = [&](const KernelRequest& r) {
    device->library_bytes += kEach;
    ++kernels;
    return std::make_unique<Working>(*device, r);
  };
  SessionOptions options;
  StateReader reader = ReaderFor(c.graph_);
  auto runner = MakeRunnerOn(machine, {c.programs_, options, reader});
  const std::optional<GpuMemory> memory = runner->gpu_memory();
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->workspace, kWorkspace);
  EXPECT_EQ(memory->libraries, kernels * kEach);
  EXPECT_GT(runner->held_bytes(), kWorkspace);
}

TEST(CudaRunner, KernelsMayVaryOnlyWhereThatIsAskedFor) {
  Compiled c("serial", "");
  FakeDevice* device = nullptr;
  std::set<bool> seen;
  cuda::Machine machine;
  machine.gpus = 1;
  machine.open = [&](int) {
    auto made = std::make_unique<FakeDevice>();
    device = made.get();
    return made;
  };
  machine.make_kernel = [&](const KernelRequest& r) {
    seen.insert(r.may_vary);
    return std::make_unique<HostKernel>(*device, r);
  };
  SessionOptions options;
  StateReader reader = ReaderFor(c.graph_);
  for (bool may_vary : {false, true}) {
    options.may_vary = may_vary;
    seen.clear();
    MakeRunnerOn(machine, {c.programs_, options, reader});
    EXPECT_EQ(seen, std::set{may_vary});
  }
}

TEST(CudaRunner, ReferenceKernelsAreNotForGpus) {
  Compiled c("serial", "");
  SessionOptions options;
  options.reference_kernels = true;
  StateReader reader = ReaderFor(c.graph_);
  EXPECT_THROW(cuda::MakeRunnerOn({}, {c.programs_, options, reader}), Diagnostic);
}

}  // namespace
}  // namespace shardc::testing
