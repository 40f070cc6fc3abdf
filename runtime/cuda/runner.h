// The ranks of a session on GPUs: what the plugin gives to MakeCudaRunner.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/backend.h"
#include "runtime/cuda/carrier.h"
#include "runtime/cuda/executor.h"

namespace shardc::cuda {

// Different for any two GPUs of all machines.
using GpuIdentity = std::array<uint8_t, 16>;

// What the runner needs of the machine; tests have one without a GPU.
struct Machine {
  int gpus = 0;
  std::function<std::unique_ptr<Device>(int gpu)> open;
  std::function<GpuIdentity(int gpu)> identify;
  // A carrier between GPUs, for groups over these lists of axes. Collective: all ranks of `host`
  // call it, each from its own thread or process with its own device active.
  std::function<std::unique_ptr<Carrier>(Device& device, const Program& program,
                                         const std::vector<std::vector<int>>& groups,
                                         std::unique_ptr<Communicator> host)>
      connect;
  KernelMaker make_kernel;
  EpilogueLibrary* epilogues = nullptr;     // see ExecutorOptions
  JoinedKernelMaker make_joined = nullptr;  // see ExecutorOptions
  bool capture = true;
  // Also where ranks on several GPUs are threads of this process: NCCL's guide says that their
  // launches of graphs may deadlock.
  bool capture_threads = false;
  bool always_connect = false;  // one rank by itself too goes through `connect`: a test of it
};

// Throws Diagnostic E4321 (exit 74) when there are fewer GPUs than ranks, and no leave to share
// one.
std::unique_ptr<StepRunner> MakeRunnerOn(const Machine& machine, const RunnerRequest& request);

// MakeCudaRank. On process k of a machine: GPU k, or the only one that it sees. Throws Diagnostic
// E4321 (exit 74) when there is no GPU k, E4327 (exit 74) when two ranks have the same one.
std::unique_ptr<StepRunner> MakeRankOn(const Machine& machine, const RunnerRequest& request,
                                       ProcessSeat seat);

}  // namespace shardc::cuda
