// Ranks on the CPU: one thread per rank, in one process.
#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/abort.h"
#include "runtime/backend.h"
#include "runtime/groups.h"
#include "runtime/in_process/in_process.h"
#include "runtime/rank.h"
#include "runtime/rank_team.h"

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

class CpuRunner : public StepRunner {
 public:
  explicit CpuRunner(const RunnerRequest& request)
      : options_(request.options),
        ranks_(request.programs.size()),
        team_(static_cast<int64_t>(request.programs.size())) {
    int n = static_cast<int>(request.programs.size());
    const std::vector<int> cores = CoresOfThisProcess();
    int have = cores.empty() ? static_cast<int>(std::thread::hardware_concurrency())
                             : static_cast<int>(cores.size());
    int per_rank = std::max(1, (options_.threads > 0 ? options_.threads : have) / n);
    // Only when the ranks take all cores: others may be at work on the rest.
    bool pin = n > 1 && n * per_rank == static_cast<int>(cores.size());
    auto world = MakeInProcessWorld(n);
    const std::vector<std::vector<int>> groups = GroupAxes(request.programs);
    team_.RunAll([&](int64_t r) {
      if (pin) Pin(cores, r, per_rank);
      // The world's end moves in first, so that a failing constructor makes the others leave.
      std::unique_ptr<Communicator> end = std::move(world[r]);
      Communicator* raw = end.get();
      try {
        ranks_[r] = std::make_unique<Rank>(request.programs[r], options_, per_rank, std::move(end),
                                           groups, request.read_state);
      } catch (const std::exception& e) {
        if (end) AbortFor(*raw, e);
        throw;
      }
    });
  }

  ~CpuRunner() override {
    team_.Run([&](int64_t r) { ranks_[r].reset(); });
  }

  std::byte* Input(int64_t rank, int buffer) override { return ranks_[rank]->input(buffer); }

  void Step() override {
    team_.RunAll([&](int64_t r) {
      try {
        ranks_[r]->Step();
      } catch (const Aborted&) {
        throw;
      } catch (const std::exception& e) {
        AbortFor(*ranks_[r], e);
        throw;
      }
    });
  }

  const std::byte* Fetch(int64_t rank, int buffer) override { return ranks_[rank]->buffer(buffer); }

  int64_t held_bytes() const override {
    int64_t n = 0;
    for (const auto& r : ranks_) n += r->held_bytes();
    return n;
  }
  int64_t collective_bytes() const override { return ranks_[0]->collective_bytes(); }

  void StartProfile(int64_t steps) override {
    // Each on its own thread, near its memory.
    team_.RunAll([&](int64_t r) { ranks_[r]->StartProfile(steps); });
  }

  std::vector<std::vector<TimeSpan>> TakeProfile() override {
    std::vector<std::vector<TimeSpan>> spans;
    for (const auto& r : ranks_) spans.push_back(r->TakeProfile());
    return spans;
  }

  std::vector<std::vector<WorkerSpan>> TakeWorkers() override {
    std::vector<std::vector<WorkerSpan>> workers;
    for (const auto& r : ranks_) workers.push_back(r->TakeWorkers());
    return workers;
  }

  MachinePeaks MeasurePeaks() override {
    std::vector<MachinePeaks> peaks(ranks_.size());
    auto n = static_cast<int64_t>(ranks_.size());
    team_.RunAll([&](int64_t r) { peaks[r] = ranks_[r]->MeasurePeaks(n); });
    MachinePeaks mean;
    for (const MachinePeaks& p : peaks) {
      mean.gemm_flops += p.gemm_flops / static_cast<double>(n);
      mean.copy_bytes += p.copy_bytes / static_cast<double>(n);
    }
    return mean;
  }

 private:
  SessionOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  RankTeam team_;
};

class CpuRank : public StepRunner {
 public:
  CpuRank(const RunnerRequest& request, ProcessSeat seat, int threads)
      : program_(request.programs[static_cast<size_t>(seat.world->rank())]),
        rank_(program_, request.options, threads, std::move(seat.world),
              GroupAxes(request.programs), request.read_state) {}

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
  int64_t collective_bytes() const override { return rank_.collective_bytes(); }
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
  return std::make_unique<CpuRunner>(request);
}

std::unique_ptr<StepRunner> MakeCpuRank(const RunnerRequest& request, ProcessSeat seat,
                                        int threads) {
  return std::make_unique<CpuRank>(request, std::move(seat), threads);
}

}  // namespace shardc
