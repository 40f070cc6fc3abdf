// Collectives between GPUs by NCCL: one communicator per set of mesh axes.
#pragma once

#include <chrono>
#include <memory>

#include "runtime/cuda/carrier.h"

namespace shardc::cuda {

// Collective over the ranks of `host` (threads or processes), which carries the ids of the groups
// and the news of failures; every rank has its own device active. `groups` are the axes that all of
// them communicate over (GroupAxes of the set). `device` must outlive the carrier. Communicators do
// not block: a rank that fails while others wait for it makes them leave. Throws Diagnostic E4323
// on what NCCL refuses, Aborted on others' failures.
std::unique_ptr<Carrier> MakeNccl(Device& device, const Program& program,
                                  const std::vector<std::vector<int>>& groups,
                                  std::unique_ptr<Communicator> host);

// NCCL's aborts end in milliseconds, but some have hung: where a peer was killed or had no memory
// left, after an error of the GPU. Then WaitForAborted gives up, so that the failure is reported,
// and memory that was NCCL's is lost to the process.
inline constexpr std::chrono::seconds kAbortPatience{20};
// MakeNccl that waits so long for them.
std::unique_ptr<Carrier> MakePatientNccl(std::chrono::milliseconds patience, Device& device,
                                         const Program& program,
                                         const std::vector<std::vector<int>>& groups,
                                         std::unique_ptr<Communicator> host);

}  // namespace shardc::cuda
