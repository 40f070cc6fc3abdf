// The NCCL carrier over a fake libnccl.so.2: what it asks of NCCL, and that a rank that fails ends
// the others.
#include "runtime/cuda/native/nccl_carrier.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "frontend/gpt_config.h"
#include "ir/shard_copy.h"
#include "passes/pipeline.h"
#include "runtime/cuda/runner.h"
#include "runtime/in_process/in_process.h"
#include "tests/exec/harness.h"
#include "tests/runtime/carrier_suite.h"
#include "tests/runtime/fake_device.h"
#include "tests/runtime/rank_threads.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;

// Loads the fake, so that it is the one that is found.
int AskFake(const char* what) {
  static void* fake = dlopen(SHARDC_FAKE_NCCL, RTLD_NOW | RTLD_GLOBAL);
  return reinterpret_cast<int (*)()>(dlsym(fake, what))();
}
int LiveCommunicators() { return AskFake("shardc_fake_nccl_live"); }
int LiveAllocations() { return AskFake("shardc_fake_nccl_allocations"); }

class NcclCarrier : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(LiveCommunicators(), 0); }
  void TearDown() override {
    EXPECT_EQ(LiveCommunicators(), 0) << "not destroyed";
    EXPECT_EQ(LiveAllocations(), 0) << "not freed";
  }
};

// A program that has one collective over each of some sets of axes, of f32.
Program WithCollectives(const std::string& mesh, int64_t rank, std::vector<std::vector<int>> axes) {
  Program p;
  p.mesh = Mesh::Parse(mesh);
  p.rank = rank;
  for (auto& a : axes) {
    Collective c;
    c.axes = std::move(a);
    p.collectives.push_back(c);
  }
  return p;
}

// body(rank, device, carrier) on a thread per rank.
template <typename Body>
std::vector<std::exception_ptr> OnRanks(const std::string& mesh, std::vector<std::vector<int>> axes,
                                        const Body& body) {
  Watchdog watchdog(60);
  int n = static_cast<int>(Mesh::Parse(mesh).num_ranks());
  std::vector<Program> programs;
  for (int r = 0; r < n; ++r) programs.push_back(WithCollectives(mesh, r, axes));
  auto ends = MakeInProcessWorld(n);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r, end = std::move(ends[r])]() mutable {
      FakeDevice device;
      std::unique_ptr<cuda::Carrier> carrier;
      try {
        carrier = cuda::MakeNccl(device, programs[r], std::move(end));
        body(r, device, *carrier);
      } catch (const std::exception& e) {
        errors[r] = std::current_exception();
        if (carrier) carrier->Abort(e.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

TEST_F(NcclCarrier, GivesWhatACarrierMust) {
  for (int ranks : {1, 2, 5}) {
    auto errors = OnRanks(StrCat("tp=", ranks), {{0}}, [&](int r, FakeDevice& d, auto& c) {
      cuda::Stream s = d.MakeStream(false);
      // What the fake can add up; the large count is more than a slot of it.
      const std::vector<DType> dtypes = {DType::kF32, DType::kF64, DType::kF16,
                                         DType::kI32, DType::kI64, DType::kBool};
      ForEachCarrierCase(ranks, dtypes, 20011, [&](const CarrierCase& k) {
        std::array<Bytes, 2> send = k.send[r], got;
        cuda::Member me{r, s, {}};
        for (size_t b = 0; b < 2; ++b) {
          got[b].resize(k.want[r][b].size());
          Bytes& recv = k.in_place ? send[b] : got[b];
          me.buffers.push_back({send[b].data(), recv.data(), k.count, k.dtype});
        }
        c.Enqueue(k.collective, {&me, 1});
        for (size_t b = 0; b < 2; ++b) {
          // NCCL may add in any order, and rounds on the way.
          EXPECT_EQ(Wrong(k, r, b, k.in_place ? send[b] : got[b],
                          k.dtype == DType::kF16 ? 0x1p-9 : 0x1p-22),
                    "");
        }
      });
      c.Check();
      d.DestroyStream(s);
    });
    for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "no error");
  }
}

// Groups of some of the ranks, in their order, on communicators of their own.
TEST_F(NcclCarrier, EveryGroupHasItsOwn) {
  auto errors = OnRanks("dp=2,tp=2", {{0}, {1}, {0, 1}}, [&](int r, FakeDevice& d, auto& c) {
    cuda::Stream s = d.MakeStream(false);
    auto gather = [&](std::vector<int> axes, const std::vector<float>& want) {
      const auto mine = static_cast<float>(r);
      std::vector<float> out(want.size(), -1);
      Collective what;
      what.kind = CollectiveKind::kAllGather;
      what.axes = std::move(axes);
      cuda::Member me{r, s, {{&mine, out.data(), 1, DType::kF32}}};
      c.Enqueue(what, {&me, 1});
      EXPECT_EQ(out, want) << "rank " << r;
    };
    const auto row = static_cast<float>(r / 2), column = static_cast<float>(r % 2);
    gather({0}, {column, column + 2});
    gather({1}, {2 * row, 2 * row + 1});
    gather({0, 1}, {0, 1, 2, 3});
    d.DestroyStream(s);
  });
  for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "no error");
}

TEST_F(NcclCarrier, ARankThatFailsEndsThoseThatWaitForIt) {
  auto start = std::chrono::steady_clock::now();
  std::vector<std::vector<float>> memory(4, std::vector<float>(8));  // outlives the carriers
  auto errors = OnRanks("tp=4", {{0}}, [&](int r, FakeDevice& d, auto& c) {
    if (r == 2) throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "the GPU has fallen off the bus");
    cuda::Stream s = d.MakeStream(false);
    std::vector<float>& x = memory[static_cast<size_t>(r)];
    cuda::Member me{r, s, {{x.data(), x.data(), 8, DType::kF32}}};
    Collective what;
    what.axes = {0};
    c.Enqueue(what, {&me, 1});  // without rank 2 it stays in progress
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  for (int r : {0, 1, 3}) {
    EXPECT_THAT(ErrorText(errors[r]), HasSubstr("rank 2 aborted: ")) << r;
    EXPECT_THAT(ErrorText(errors[r]), HasSubstr("fallen off the bus")) << r;
  }
}

TEST_F(NcclCarrier, WhatNcclRefusesIsE4323) {
  // More ranks than the fake takes.
  auto errors = OnRanks("tp=17", {{0}}, [](int, FakeDevice&, auto&) {});
  int said = 0;
  for (const auto& e : errors) said += ErrorText(e).find("E4323") == 0;
  EXPECT_GE(said, 1) << ErrorText(errors[0]);
}

// Whole plans with a fake GPU for each rank, threads or seats of a world as ranks.
class Plans : public NcclCarrier {
 protected:
  explicit Plans(const char* mesh = "dp=2,tp=2")
      : graph_(BuildGpt(
            ParseBuiltin("builtin:gpt?layers=2,hidden=32,heads=4,vocab=64,seq=8,batch=4"))) {
    inputs_ = RandomInputs(graph_, 64, 1);
    inputs_["labels"] = inputs_.at("input_ids");
    Spec spec = SpecOf("megatron");
    CompileGraph(graph_, spec, MeshFor(spec, Mesh::Parse(mesh)), {});
    programs_ = ProgramsFor(graph_);
    reader_ = ReaderFor(graph_);
    machine_.gpus = 4;
    machine_.capture = false;  // the fake NCCL acts at once
    machine_.open = [](int) {
      auto device = std::make_unique<FakeDevice>();
      mine = device.get();
      return device;
    };
    machine_.identify = [](int gpu) { return cuda::GpuIdentity{static_cast<uint8_t>(gpu + 1)}; };
    machine_.connect = cuda::MakeNccl;
    machine_.make_kernel = [this](const KernelRequest& r) {
      return std::make_unique<HostKernel>(r, failing_, nan_);
    };
  }

  // Runs the reference kernel at once; that of one rank may fail instead, or those of one rank give
  // a NaN.
  class HostKernel : public cuda::CudaKernel {
   public:
    HostKernel(const KernelRequest& r, const std::atomic<int>& failing, const std::atomic<int>& nan)
        : kernel_(MakeReferenceKernel(r)),
          rank_(r.call.rank),
          first_result_(r.call.out.empty() ? TensorView() : r.call.out[0]),
          failing_(failing),
          nan_(nan) {}
    void Enqueue(const cuda::Launch& launch) override {
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

  static thread_local FakeDevice* mine;
  Graph graph_;
  std::vector<Program> programs_;
  Tensors inputs_;
  cuda::Machine machine_;
  SessionOptions options_;
  StateReader reader_;
  std::atomic<int> failing_{-1}, nan_{-1};
};
thread_local FakeDevice* Plans::mine = nullptr;

TEST_F(Plans, ThreadsGiveTheCpusResults) {
  auto cpu = OnCpu();
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  for (int64_t r = 0; r < 4; ++r) SetInputs(*runner, r);
  for (int step = 0; step < 2; ++step) runner->Step();
  for (int64_t r = 0; r < 4; ++r) ExpectOutputs(*runner, r, *cpu);
  EXPECT_EQ(LiveAllocations(), 4) << "each rank's memory is NCCL's, for it to reach";
}

// Stages have programs of their own, that communicate over other axes.
class PipelinePlans : public Plans {
 protected:
  PipelinePlans() : Plans("pp=2,tp=2") {}
};

TEST_F(PipelinePlans, ThreadsGiveTheCpusResults) {
  auto cpu = OnCpu();
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  for (int64_t r = 0; r < 4; ++r) SetInputs(*runner, r);
  for (int step = 0; step < 2; ++step) runner->Step();
  for (int64_t r = 0; r < 4; ++r) ExpectOutputs(*runner, r, *cpu);
  EXPECT_EQ(LiveAllocations(), 4) << "each rank's memory is NCCL's, for it to reach";
}

TEST_F(Plans, ThreadsEndWhenOneFails) {
  auto runner = cuda::MakeRunnerOn(machine_, Request());
  for (int64_t r = 0; r < 4; ++r) SetInputs(*runner, r);
  runner->Step();
  failing_ = 1;
  try {
    runner->Step();
    FAIL() << "no diagnostic";
  } catch (const Diagnostic& d) {
    EXPECT_EQ(d.id(), "E4301");
    EXPECT_THAT(d.where(), HasSubstr("rank 1, instruction"));
  }
}

TEST_F(Plans, SeatsGiveTheCpusResults) {
  auto cpu = OnCpu();
  auto errors = OnSeats([&](int r, std::unique_ptr<Communicator> end) {
    auto runner = Seat(std::move(end), r);
    SetInputs(*runner, r);
    for (int step = 0; step < 2; ++step) runner->Step();
    ExpectOutputs(*runner, r, *cpu);
  });
  for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "no error");
}

TEST_F(Plans, SeatsEndWhenOneFails) {
  auto errors = OnSeats([&](int r, std::unique_ptr<Communicator> end) {
    auto runner = Seat(std::move(end), r);
    SetInputs(*runner, r);
    runner->Step();
    if (r == 3) failing_ = 3;
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
