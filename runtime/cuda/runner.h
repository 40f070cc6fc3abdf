// The ranks of a session on GPUs: what the plugin gives to MakeCudaRunner.
#pragma once

#include <functional>
#include <memory>

#include "runtime/backend.h"
#include "runtime/cuda/carrier.h"
#include "runtime/cuda/executor.h"

namespace shardc::cuda {

// What the runner needs of the machine; tests have one without a GPU.
struct Machine {
  int gpus = 0;
  std::function<std::unique_ptr<Device>(int gpu)> open;
  // A carrier between GPUs. Collective: all ranks of `host` call it, each from its own thread with
  // its own device active.
  std::function<std::unique_ptr<Carrier>(Device& device, const Program& program,
                                         std::unique_ptr<Communicator> host)>
      connect;
  KernelMaker make_kernel;
  bool capture = true;
  bool always_connect = false;  // one rank by itself too goes through `connect`: a test of it
};

// Throws Diagnostic E4321 (exit 74) when there are fewer GPUs than ranks, and no leave to share
// one.
std::unique_ptr<StepRunner> MakeRunnerOn(const Machine& machine, const RunnerRequest& request);

}  // namespace shardc::cuda
