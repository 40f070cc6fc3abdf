// Whole plans over a fake libnccl.so.2, captured too: results are the CPU's, and a rank that fails
// ends the others.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "frontend/gpt_config.h"
#include "ir/shard_copy.h"
#include "passes/pipeline.h"
#include "runtime/cuda/native/nccl_carrier.h"
#include "runtime/cuda/runner.h"
#include "runtime/in_process/in_process.h"
#include "tests/exec/harness.h"
#include "tests/ir/thrown.h"
#include "tests/runtime/cuda/nccl_fixture.h"
#include "tests/runtime/rank_threads.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;

// Whole plans with a fake GPU for each rank, threads or seats of a world as ranks.
class Plans : public NcclFixture {
 protected:
  explicit Plans(const char* mesh = "dp=2,tp=2", int microbatches = 1, int virtual_stages = 1)
      : graph_(BuildGpt(
            ParseBuiltin("builtin:gpt?layers=4,hidden=32,heads=4,vocab=64,seq=8,batch=4"))) {
    inputs_ = RandomInputs(graph_, 64, 1);
    inputs_["labels"] = inputs_.at("input_ids");
    Spec spec = SpecOf("megatron");
    if (microbatches > 1) spec.microbatches.count = microbatches;
    spec.pipeline.virtual_stages = virtual_stages;
    CompileGraph(graph_, spec, MeshFor(spec, Mesh::Parse(mesh)), {});
    programs_ = ProgramsFor(graph_);
    reader_ = ReaderFor(graph_);
    machine_.gpus = 4;
    machine_.capture_threads = true;
    machine_.open = [this](int gpu) {
      auto device = std::make_unique<FakeDevice>();
      device->RunAlongside();
      device->refuse_capture = gpu == refuse_capture_of_;
      mine = devices_[gpu] = device.get();
      return device;
    };
    machine_.identify = [](int gpu) { return cuda::GpuIdentity{static_cast<uint8_t>(gpu + 1)}; };
    machine_.connect = cuda::MakeNccl;
    machine_.make_kernel = [this](const KernelRequest& r) {
      ++made_;
      return std::make_unique<HostKernel>(r, failing_, nan_, launched_);
    };
  }

  // Runs the reference kernel at once; that of one rank may fail instead, or those of one rank give
  // a NaN.
  class HostKernel : public cuda::CudaKernel {
   public:
    HostKernel(const KernelRequest& r, const std::atomic<int>& failing, const std::atomic<int>& nan,
               std::atomic<int>& launched)
        : kernel_(MakeReferenceKernel(r)),
          rank_(r.call.rank),
          first_result_(r.call.out.empty() ? TensorView() : r.call.out[0]),
          failing_(failing),
          nan_(nan),
          launched_(launched) {}
    void Enqueue(const cuda::Launch& launch) override {
      ++launched_;
      if (failing_ == rank_) throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "a sticky error");
      mine->Enqueue("kernel", launch.stream, {}, [this] {
        kernel_->Run();
        if (nan_ == rank_ && first_result_.dtype == DType::kF32 && first_result_.num_elements() > 0)
          std::memset(first_result_.data, 0xff, 4);
      });
    }

   private:
    std::unique_ptr<Kernel> kernel_;
    int64_t rank_;
    TensorView first_result_;
    const std::atomic<int>&failing_, &nan_;
    std::atomic<int>& launched_;
  };

  // What the session of all ranks on CPU threads gives.
  std::unique_ptr<Session> OnCpu() const {
    SessionOptions options;
    options.reference_kernels = true;
    auto session = std::make_unique<Session>(programs_, options, ReaderFor(graph_));
    for (const auto& [name, value] : inputs_) session->SetInput(name, value);
    session->Step();
    return session;
  }
  void SetInputs(StepRunner& runner, int64_t rank) const {
    for (const NamedBuffer& i : programs_[rank].inputs) {
      GlobalToLocal(inputs_.at(i.name).raw(), programs_[rank].buffers[i.buffer].type,
                    programs_[rank].mesh, rank, runner.Input(rank, i.buffer));
    }
  }
  // What the rank must hold of an output.
  std::vector<std::byte> Part(const HostTensor& whole, int64_t rank, int buffer) const {
    const Buffer& b = programs_[rank].buffers[buffer];
    std::vector<std::byte> part(static_cast<size_t>(b.bytes));
    GlobalToLocal(whole.raw(), b.type, programs_[rank].mesh, rank, part.data());
    return part;
  }
  void ExpectOutputs(StepRunner& runner, int64_t rank, const Session& cpu) const {
    for (const NamedBuffer& o : programs_[rank].outputs) {
      const Buffer& b = programs_[rank].buffers[o.buffer];
      HostTensor got(b.type.dtype, b.local_shape), want = got;
      std::memcpy(got.raw(), runner.Fetch(rank, o.buffer), static_cast<size_t>(b.bytes));
      auto part = Part(cpu.Output(o.name), rank, o.buffer);
      std::memcpy(want.raw(), part.data(), part.size());
      EXPECT_LE(WorstDifference(got, want), 1e-6) << o.name << ", rank " << rank;
    }
  }
  // A step as it is, one that is captured, replays, and one between them that is timed and so not
  // replayed.
  static void RunSteps(StepRunner& runner) {
    for (int step = 0; step < 3; ++step) runner.Step();
    runner.StartProfile(1);
    for (int step = 0; step < 2; ++step) runner.Step();
  }
  // Of a runner of all ranks.
  void ExpectTheCpusResults(StepRunner& runner) const {
    for (int64_t r = 0; r < 4; ++r) SetInputs(runner, r);
    RunSteps(runner);
    const auto cpu = OnCpu();
    for (int64_t r = 0; r < 4; ++r) ExpectOutputs(runner, r, *cpu);
  }
  RunnerRequest Request() const { return {programs_, options_, reader_}; }
  // One rank of four, as a process has it.
  std::unique_ptr<StepRunner> Seat(std::unique_ptr<Communicator> end, int local_rank) const {
    return cuda::MakeRankOn(machine_, Request(), {std::move(end), local_rank});
  }
  // body(rank, its end of the world) on a thread per rank.
  template <typename Body>
  static std::vector<std::exception_ptr> OnSeats(const Body& body) {
    Watchdog watchdog(60);
    World ends = MakeInProcessWorld(4);
    std::vector<std::exception_ptr> errors(ends.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ends.size(); ++r) {
      threads.emplace_back([&, r, end = std::move(ends[r])]() mutable {
        try {
          body(static_cast<int>(r), std::move(end));
        } catch (...) {
          errors[r] = std::current_exception();
        }
      });
    }
    for (std::thread& t : threads) t.join();
    return errors;
  }

  // By all ranks of a runner that lives.
  int64_t graphs_launched() const {
    int64_t n = 0;
    for (const FakeDevice* d : devices_) n += d->graphs_launched;
    return n;
  }

  static thread_local FakeDevice* mine;
  std::array<FakeDevice*, 4> devices_ = {};
  int refuse_capture_of_ = -1;
  Graph graph_;
  std::vector<Program> programs_;
  Tensors inputs_;
  cuda::Machine machine_;
  SessionOptions options_;
  StateReader reader_;
  std::atomic<int> failing_{-1}, nan_{-1}, made_{0}, launched_{0};
};
thread_local FakeDevice* Plans::mine = nullptr;

TEST_F(Plans, ThreadsGiveTheCpusResults) {
  Watchdog watchdog(100);
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  ExpectTheCpusResults(*runner);
  EXPECT_EQ(LiveAllocations(), 4) << "each rank's memory is NCCL's, for it to reach";
  EXPECT_EQ(graphs_launched(), 4 * 3);
}

// As NCCL's guide wants it: GPUs of one process may deadlock when they launch graphs.
TEST_F(Plans, ThreadsHaveNoGraphsUnlessAsked) {
  Watchdog watchdog(100);
  machine_.capture_threads = false;
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  ExpectTheCpusResults(*runner);
  EXPECT_EQ(graphs_launched(), 0);
}

TEST_F(Plans, EveryKernelIsLaunchedBeforeACollectiveCanWait) {
  Watchdog watchdog(100);
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  EXPECT_GT(made_, 0);
  EXPECT_EQ(launched_, made_);
}

// Where NCCL has no memory for one rank, none takes it: the fake ends the process if they mix.
TEST_F(Plans, MemoryIsNcclsOnAllRanksOrOnNone) {
  Watchdog watchdog(100);
  RefuseMemory(2);
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  RefuseMemory(-1);
  EXPECT_EQ(LiveAllocations(), 0);
  ExpectTheCpusResults(*runner);
}

// A graph of some ranks only would hold collectives that the others do not.
TEST_F(Plans, AllRanksCaptureOrNone) {
  Watchdog watchdog(100);
  refuse_capture_of_ = 2;
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  ExpectTheCpusResults(*runner);
  EXPECT_EQ(graphs_launched(), 0);
}

// Others may wait for collectives that it did not get to: they leave, and it says what to do.
TEST_F(Plans, ARankThatCannotBeCapturedToTheEndFails) {
  Watchdog watchdog(100);
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  for (int64_t r = 0; r < 4; ++r) SetInputs(*runner, r);
  runner->Step();
  failing_ = 1;
  const Diagnostic d = Thrown([&] { runner->Step(); });
  EXPECT_EQ(d.id(), "E4301");
  EXPECT_THAT(d.where(), HasSubstr("rank 1, instruction"));
  EXPECT_THAT(d.message(), HasSubstr("captured"));
  EXPECT_THAT(d.fix(), HasSubstr("SHARDC_NO_CUDA_GRAPH"));
}

// Stages have programs of their own, that communicate over other axes.
struct Pipeline {
  const char* mesh;
  int microbatches, virtual_stages = 1;
};
std::ostream& operator<<(std::ostream& out, const Pipeline& p) {
  return out << p.mesh << ", " << p.microbatches << ", " << p.virtual_stages;
}
class PipelinePlans : public Plans, public ::testing::WithParamInterface<Pipeline> {
 protected:
  PipelinePlans() : Plans(GetParam().mesh, GetParam().microbatches, GetParam().virtual_stages) {}
};

TEST_P(PipelinePlans, ThreadsGiveTheCpusResults) {
  Watchdog watchdog(100);
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  ExpectTheCpusResults(*runner);
  EXPECT_EQ(LiveAllocations(), 4) << "each rank's memory is NCCL's, for it to reach";
  EXPECT_EQ(graphs_launched(), 4 * 3);
}

INSTANTIATE_TEST_SUITE_P(Meshes, PipelinePlans,
                         ::testing::Values(Pipeline{"pp=2,tp=2", 1}, Pipeline{"pp=4", 1},
                                           Pipeline{"pp=4", 4}, Pipeline{"pp=2,dp=2", 2},
                                           Pipeline{"pp=2,tp=2", 4, 2}));

TEST_F(Plans, ThreadsEndWhenOneFails) {
  machine_.capture = false;
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  for (int64_t r = 0; r < 4; ++r) SetInputs(*runner, r);
  runner->Step();
  failing_ = 1;
  ExpectThrown([&] { runner->Step(); }, "E4301", "rank 1, instruction");
}

TEST_F(Plans, SeatsGiveTheCpusResults) {
  machine_.capture_threads = false;  // of processes, each with a GPU
  auto cpu = OnCpu();
  auto errors = OnSeats([&](int r, std::unique_ptr<Communicator> end) {
    auto runner = Seat(std::move(end), r);
    SetInputs(*runner, r);
    RunSteps(*runner);
    EXPECT_EQ(devices_[r]->graphs_launched, 3);
    ExpectOutputs(*runner, r, *cpu);
  });
  for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "no error");
}

TEST_F(Plans, SeatsEndWhenOneFails) {
  auto errors = OnSeats([&](int r, std::unique_ptr<Communicator> end) {
    auto runner = Seat(std::move(end), r);
    SetInputs(*runner, r);
    for (int step = 0; step < 3; ++step) runner->Step();
    if (r == 3) {
      failing_ = 3;  // in a step without the graph; the others wait in theirs
      runner->StartProfile(1);
    }
    for (;;) runner->Step();
  });
  EXPECT_THAT(ErrorText(errors[3]), HasSubstr("a sticky error"));
  for (int r : {0, 1, 2}) EXPECT_THAT(ErrorText(errors[r]), HasSubstr("rank 3 aborted"));
}

TEST_F(Plans, ANanOfOneRankEndsAllThatCheckNumerics) {
  options_.check_numerics = true;
  for (bool seats : {false, true}) {
    nan_ = 2;
    std::exception_ptr at_fault;
    if (seats) {
      auto errors = OnSeats([&](int r, std::unique_ptr<Communicator> end) {
        auto runner = Seat(std::move(end), r);
        SetInputs(*runner, r);
        runner->Step();
      });
      for (int r : {0, 1, 3}) EXPECT_THAT(ErrorText(errors[r]), HasSubstr("rank 2 aborted"));
      at_fault = errors[2];
    } else {
      Watchdog watchdog(60);
      auto runner = cuda::MakeRunnerOn(machine_, Request());
      for (int64_t r = 0; r < 4; ++r) SetInputs(*runner, r);
      try {
        runner->Step();
      } catch (...) {
        at_fault = std::current_exception();
      }
    }
    EXPECT_THAT(ErrorText(at_fault), HasSubstr("E4005")) << seats;
    EXPECT_THAT(ErrorText(at_fault), HasSubstr("rank 2, instruction")) << seats;
  }
}

TEST_F(Plans, TwoRanksOnOneGpuIsE4327) {
  auto errors = OnSeats(
      [&](int r, std::unique_ptr<Communicator> end) { Seat(std::move(end), r == 3 ? 1 : r); });
  EXPECT_THAT(ErrorText(errors[3]), HasSubstr("E4327"));
  EXPECT_THAT(ErrorText(errors[3]), HasSubstr("ranks 1 and 3"));
  for (int r : {0, 1, 2}) EXPECT_THAT(ErrorText(errors[r]), HasSubstr("rank 3 aborted"));
}

TEST_F(Plans, TooFewGpusIsE4321SaidByOne) {
  machine_.gpus = 2;
  auto errors = OnSeats([&](int r, std::unique_ptr<Communicator> end) { Seat(std::move(end), r); });
  EXPECT_THAT(ErrorText(errors[2]), HasSubstr("E4321"));
  for (int r : {0, 1, 3}) EXPECT_THAT(ErrorText(errors[r]), HasSubstr("rank 2 aborted"));
}

TEST_F(Plans, AProcessThatSeesOneGpuTakesIt) {
  // As under a launcher that shows each process its own.
  machine_.gpus = 1;
  auto errors = OnSeats([&](int r, std::unique_ptr<Communicator> end) {
    cuda::Machine machine = machine_;
    machine.identify = [r](int) { return cuda::GpuIdentity{static_cast<uint8_t>(r + 1)}; };
    cuda::MakeRankOn(machine, Request(), {std::move(end), r});
  });
  for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "no error");
}

}  // namespace
}  // namespace shardc::testing
