#include "runtime/cuda/runner.h"

#include <vector>

#include "ir/diagnostic.h"
#include "runtime/in_process/in_process.h"
#include "runtime/rank_team.h"

namespace shardc::cuda {
namespace {

ExecutorOptions OptionsOf(const Machine& machine, const RunnerRequest& request) {
  return {request.options.check_numerics, machine.capture};
}

// All ranks on one GPU; a single rank too.
class OneGpuRunner : public StepRunner {
 public:
  OneGpuRunner(const Machine& machine, const RunnerRequest& request) : device_(machine.open(0)) {
    device_->Activate();
    carrier_ = MakeSharedDevice(*device_);
    std::vector<const Program*> programs;
    for (const Program& p : request.programs) programs.push_back(&p);
    executor_ =
        std::make_unique<Executor>(*device_, *carrier_, programs, OptionsOf(machine, request),
                                   machine.make_kernel, request.read_state);
  }

  std::byte* Input(int64_t rank, int buffer) override { return executor_->Input(rank, buffer); }
  void Step() override { executor_->Step(); }
  const std::byte* Fetch(int64_t rank, int buffer) override {
    return executor_->Fetch(rank, buffer);
  }
  int64_t held_bytes() const override { return executor_->held_bytes(); }
  int64_t collective_bytes() const override { return executor_->collective_bytes(); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Carrier> carrier_;
  std::unique_ptr<Executor> executor_;
};

// A GPU and a thread for each rank.
class ManyGpusRunner : public StepRunner {
 public:
  ManyGpusRunner(const Machine& machine, const RunnerRequest& request)
      : ranks_(request.programs.size()), team_(static_cast<int64_t>(request.programs.size())) {
    auto world = MakeInProcessWorld(static_cast<int>(ranks_.size()));
    team_.RunAll([&](int64_t r) {
      Rank& rank = ranks_[r];
      std::unique_ptr<Communicator> end = std::move(world[r]);
      Communicator* host = end.get();
      try {
        rank.device = machine.open(static_cast<int>(r));
        rank.device->Activate();
        const Program* program = &request.programs[r];
        rank.carrier = machine.connect(*rank.device, *program, std::move(end));
        rank.executor = std::make_unique<Executor>(
            *rank.device, *rank.carrier, std::span(&program, 1), OptionsOf(machine, request),
            machine.make_kernel, request.read_state);
      } catch (const Aborted&) {
        throw;
      } catch (const std::exception& e) {
        if (rank.carrier) {
          rank.carrier->Abort(e.what());
        } else if (end) {
          host->Abort(e.what());
        }
        throw;
      }
    });
  }

  ~ManyGpusRunner() override {
    team_.Run([&](int64_t r) {
      if (ranks_[r].device) ranks_[r].device->Activate();
      ranks_[r] = Rank();
    });
  }

  std::byte* Input(int64_t rank, int buffer) override {
    return ranks_[rank].executor->Input(0, buffer);
  }

  void Step() override {
    team_.RunAll([&](int64_t r) {
      try {
        ranks_[r].executor->Step();
      } catch (const Aborted&) {
        throw;
      } catch (const std::exception& e) {
        ranks_[r].carrier->Abort(e.what());
        throw;
      }
    });
  }

  const std::byte* Fetch(int64_t rank, int buffer) override {
    const std::byte* data = nullptr;
    team_.RunAll([&](int64_t r) {
      if (r == rank) data = ranks_[r].executor->Fetch(0, buffer);
    });
    return data;
  }

  int64_t held_bytes() const override {
    int64_t n = 0;
    for (const Rank& r : ranks_) n += r.executor->held_bytes();
    return n;
  }
  int64_t collective_bytes() const override { return ranks_[0].executor->collective_bytes(); }

 private:
  struct Rank {
    Rank() = default;
    Rank(Rank&&) = default;
    // The executor goes first, then what it uses.
    Rank& operator=(Rank&& o) noexcept {
      executor = std::move(o.executor);
      carrier = std::move(o.carrier);
      device = std::move(o.device);
      return *this;
    }
    std::unique_ptr<Device> device;
    std::unique_ptr<Carrier> carrier;
    std::unique_ptr<Executor> executor;
  };
  std::vector<Rank> ranks_;
  RankTeam team_;
};

}  // namespace

std::unique_ptr<StepRunner> MakeRunnerOn(const Machine& machine, const RunnerRequest& request) {
  if (request.options.reference_kernels) {
    throw Diagnostic("E4324", ExitCode::kUsage, "--reference",
                     "the reference kernels run on the CPU only", "use --backend cpu");
  }
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

}  // namespace shardc::cuda
