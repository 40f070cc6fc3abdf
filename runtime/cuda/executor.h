// Runs the programs of the ranks that one host thread drives on one GPU: one rank, or with
// shared_device all of them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/carrier.h"
#include "runtime/cuda/rank_state.h"
#include "runtime/cuda/schedule.h"

namespace shardc::cuda {

struct ExecutorOptions {
  bool check_numerics = false;    // look at every result on the host; no graph
  bool capture = true;            // from the second step on, replay the step as one CUDA graph
  std::string choices_path = {};  // see ReadChoices; only rank 0 reads and writes it
  // What groups of instructions are tried in; null: they are not. Not with check_numerics, which
  // looks at each by itself. Must outlive the executor.
  EpilogueLibrary* epilogues = nullptr;
  // What makes one kernel of several instructions; null: each has its own. The same goes for it.
  JoinedKernelMaker make_joined = nullptr;
};

class Executor {
 public:
  // `programs`, `device` and `carrier` must outlive it. `stage_axes` are StageAxes of the programs
  // of all ranks. Collective over the ranks of the carrier.
  Executor(Device& device, Carrier& carrier, std::span<const Program* const> programs,
           std::vector<int> stage_axes, const ExecutorOptions& options,
           const KernelMaker& make_kernel, const StateReader& read_state);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // `local`: index into `programs`.
  std::byte* Input(size_t local, int buffer) { return ranks_[local]->Input(buffer); }
  // Enqueues one step and waits for it. Throws Diagnostic E4003 (a bad id), E4005 (a NaN), E4301,
  // Aborted.
  void Step();
  // Host memory, valid until the next Fetch or Step.
  const std::byte* Fetch(size_t local, int buffer);

  // Times the instructions of the next steps, which then run without a graph. By local rank.
  void StartProfile(int64_t steps);
  std::vector<std::vector<TimeSpan>> TakeProfile();

  int64_t held_bytes() const;
  int64_t workspace_bytes() const;  // of these
  // Of the last step, without what it waited for the GPU.
  double host_seconds() const { return host_seconds_; }
  // Whether steps are replayed as a graph; why not, when that was tried and did not work.
  bool captured() const { return graph_ != nullptr; }
  const std::string& capture_failure() const { return capture_failure_; }
  // Of the first rank's program.
  const Schedule& schedule() const { return stages_[0]->schedule; }

 private:
  // The ranks that run one body: all of them, or those of a stage of a pipeline.
  struct Stage {
    Schedule schedule;
    std::vector<size_t> ranks;  // local
    // Groups of local ranks by stream: indices into ranks_, in group order.
    std::vector<std::vector<std::vector<size_t>>> groups;
    size_t next = 0;  // the item of the step to enqueue
  };

  Stream origin() const { return ranks_[0]->stream(0); }
  void MakeStages(std::span<const Program* const> programs, const KernelMaker& make_kernel);
  void MakeGroups(Stage& stage);
  std::vector<int> FirstRanksOfStages() const;
  const Collective* CollectiveOf(const Stage& stage, size_t item) const;
  bool Advance(Stage& stage);
  Stage* OtherEnd(const Stage& stage, const Collective& c);
  void EnqueueTransfer(Stage& from, Stage& to);
  void TuneKernels();
  void Capture();
  void EnqueueStep();
  void EnqueueItem(Stage& stage, int item);
  void EnqueueKernels(const Stage& stage, int instruction);
  void EnqueueCollective(const Stage& stage, int item);
  void Enqueue(const Stage& stage, int instruction, const Collective& c,
               std::span<const Member> members);
  void CheckNumerics(const Stage& stage, int instruction);
  void Fork();
  void Join();
  void WaitForStep();
  void PollStep();

  Device& device_;
  Carrier& carrier_;
  ExecutorOptions options_;
  const std::vector<int> stage_axes_;
  std::vector<std::unique_ptr<Stage>> stages_;  // before the ranks, which refer to them
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::unique_ptr<OwnedEvent> fork_;
  struct OwnStream {
    Stream stream;
    std::unique_ptr<OwnedEvent> end;
  };
  std::vector<OwnStream> joins_;  // all but the origin
  Memory fetched_;
  StepGraph graph_ = nullptr;
  std::string capture_failure_;
  int64_t steps_ = 0;
  double host_seconds_ = 0, waited_ = 0;  // of the last step; for the GPU, since it was made
};

}  // namespace shardc::cuda
