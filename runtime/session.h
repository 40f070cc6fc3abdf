// Runs the programs of a plan: all ranks in one process, on CPU threads or on GPUs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/host_tensor.h"
#include "ir/program.h"
#include "runtime/profile.h"

namespace shardc {

class Processes;

struct SessionOptions {
  bool reference_kernels = false;  // the naive oracle instead of the fast kernels
  bool check_numerics = false;     // stop at the first instruction that makes a NaN
  bool poison = false;             // for tests: fill the arena with NaN bytes before every step
  int threads = 0;                 // of all ranks together; 0: the cores of this process
  std::string backend = "cpu";     // or "cuda"
  bool shared_device = false;      // cuda: all ranks on one GPU, instead of one GPU for each
  bool may_vary = false;           // cuda: KernelRequest::may_vary
  std::string cache_folder;        // cuda: keeps what was found by timing; empty: nothing is timed
  Processes* processes = nullptr;  // ranks are processes, and this one is rank 0 (process_runner.h)
  std::function<int()> noted;      // a signal that came to this process, or 0; empty: none
};

// Fills a rank's shard of a state (local, physical layout) before the first step; `local` is zero,
// and so stays its padding.
using StateReader = std::function<void(int64_t rank, const NamedBuffer& state, const Buffer& buffer,
                                       std::byte* local)>;

// Of the GPUs' memory, what is not the plan's own, in bytes.
struct GpuMemory {
  int64_t workspace = 0;  // of products and attention; part of held_bytes
  // What the GPUs have had taken since the first rank came to them, beside held_bytes: by cuBLASLt,
  // cuDNN and NCCL, for code and graphs; and by others who use the same GPU.
  int64_t libraries = 0;
};

// Wrong inputs and failing ranks throw Diagnostic: E4001 (missing or unknown input), E4002 (dtype
// or shape), E4003 (id out of range), E4005 (a NaN, with check_numerics), E4006 (any other failure
// of a rank), E4010 (integers that overflow or are divided by zero), each naming rank, instruction,
// op and site where there is one. After a failing step the session is dead.
class Session {
 public:
  // `programs`: one per rank of the mesh, in rank order; must outlive the session.
  Session(std::span<const Program> programs, const SessionOptions& options,
          const StateReader& read_state);
  ~Session();

  // `value` is the global tensor.
  void SetInput(const std::string& name, const HostTensor& value);
  std::vector<std::string> InputNames() const;
  TensorType InputType(const std::string& name) const;
  // Inputs that were not set yet.
  std::vector<std::string> MissingInputs() const;
  // Runs all ranks through their program once.
  void Step();
  // The largest that SessionOptions::noted gives in any of the processes, between two steps.
  int Noted();
  // Global tensors, put together from the ranks' shards, and from pieces where the plan keeps a
  // tensor in several.
  HostTensor Output(const std::string& name) const;
  TensorType OutputType(const std::string& name) const;
  std::vector<std::string> OutputNames() const;
  HostTensor State(const std::string& name) const;
  TensorType StateType(const std::string& name) const;
  std::vector<std::string> StateNames() const;

  int64_t arena_bytes() const;       // of one rank, the largest
  int64_t peak_bytes() const;        // all ranks: arenas, states, inputs, what kernels hold
  int64_t collective_bytes() const;  // handed to collectives in one step by rank 0
  std::optional<GpuMemory> gpu_memory() const;  // StepRunner::gpu_memory
  // Of the last step: what the host did besides waiting for GPUs. 0 where ranks are on the host.
  double host_seconds() const;
  // Records when each instruction runs, in the next steps; of many, only in the first ones.
  void StartProfile(int64_t steps);
  // Ends the recording. `peaks` is left to the caller.
  Profile TakeProfile();
  // Takes some 0.3 s.
  MachinePeaks MeasurePeaks();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardc
