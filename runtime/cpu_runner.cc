// Ranks on the CPU: one thread per rank, in one process.
#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/backend.h"
#include "runtime/in_process/in_process.h"
#include "runtime/rank.h"
#include "runtime/rank_team.h"

namespace shardc {
namespace {

int CoresOfThisProcess() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

class CpuRunner : public StepRunner {
 public:
  explicit CpuRunner(const RunnerRequest& request)
      : options_(request.options),
        ranks_(request.programs.size()),
        team_(static_cast<int64_t>(request.programs.size())) {
    int n = static_cast<int>(request.programs.size());
    int total = options_.threads > 0 ? options_.threads : CoresOfThisProcess();
    int per_rank = std::max(1, total / n);
    auto world = MakeInProcessWorld(n);
    team_.RunAll([&](int64_t r) {
      // The world's end moves in first, so that a failing constructor makes the others leave.
      std::unique_ptr<Communicator> end = std::move(world[r]);
      Communicator* raw = end.get();
      try {
        ranks_[r] = std::make_unique<Rank>(request.programs[r], options_, per_rank, std::move(end),
                                           request.read_state);
      } catch (const std::exception& e) {
        if (end) raw->Abort(e.what());
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
        ranks_[r]->Abort(e.what());
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

}  // namespace

std::unique_ptr<StepRunner> MakeCpuRunner(const RunnerRequest& request) {
  return std::make_unique<CpuRunner>(request);
}

}  // namespace shardc
