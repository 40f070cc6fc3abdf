#include "runtime/process_runner.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>

#include "ir/checksum.h"
#include "ir/diagnostic.h"
#include "runtime/abort.h"
#include "runtime/describe.h"
#include "runtime/processes.h"
#include "runtime/processors.h"

namespace shardc {
namespace {

// What rank 0 asks of all.
struct Order {
  enum Kind : int64_t {
    kInput,
    kStep,
    kNoted,
    kFetch,
    kHeld,
    kStartProfile,
    kTakeProfile,
    kTakeWorkers,
    kPeaks,
    kEnd
  };
  int64_t kind = kEnd;
  int64_t rank = 0, buffer = 0;  // kInput, kFetch
  int64_t steps = 0;             // kStartProfile
};

// The processors of this process, shared evenly with the ranks that may use the same ones.
int ThreadsOf(Communicator& world) {
  struct Place {
    std::array<char, 128> host{};
    std::array<char, 32> processors{};  // their checksum: sets have no largest size
    bool operator==(const Place&) const = default;
  } mine;
  gethostname(mine.host.data(), mine.host.size() - 1);
  const std::string checksum = ChecksumOf(Join(UsableProcessors(), ","));
  checksum.copy(mine.processors.data(), mine.processors.size());
  std::vector<Place> all(static_cast<size_t>(world.size()));
  world.AllGather(&mine, all.data(), sizeof(Place), DType::kBool);
  const auto same = std::count(all.begin(), all.end(), mine);
  return std::max(1, CountUsableProcessors() / static_cast<int>(same));
}

int64_t BytesOf(const std::vector<WorkerSpan>& workers) {
  static_assert(std::is_trivially_copyable_v<WorkerSpan>);
  return static_cast<int64_t>(workers.size() * sizeof(WorkerSpan));
}

// This process's rank, and the way to the others.
class Local {
 public:
  explicit Local(const RunnerRequest& request) : own_noted_(request.options.noted) {
    Processes& processes = *request.options.processes;
    const int n = static_cast<int>(request.programs.size());
    ProcessSeat seat{processes.MakeWorld(n), processes.local_rank()};
    SHARDC_CHECK(seat.world && processes.size() == n);
    // What fails from here on must reach the others.
    Guarded([&] {
      control_ = seat.world->Split(0, seat.world->rank());
      rank_ = MakeRank(request, std::move(seat));
    });
  }

  StepRunner& rank() { return *rank_; }
  Communicator& control() { return *control_; }
  const std::byte* Fetch(int buffer) { return rank_->Fetch(control_->rank(), buffer); }
  std::byte* Input(int buffer) { return rank_->Input(control_->rank(), buffer); }

  // Runs `body`; a failure of another rank becomes a Diagnostic, one of this rank reaches all.
  template <typename Body>
  void Guarded(const Body& body) {
    try {
      body();
    } catch (const Aborted& e) {
      throw Diagnostic("E4311", ExitCode::kPeerLost, StrCat("rank ", e.rank()), e.reason());
    } catch (const std::exception& e) {
      if (control_) AbortFor(*control_, e);
      throw;
    }
  }

  void Step() {
    NameStep(++steps_, [&] { rank_->Step(); });
    control_->Barrier();
  }

  void Note() {
    int64_t largest = own_noted_ ? own_noted_() : 0;
    control_->AllReduce(&largest, &largest, 1, DType::kI64, ReduceOp::kMax);
    noted_ = static_cast<int>(largest);
  }
  // By any rank, when all were asked last.
  int noted() const { return noted_; }

  // The sum over all ranks.
  int64_t Sum(int64_t mine) {
    control_->AllReduce(&mine, &mine, 1, DType::kI64, ReduceOp::kSum);
    return mine;
  }
  // The spans of this rank: of as many steps on all.
  std::vector<TimeSpan> TakeProfile() {
    auto ranks = rank_->TakeProfile();
    return ranks.empty() ? std::vector<TimeSpan>() : std::move(ranks[0]);
  }
  std::vector<WorkerSpan> TakeWorkers() {
    auto ranks = rank_->TakeWorkers();
    return ranks.empty() ? std::vector<WorkerSpan>() : std::move(ranks[0]);
  }
  MachinePeaks MeasurePeaks() {
    MachinePeaks mine = rank_->MeasurePeaks();
    std::array<double, 2> sum = {mine.gemm_flops, mine.copy_bytes};
    control_->AllReduce(sum.data(), sum.data(), 2, DType::kF64, ReduceOp::kSum);
    return {sum[0] / control_->size(), sum[1] / control_->size()};
  }

 private:
  static std::unique_ptr<StepRunner> MakeRank(const RunnerRequest& request, ProcessSeat seat) {
    const SessionOptions& o = request.options;
    if (o.backend == "cuda") return MakeCudaRank(request, std::move(seat));
    const int n = static_cast<int>(request.programs.size());
    const int threads = o.threads > 0 ? std::max(1, o.threads / n) : ThreadsOf(*seat.world);
    return MakeCpuRank(request, std::move(seat), threads);
  }

  int64_t steps_ = 0;
  std::function<int()> own_noted_;
  int noted_ = 0;
  std::unique_ptr<Communicator> control_;
  std::unique_ptr<StepRunner> rank_;
};

class ProcessRunner final : public StepRunner {
 public:
  explicit ProcessRunner(const RunnerRequest& request)
      : programs_(request.programs), local_(request) {}

  ~ProcessRunner() override {
    // While an exception unwinds, or after a failure, the others leave by themselves.
    if (std::uncaught_exceptions() > 0) return;
    try {
      Tell({Order::kEnd});
    } catch (const std::exception&) {
    }
  }

  std::byte* Input(int64_t rank, int buffer) override {
    if (rank == 0) return local_.Input(buffer);
    std::vector<std::byte>& copy = inputs_[{rank, buffer}];
    copy.resize(static_cast<size_t>(Bytes(rank, buffer)));
    return copy.data();
  }

  void Step() override {
    local_.Guarded([&] {
      for (const auto& [where, bytes] : inputs_) {
        Tell({Order::kInput, where.first, where.second});
        local_.control().Send(bytes.data(), static_cast<int64_t>(bytes.size()), DType::kBool,
                              static_cast<int>(where.first));
      }
      inputs_.clear();
      Tell({Order::kStep});
      local_.Step();
    });
  }

  int Noted() override {
    local_.Guarded([&] {
      Tell({Order::kNoted});
      local_.Note();
    });
    return local_.noted();
  }

  const std::byte* Fetch(int64_t rank, int buffer) override {
    if (rank == 0) return local_.Fetch(buffer);
    local_.Guarded([&] {
      Tell({Order::kFetch, rank, buffer});
      fetched_.resize(static_cast<size_t>(Bytes(rank, buffer)));
      local_.control().Recv(fetched_.data(), static_cast<int64_t>(fetched_.size()), DType::kBool,
                            static_cast<int>(rank));
    });
    return fetched_.data();
  }

  int64_t held_bytes() const override {
    int64_t sum = 0;
    local_.Guarded([&] {
      Tell({Order::kHeld});
      sum = local_.Sum(local_.rank().held_bytes());
    });
    return sum;
  }
  std::optional<GpuMemory> gpu_memory() const override { return local_.rank().gpu_memory(); }
  double host_seconds() const override { return local_.rank().host_seconds(); }

  void StartProfile(int64_t steps) override {
    local_.Guarded([&] { Tell({Order::kStartProfile, 0, 0, steps}); });
    local_.rank().StartProfile(steps);
  }

  std::vector<std::vector<TimeSpan>> TakeProfile() override {
    std::vector<std::vector<TimeSpan>> spans;
    local_.Guarded([&] {
      Tell({Order::kTakeProfile});
      spans.push_back(local_.TakeProfile());
      const size_t own = programs_[0].instructions.size();
      const size_t steps = own == 0 ? 0 : spans[0].size() / own;
      for (size_t r = 1; r < programs_.size(); ++r) {
        spans.emplace_back(steps * programs_[r].instructions.size());
        local_.control().Recv(spans[r].data(), 2 * static_cast<int64_t>(spans[r].size()),
                              DType::kI64, static_cast<int>(r));
      }
    });
    return spans;
  }

  std::vector<std::vector<WorkerSpan>> TakeWorkers() override {
    std::vector<std::vector<WorkerSpan>> workers;
    local_.Guarded([&] {
      Tell({Order::kTakeWorkers});
      workers.push_back(local_.TakeWorkers());
      for (size_t r = 1; r < programs_.size(); ++r) {
        int64_t count = 0;
        local_.control().Recv(&count, 1, DType::kI64, static_cast<int>(r));
        workers.emplace_back(static_cast<size_t>(count));
        if (count == 0) continue;
        local_.control().Recv(workers[r].data(), BytesOf(workers[r]), DType::kBool,
                              static_cast<int>(r));
      }
    });
    return workers;
  }

  MachinePeaks MeasurePeaks() override {
    MachinePeaks peaks;
    local_.Guarded([&] {
      Tell({Order::kPeaks});
      peaks = local_.MeasurePeaks();
    });
    return peaks;
  }

 private:
  void Tell(Order order) const {
    local_.control().Broadcast(&order, sizeof(order) / sizeof(int64_t), DType::kI64, 0);
  }
  int64_t Bytes(int64_t rank, int buffer) const { return programs_[rank].buffers[buffer].bytes; }

  std::span<const Program> programs_;
  mutable Local local_;  // asking the others changes nothing here
  std::map<std::pair<int64_t, int>, std::vector<std::byte>> inputs_;  // of others, not sent yet
  std::vector<std::byte> fetched_;
};

// Returns whether more orders come.
bool Obey(const Order& order, const Program& program, Local& local) {
  StepRunner& rank = local.rank();
  Communicator& control = local.control();
  const int buffer = static_cast<int>(order.buffer);
  const bool mine = order.rank == control.rank();
  auto bytes = [&] { return program.buffers[buffer].bytes; };
  switch (order.kind) {
    case Order::kInput:
      if (mine) control.Recv(local.Input(buffer), bytes(), DType::kBool, 0);
      return true;
    case Order::kStep:
      local.Step();
      return true;
    case Order::kNoted:
      local.Note();
      return true;
    case Order::kFetch:
      if (mine) control.Send(local.Fetch(buffer), bytes(), DType::kBool, 0);
      return true;
    case Order::kHeld:
      local.Sum(rank.held_bytes());
      return true;
    case Order::kStartProfile:
      rank.StartProfile(order.steps);
      return true;
    case Order::kTakeProfile: {
      const std::vector<TimeSpan> spans = local.TakeProfile();
      control.Send(spans.data(), 2 * static_cast<int64_t>(spans.size()), DType::kI64, 0);
      return true;
    }
    case Order::kTakeWorkers: {
      const std::vector<WorkerSpan> workers = local.TakeWorkers();
      const auto count = static_cast<int64_t>(workers.size());
      control.Send(&count, 1, DType::kI64, 0);
      if (count > 0) control.Send(workers.data(), BytesOf(workers), DType::kBool, 0);
      return true;
    }
    case Order::kPeaks:
      local.MeasurePeaks();
      return true;
    default:
      return false;
  }
}

}  // namespace

std::unique_ptr<StepRunner> MakeProcessRunner(const RunnerRequest& request) {
  return std::make_unique<ProcessRunner>(request);
}

int ServeProcessRunner(const RunnerRequest& request) {
  Local local(request);
  const Program& program = request.programs[request.options.processes->rank()];
  local.Guarded([&] {
    Order order;
    do {
      local.control().Broadcast(&order, sizeof(order) / sizeof(int64_t), DType::kI64, 0);
    } while (Obey(order, program, local));
  });
  return local.noted();
}

}  // namespace shardc
