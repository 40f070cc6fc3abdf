#include "runtime/cuda/runner.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "ir/counted.h"
#include "ir/diagnostic.h"
#include "ir/manifest.h"
#include "runtime/abort.h"
#include "runtime/cuda/peaks.h"
#include "runtime/groups.h"
#include "runtime/thread_runner.h"

namespace shardc::cuda {
namespace {

ExecutorOptions OptionsOf(const Machine& machine, const RunnerRequest& request) {
  const std::string& folder = request.options.cache_folder;
  return {request.options.check_numerics, machine.capture,
          folder.empty() ? "" : StrCat(folder, "/", kKernelChoicesFile), machine.epilogues,
          machine.make_joined};
}

void RefuseReference(const RunnerRequest& request) {
  if (!request.options.reference_kernels) return;
  throw Diagnostic("E4324", ExitCode::kUsage, "--reference",
                   "the reference kernels run on the CPU only", "use --backend cpu");
}

KernelMaker MakerOf(const Machine& machine, const RunnerRequest& request) {
  if (!request.options.may_vary) return machine.make_kernel;
  return [make = machine.make_kernel](KernelRequest r) {
    r.may_vary = true;
    return make(r);
  };
}

// The ranks that share a GPU. Used by one thread at a time.
class GpuRunner : public StepRunner {
 public:
  // `programs`: those of `request` from the rank `first` on. `world`: of ranks that have other
  // GPUs; null where there are none.
  GpuRunner(const Machine& machine, const RunnerRequest& request, int gpu, size_t first,
            size_t count, std::unique_ptr<Communicator> world)
      : make_kernel_(MakerOf(machine, request)), first_(first), program_(request.programs[first]) {
    try {
      device_ = machine.open(gpu);
      device_->Activate();
      used_before_ = device_->UsedBytes();
      carrier_ =
          world ? machine.connect(*device_, program_, GroupAxes(request.programs), std::move(world))
                : MakeSharedDevice(*device_);
      std::vector<const Program*> programs;
      for (const Program& p : request.programs.subspan(first, count)) programs.push_back(&p);
      executor_ =
          std::make_unique<Executor>(*device_, *carrier_, programs, StageAxes(request.programs),
                                     OptionsOf(machine, request), make_kernel_, request.read_state);
    } catch (const std::exception& e) {
      if (carrier_) {
        AbortFor(*carrier_, e);
      } else if (world) {
        AbortFor(*world, e);
      }
      throw;
    }
  }

  ~GpuRunner() override {
    try {
      device_->Activate();
    } catch (const std::exception&) {
      // The GPU has failed: what is freed below is gone already.
    }
  }

  std::byte* Input(int64_t rank, int buffer) override {
    return executor_->Input(Local(rank), buffer);
  }
  void Step() override {
    try {
      executor_->Step();
    } catch (const std::exception& e) {
      AbortFor(*carrier_, e);
      throw;
    }
  }
  const std::byte* Fetch(int64_t rank, int buffer) override {
    return executor_->Fetch(Local(rank), buffer);
  }
  int64_t held_bytes() const override { return executor_->held_bytes(); }
  std::optional<GpuMemory> gpu_memory() const override {
    device_->Activate();
    const int64_t taken = device_->UsedBytes() - used_before_;
    return GpuMemory{executor_->workspace_bytes(),
                     std::max<int64_t>(taken - executor_->held_bytes(), 0)};
  }
  double host_seconds() const override { return executor_->host_seconds(); }
  void StartProfile(int64_t steps) override { executor_->StartProfile(steps); }
  std::vector<std::vector<TimeSpan>> TakeProfile() override { return executor_->TakeProfile(); }
  MachinePeaks MeasurePeaks() override {
    return cuda::MeasurePeaks(*device_, program_, make_kernel_);
  }

 private:
  // Its index among the executor's.
  size_t Local(int64_t rank) const { return static_cast<size_t>(rank) - first_; }

  KernelMaker make_kernel_;
  size_t first_;
  const Program& program_;
  std::unique_ptr<Device> device_;
  int64_t used_before_ = 0;
  std::unique_ptr<Carrier> carrier_;
  std::unique_ptr<Executor> executor_;
};

// What a process would run on.
struct Claim {
  GpuIdentity gpu{};
  int32_t number = -1;  // on its machine; -1: there is none for it
};

Claim ClaimGpu(const Machine& machine, int local_rank) {
  Claim claim;
  if (local_rank < machine.gpus) claim.number = local_rank;
  // A launcher may show each process only the GPU that is for it.
  if (machine.gpus == 1) claim.number = 0;
  if (claim.number >= 0) claim.gpu = machine.identify(claim.number);
  return claim;
}

// Throws on the first rank whose claim cannot be met: NCCL would hang or fail. Collective.
void CheckClaims(const Claim& mine, int gpus, Communicator& world) {
  std::vector<Claim> all(static_cast<size_t>(world.size()));
  world.AllGather(&mine, all.data(), sizeof(Claim), DType::kBool);
  const char* fix = "start as many processes on each machine as it has GPUs";
  for (int r = 0; r < world.size(); ++r) {
    const Claim& claim = all[r];
    auto same = std::find_if(all.begin(), all.begin() + r,
                             [&](const Claim& c) { return c.gpu == claim.gpu; });
    if (claim.number >= 0 && same == all.begin() + r) continue;
    if (r != world.rank()) {
      world.Barrier();  // until that rank aborts
      return;
    }
    if (claim.number < 0) {
      throw Diagnostic("E4321", ExitCode::kIo, "--backend cuda",
                       StrCat("there is no GPU for rank ", r, ": this machine has ", gpus), fix);
    }
    throw Diagnostic("E4327", ExitCode::kIo, "--backend cuda",
                     StrCat("ranks ", same - all.begin(), " and ", r, " have the same GPU"), fix);
  }
}

}  // namespace

std::unique_ptr<StepRunner> MakeRunnerOn(const Machine& machine, const RunnerRequest& request) {
  RefuseReference(request);
  size_t ranks = request.programs.size();
  if ((ranks == 1 && !machine.always_connect) || request.options.shared_device) {
    return std::make_unique<GpuRunner>(machine, request, 0, 0, ranks, nullptr);
  }
  if (ranks > static_cast<size_t>(machine.gpus)) {
    throw Diagnostic("E4321", ExitCode::kIo, "--backend cuda",
                     StrCat("the plan has ", Counted(static_cast<int64_t>(ranks), "rank"),
                            ", this machine has ", Counted(machine.gpus, "GPU")),
                     "use --shared-device to run them all on one GPU");
  }
  Machine of_threads = machine;
  of_threads.capture = machine.capture && (ranks == 1 || machine.capture_threads);
  if (machine.capture && !of_threads.capture) {
    std::fprintf(stderr,
                 "note: steps run without a CUDA graph: GPUs of one process may deadlock with it "
                 "(mpirun has a process for each)\n");
  }
  return MakeThreadRunner(static_cast<int64_t>(ranks), [&](int64_t rank, auto world) {
    return std::make_unique<GpuRunner>(of_threads, request, static_cast<int>(rank),
                                       static_cast<size_t>(rank), 1, std::move(world));
  });
}

std::unique_ptr<StepRunner> MakeRankOn(const Machine& machine, const RunnerRequest& request,
                                       ProcessSeat seat) {
  const auto rank = static_cast<size_t>(seat.world->rank());
  Claim claim;
  try {
    if (rank == 0) RefuseReference(request);  // one says it
    claim = ClaimGpu(machine, seat.local_rank);
    CheckClaims(claim, machine.gpus, *seat.world);
  } catch (const std::exception& e) {
    AbortFor(*seat.world, e);
    throw;
  }
  return std::make_unique<GpuRunner>(machine, request, claim.number, rank, 1,
                                     std::move(seat.world));
}

}  // namespace shardc::cuda
