// Ranks on the CPU, as threads of this process or one by itself.
#include <algorithm>
#include <span>
#include <vector>

#include "runtime/abort.h"
#include "runtime/backend.h"
#include "runtime/groups.h"
#include "runtime/processors.h"
#include "runtime/rank.h"
#include "runtime/thread_runner.h"

namespace shardc {
namespace {

class CpuRank : public StepRunner {
 public:
  CpuRank(const RunnerRequest& request, std::unique_ptr<Communicator> world, int threads,
          const std::vector<std::vector<int>>& groups)
      : program_(request.programs[world->rank()]),
        rank_(program_, request.options, threads, std::move(world), groups, request.read_state) {}

  std::byte* Input(int64_t, int buffer) override { return rank_.input(buffer); }
  void Step() override {
    try {
      rank_.Step();
    } catch (const std::exception& e) {
      AbortFor(rank_, e);
      throw;
    }
  }
  const std::byte* Fetch(int64_t, int buffer) override { return rank_.buffer(buffer); }
  int64_t held_bytes() const override { return rank_.held_bytes(); }
  void StartProfile(int64_t steps) override { rank_.StartProfile(steps); }
  std::vector<std::vector<TimeSpan>> TakeProfile() override { return {rank_.TakeProfile()}; }
  std::vector<std::vector<WorkerSpan>> TakeWorkers() override { return {rank_.TakeWorkers()}; }
  MachinePeaks MeasurePeaks() override { return rank_.MeasurePeaks(program_.mesh.num_ranks()); }

 private:
  const Program& program_;
  Rank rank_;
};

}  // namespace

std::unique_ptr<StepRunner> MakeCpuRunner(const RunnerRequest& request) {
  const int n = static_cast<int>(request.programs.size()), threads = request.options.threads;
  const std::vector<int> cores = UsableProcessors();
  const int have = CountUsableProcessors();
  const int per_rank = std::max(1, (threads > 0 ? threads : have) / n);
  // Only when the ranks take all cores: others may be at work on the rest.
  const bool pin = n > 1 && n * per_rank == static_cast<int>(cores.size());
  const std::vector<std::vector<int>> groups = GroupAxes(request.programs);
  return MakeThreadRunner(n, [&](int64_t rank, auto world) {
    if (pin) RunOn(std::span(cores).subspan(static_cast<size_t>(rank * per_rank), per_rank));
    return std::make_unique<CpuRank>(request, std::move(world), per_rank, groups);
  });
}

std::unique_ptr<StepRunner> MakeCpuRank(const RunnerRequest& request, ProcessSeat seat,
                                        int threads) {
  return std::make_unique<CpuRank>(request, std::move(seat.world), threads,
                                   GroupAxes(request.programs));
}

}  // namespace shardc
