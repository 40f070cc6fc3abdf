// Ranks on the CPU, as threads of this process or one by itself.
#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/abort.h"
#include "runtime/backend.h"
#include "runtime/groups.h"
#include "runtime/rank.h"
#include "runtime/thread_runner.h"

namespace shardc {
namespace {

// Empty where the system does not say.
std::vector<int> CoresOfThisProcess() {
  std::vector<int> cores;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &set)) cores.push_back(c);
  }
  return cores;
}

// The calling thread, and the OpenMP threads that it will start, to the rank's own cores.
void Pin(const std::vector<int>& cores, int64_t rank, int per_rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = 0; i < per_rank; ++i) {
    CPU_SET(cores[static_cast<size_t>(rank) * static_cast<size_t>(per_rank) + i], &set);
  }
  sched_setaffinity(0, sizeof(set), &set);  // without it the step is only slower
}

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
  const std::vector<int> cores = CoresOfThisProcess();
  const int have = cores.empty() ? static_cast<int>(std::thread::hardware_concurrency())
                                 : static_cast<int>(cores.size());
  const int per_rank = std::max(1, (threads > 0 ? threads : have) / n);
  // Only when the ranks take all cores: others may be at work on the rest.
  const bool pin = n > 1 && n * per_rank == static_cast<int>(cores.size());
  const std::vector<std::vector<int>> groups = GroupAxes(request.programs);
  return MakeThreadRunner(n, [&](int64_t rank, auto world) {
    if (pin) Pin(cores, rank, per_rank);
    return std::make_unique<CpuRank>(request, std::move(world), per_rank, groups);
  });
}

std::unique_ptr<StepRunner> MakeCpuRank(const RunnerRequest& request, ProcessSeat seat,
                                        int threads) {
  return std::make_unique<CpuRank>(request, std::move(seat.world), threads,
                                   GroupAxes(request.programs));
}

}  // namespace shardc
