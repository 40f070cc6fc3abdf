#include "runtime/thread_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/in_process/in_process.h"
#include "runtime/rank_team.h"

namespace shardc {
namespace {

class ThreadRunner : public StepRunner {
 public:
  ThreadRunner(int64_t ranks, const RankMaker& make)
      : ranks_(static_cast<size_t>(ranks)), team_(ranks) {
    auto world = MakeInProcessWorld(static_cast<int>(ranks));
    try {
      team_.RunAll([&](int64_t r) { ranks_[r] = make(r, std::move(world[r])); });
    } catch (...) {
      DropRanks();
      throw;
    }
  }
  ~ThreadRunner() override { DropRanks(); }

  std::byte* Input(int64_t rank, int buffer) override { return ranks_[rank]->Input(rank, buffer); }
  void Step() override {
    team_.RunAll([&](int64_t r) { ranks_[r]->Step(); });
  }
  const std::byte* Fetch(int64_t rank, int buffer) override {
    return ranks_[rank]->Fetch(rank, buffer);
  }

  int64_t held_bytes() const override {
    int64_t n = 0;
    for (const auto& r : ranks_) n += r->held_bytes();
    return n;
  }
  std::optional<GpuMemory> gpu_memory() const override {
    std::optional<GpuMemory> sum;
    for (const auto& r : ranks_) {
      const std::optional<GpuMemory> one = r->gpu_memory();
      if (!one) continue;
      if (!sum) sum.emplace();
      sum->workspace += one->workspace;
      sum->libraries += one->libraries;
    }
    return sum;
  }
  double host_seconds() const override {
    double longest = 0;
    for (const auto& r : ranks_) longest = std::max(longest, r->host_seconds());
    return longest;
  }

  void StartProfile(int64_t steps) override {
    // Each on its own thread, near its memory.
    team_.RunAll([&](int64_t r) { ranks_[r]->StartProfile(steps); });
  }
  std::vector<std::vector<TimeSpan>> TakeProfile() override {
    return OfAll(&StepRunner::TakeProfile);
  }
  std::vector<std::vector<WorkerSpan>> TakeWorkers() override {
    return OfAll(&StepRunner::TakeWorkers);
  }
  MachinePeaks MeasurePeaks() override {
    std::vector<MachinePeaks> peaks(ranks_.size());
    team_.RunAll([&](int64_t r) { peaks[r] = ranks_[r]->MeasurePeaks(); });
    const auto n = static_cast<double>(peaks.size());
    MachinePeaks mean;
    for (const MachinePeaks& p : peaks) {
      mean.gemm_flops += p.gemm_flops / n;
      mean.copy_bytes += p.copy_bytes / n;
    }
    return mean;
  }

 private:
  // What each rank gives of itself, where it has anything to give.
  template <typename T>
  std::vector<T> OfAll(std::vector<T> (StepRunner::*take)()) {
    std::vector<T> all;
    for (const auto& r : ranks_) std::ranges::move((r.get()->*take)(), std::back_inserter(all));
    return all;
  }

  // All at once: what connects GPUs is closed by all ranks together.
  void DropRanks() {
    team_.Run([&](int64_t r) { ranks_[r].reset(); });
  }

  std::vector<std::unique_ptr<StepRunner>> ranks_;
  RankTeam team_;
};

}  // namespace

std::unique_ptr<StepRunner> MakeThreadRunner(int64_t ranks, const RankMaker& make) {
  return std::make_unique<ThreadRunner>(ranks, make);
}

}  // namespace shardc
