// One rank of a session: its memory, its prepared kernels, its communicators.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ir/program.h"
#include "runtime/communicator.h"
#include "runtime/cpu/kernels/team_trace.h"
#include "runtime/kernel.h"
#include "runtime/profile.h"
#include "runtime/session.h"

namespace shardc {

// Memory aligned for vector loads, zeroed by the system.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  // Throws Diagnostic E4007 (exit 6) when it cannot be had.
  explicit AlignedMemory(int64_t bytes, const std::string& what);
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Unmap {
    int64_t bytes;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Unmap> data_{nullptr, Unmap{0}};
  int64_t bytes_ = 0;
};

class Rank {
 public:
  // Called on the rank's own thread. `world` is this rank's end of all ranks; `groups` are the axes
  // that all of them communicate over (GroupAxes of the set).
  Rank(const Program& program, const SessionOptions& options, int threads,
       std::unique_ptr<Communicator> world, const std::vector<std::vector<int>>& groups,
       const StateReader& read_state);

  void Step();
  // Makes all other ranks leave.
  void Abort(const std::string& reason) noexcept;

  std::byte* input(int buffer) { return addresses_[buffer]; }
  const std::byte* buffer(int id) const { return addresses_[id]; }
  int64_t held_bytes() const;
  void StartProfile(int64_t steps);
  std::vector<TimeSpan> TakeProfile() { return profile_.Take(); }
  std::vector<WorkerSpan> TakeWorkers() { return std::exchange(workers_, {}); }
  // Takes some 0.3 s; `ranks` measure together.
  MachinePeaks MeasurePeaks(int64_t ranks) const;

 private:
  void AllocateBuffers(const StateReader& read_state);
  void PrepareCommunicators(const std::vector<std::vector<int>>& groups);
  void PrepareInstructions();
  std::unique_ptr<Kernel> PrepareCollective(size_t instruction);
  std::unique_ptr<Kernel> PrepareTransfer(size_t instruction, Communicator* group);
  TensorView View(int buffer) const;
  void CheckNumerics(size_t instruction) const;
  // Runs `body`; whatever it throws names the instruction.
  template <typename Body>
  void Described(size_t instruction, const Body& body) const;
  // Runs an instruction with its span around it, and notes its workers.
  void RunTraced(size_t instruction, TimeSpan& span);
  void Run(size_t instruction);
  // Waits for the sends that must be done before the instruction, and notes it if `traced`.
  void FinishSends(size_t instruction, bool traced);

  const Program& program_;
  const SessionOptions& options_;
  int threads_;
  AlignedMemory arena_;
  std::vector<AlignedMemory> owned_;   // states and inputs
  std::vector<std::byte*> addresses_;  // by buffer
  // After the memory, so that they go first: a peer may still read what is sent.
  std::unique_ptr<Communicator> world_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
  struct Step_ {
    std::vector<TensorView> in, out;  // what the kernel's call refers to
    std::unique_ptr<Kernel> kernel;
    Communicator* sends = nullptr;  // what the instruction begins to send on
    std::vector<int64_t> tickets;   // of what it has begun to send
  };
  std::vector<Step_> steps_;
  std::vector<std::vector<int>> sends_to_finish_;
  RankProfile profile_;
  cpu::TeamTrace teams_;  // of the instruction that runs
  std::vector<WorkerSpan> workers_;
  size_t profiled_steps_ = 0;
};

}  // namespace shardc
