#include "runtime/cuda/runner.h"

#include <algorithm>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/manifest.h"
#include "runtime/abort.h"
#include "runtime/cuda/peaks.h"
#include "runtime/groups.h"
#include "runtime/in_process/in_process.h"
#include "runtime/rank_team.h"

namespace shardc::cuda {
namespace {

ExecutorOptions OptionsOf(const Machine& machine, const RunnerRequest& request) {
  const std::string& folder = request.options.cache_folder;
  return {request.options.check_numerics, machine.capture,
          folder.empty() ? "" : StrCat(folder, "/", kKernelChoicesFile), machine.epilogues};
}

void RefuseReference(const RunnerRequest& request) {
  if (!request.options.reference_kernels) return;
  throw Diagnostic("E4324", ExitCode::kUsage, "--reference",
                   "the reference kernels run on the CPU only", "use --backend cpu");
}

// Of an executor on a GPU where so much was taken before it came.
GpuMemory MemoryOf(Device& device, const Executor& executor, int64_t before) {
  device.Activate();
  const int64_t taken = device.UsedBytes() - before;
  return {executor.workspace_bytes(), std::max<int64_t>(taken - executor.held_bytes(), 0)};
}

// All ranks on one GPU; a single rank too.
class OneGpuRunner : public StepRunner {
 public:
  OneGpuRunner(const Machine& machine, const RunnerRequest& request)
      : device_(machine.open(0)), make_kernel_(machine.make_kernel), program_(request.programs[0]) {
    device_->Activate();
    used_before_ = device_->UsedBytes();
    carrier_ = MakeSharedDevice(*device_);
    std::vector<const Program*> programs;
    for (const Program& p : request.programs) programs.push_back(&p);
    executor_ = std::make_unique<Executor>(*device_, *carrier_, programs,
                                           StageAxes(request.programs), OptionsOf(machine, request),
                                           machine.make_kernel, request.read_state);
  }

  std::byte* Input(int64_t rank, int buffer) override { return executor_->Input(rank, buffer); }
  void Step() override { executor_->Step(); }
  const std::byte* Fetch(int64_t rank, int buffer) override {
    return executor_->Fetch(rank, buffer);
  }
  int64_t held_bytes() const override { return executor_->held_bytes(); }
  int64_t collective_bytes() const override { return executor_->collective_bytes(); }
  std::optional<GpuMemory> gpu_memory() const override {
    return MemoryOf(*device_, *executor_, used_before_);
  }
  double host_seconds() const override { return executor_->host_seconds(); }
  void StartProfile(int64_t steps) override { executor_->StartProfile(steps); }
  std::vector<std::vector<TimeSpan>> TakeProfile() override { return executor_->TakeProfile(); }
  MachinePeaks MeasurePeaks() override {
    return cuda::MeasurePeaks(*device_, program_, make_kernel_);
  }

 private:
  std::unique_ptr<Device> device_;
  KernelMaker make_kernel_;
  const Program& program_;
  int64_t used_before_ = 0;
  std::unique_ptr<Carrier> carrier_;
  std::unique_ptr<Executor> executor_;
};

// One rank with a GPU of its own. Made and used by one thread.
class GpuRank : public StepRunner {
 public:
  // Tells the others of `world` when it fails.
  GpuRank(const Machine& machine, const RunnerRequest& request, size_t rank, int gpu,
          std::unique_ptr<Communicator> world)
      : make_kernel_(machine.make_kernel), program_(request.programs[rank]) {
    Communicator* host = world.get();
    try {
      device_ = machine.open(gpu);
      device_->Activate();
      used_before_ = device_->UsedBytes();
      const Program* program = &program_;
      carrier_ = machine.connect(*device_, *program, GroupAxes(request.programs), std::move(world));
      executor_ = std::make_unique<Executor>(
          *device_, *carrier_, std::span(&program, 1), StageAxes(request.programs),
          OptionsOf(machine, request), machine.make_kernel, request.read_state);
    } catch (const std::exception& e) {
      if (carrier_) {
        AbortFor(*carrier_, e);
      } else if (world) {
        AbortFor(*host, e);
      }
      throw;
    }
  }

  ~GpuRank() override {
    try {
      device_->Activate();
    } catch (const std::exception&) {
      // The GPU has failed: what is freed below is gone already.
    }
  }

  std::byte* Input(int64_t, int buffer) override { return executor_->Input(0, buffer); }
  void Step() override {
    try {
      executor_->Step();
    } catch (const std::exception& e) {
      AbortFor(*carrier_, e);
      throw;
    }
  }
  const std::byte* Fetch(int64_t, int buffer) override { return executor_->Fetch(0, buffer); }
  int64_t held_bytes() const override { return executor_->held_bytes(); }
  int64_t collective_bytes() const override { return executor_->collective_bytes(); }
  std::optional<GpuMemory> gpu_memory() const override {
    return MemoryOf(*device_, *executor_, used_before_);
  }
  double host_seconds() const override { return executor_->host_seconds(); }
  void StartProfile(int64_t steps) override { executor_->StartProfile(steps); }
  std::vector<std::vector<TimeSpan>> TakeProfile() override { return executor_->TakeProfile(); }
  MachinePeaks MeasurePeaks() override {
    return cuda::MeasurePeaks(*device_, program_, make_kernel_);
  }

 private:
  KernelMaker make_kernel_;
  const Program& program_;
  std::unique_ptr<Device> device_;
  int64_t used_before_ = 0;
  std::unique_ptr<Carrier> carrier_;
  std::unique_ptr<Executor> executor_;
};

// A GPU and a thread for each rank.
class ManyGpusRunner : public StepRunner {
 public:
  ManyGpusRunner(const Machine& machine, const RunnerRequest& request)
      : ranks_(request.programs.size()), team_(static_cast<int64_t>(request.programs.size())) {
    auto world = MakeInProcessWorld(static_cast<int>(ranks_.size()));
    try {
      team_.RunAll([&](int64_t r) {
        ranks_[r] = std::make_unique<GpuRank>(machine, request, r, static_cast<int>(r),
                                              std::move(world[r]));
      });
    } catch (...) {
      DropRanks();
      throw;
    }
  }
  ~ManyGpusRunner() override { DropRanks(); }

  std::byte* Input(int64_t rank, int buffer) override { return ranks_[rank]->Input(rank, buffer); }
  void Step() override {
    team_.RunAll([&](int64_t r) { ranks_[r]->Step(); });
  }
  const std::byte* Fetch(int64_t rank, int buffer) override {
    const std::byte* data = nullptr;
    team_.RunAll([&](int64_t r) {
      if (r == rank) data = ranks_[r]->Fetch(rank, buffer);
    });
    return data;
  }

  int64_t held_bytes() const override {
    int64_t n = 0;
    for (const auto& r : ranks_) n += r->held_bytes();
    return n;
  }
  int64_t collective_bytes() const override { return ranks_[0]->collective_bytes(); }
  std::optional<GpuMemory> gpu_memory() const override {
    GpuMemory sum;
    for (const auto& r : ranks_) {
      const GpuMemory one = *r->gpu_memory();
      sum.workspace += one.workspace;
      sum.libraries += one.libraries;
    }
    return sum;
  }
  double host_seconds() const override {
    double longest = 0;
    for (const auto& r : ranks_) longest = std::max(longest, r->host_seconds());
    return longest;
  }
  void StartProfile(int64_t steps) override {
    team_.RunAll([&](int64_t r) { ranks_[r]->StartProfile(steps); });
  }
  std::vector<std::vector<TimeSpan>> TakeProfile() override {
    std::vector<std::vector<TimeSpan>> spans;
    for (auto& r : ranks_) spans.push_back(std::move(r->TakeProfile()[0]));
    return spans;
  }
  MachinePeaks MeasurePeaks() override {
    std::vector<MachinePeaks> peaks(ranks_.size());
    team_.RunAll([&](int64_t r) { peaks[r] = ranks_[r]->MeasurePeaks(); });
    MachinePeaks mean;
    for (const MachinePeaks& p : peaks) {
      mean.gemm_flops += p.gemm_flops / static_cast<double>(peaks.size());
      mean.copy_bytes += p.copy_bytes / static_cast<double>(peaks.size());
    }
    return mean;
  }

 private:
  // Each by its own thread, all at once: carriers close together.
  void DropRanks() {
    team_.Run([&](int64_t r) { ranks_[r].reset(); });
  }

  std::vector<std::unique_ptr<GpuRank>> ranks_;
  RankTeam team_;
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
    const Claim& claim = all[static_cast<size_t>(r)];
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
    return std::make_unique<OneGpuRunner>(machine, request);
  }
  if (ranks > static_cast<size_t>(machine.gpus)) {
    throw Diagnostic("E4321", ExitCode::kIo, "--backend cuda",
                     StrCat("the plan has ", ranks, " ranks, this machine has ", machine.gpus,
                            machine.gpus == 1 ? " GPU" : " GPUs"),
                     "use --shared-device to run them all on one GPU");
  }
  return std::make_unique<ManyGpusRunner>(machine, request);
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
  return std::make_unique<GpuRank>(machine, request, rank, claim.number, std::move(seat.world));
}

}  // namespace shardc::cuda
