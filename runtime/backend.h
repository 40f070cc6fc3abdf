// The seam between a session and what executes its ranks: CPU threads, or GPUs.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ir/program.h"
#include "runtime/communicator.h"
#include "runtime/session.h"

namespace shardc {

// All must outlive the runner, but for `read_state`, which is only called while the runner is made.
struct RunnerRequest {
  std::span<const Program> programs;  // one per rank; bodies differ by stage of a pipeline
  const SessionOptions& options;
  const StateReader& read_state;
};

// All ranks of a session. Called by one thread. What fails throws a Diagnostic; then the runner is
// dead.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Host memory of an input of a rank, for the caller to fill before the next step.
  virtual std::byte* Input(int64_t rank, int buffer) = 0;
  // Runs all ranks through their program once and waits for them.
  virtual void Step() = 0;
  // What a buffer holds after the last instruction, in host memory; valid until the next call of
  // any function.
  virtual const std::byte* Fetch(int64_t rank, int buffer) = 0;

  // Session::Noted, where ranks are processes.
  virtual int Noted() { return 0; }

  virtual int64_t held_bytes() const = 0;  // by all ranks
  // Of the ranks of this process; nothing where they are on the host.
  virtual std::optional<GpuMemory> gpu_memory() const { return std::nullopt; }

  // Of the last step, in this process: what the host did besides waiting for GPUs. 0 where ranks
  // are on the host.
  virtual double host_seconds() const { return 0; }

  // Records the next steps (RankProfile::Start). On GPUs these run without a CUDA graph, so that
  // they take longer than others.
  virtual void StartProfile(int64_t /*steps*/) {}
  // What was recorded, without programs and peaks; ends the recording.
  virtual std::vector<std::vector<TimeSpan>> TakeProfile() { return {}; }
  // What the ranks' other threads did in the steps that TakeProfile gave, per rank.
  virtual std::vector<std::vector<WorkerSpan>> TakeWorkers() { return {}; }
  // The mean over ranks, while all of them measure.
  virtual MachinePeaks MeasurePeaks() { return {}; }
};

// What one of several processes, each with one rank, has of the others.
struct ProcessSeat {
  std::unique_ptr<Communicator> world;  // of all ranks
  int local_rank = 0;                   // among the processes of this machine
};

std::unique_ptr<StepRunner> MakeCpuRunner(const RunnerRequest& request);
// The rank `world->rank()` alone, on `threads` threads. Collective over the world; a rank that
// throws makes the others leave. Functions of the result that take a rank only know this one; what
// it gives is of this rank alone.
std::unique_ptr<StepRunner> MakeCpuRank(const RunnerRequest& request, ProcessSeat seat,
                                        int threads);

// Throws Diagnostic E4302 (exit 74), in one line, when this build, this machine or its libraries
// have no CUDA.
std::unique_ptr<StepRunner> MakeCudaRunner(const RunnerRequest& request);
// GPUs that this process sees, at least one. Throws like MakeCudaRunner.
int CountCudaGpus();
// As MakeCpuRank, on a GPU of this machine.
std::unique_ptr<StepRunner> MakeCudaRank(const RunnerRequest& request, ProcessSeat seat);

// By SessionOptions::backend; an unknown name is E4304 (exit 2).
std::unique_ptr<StepRunner> MakeRunner(const RunnerRequest& request);

}  // namespace shardc
