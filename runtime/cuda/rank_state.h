// One rank of the CUDA backend: its memory, streams, events and kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/program.h"
#include "runtime/cuda/carrier.h"
#include "runtime/cuda/epilogue_kernel.h"
#include "runtime/cuda/joined.h"
#include "runtime/cuda/kernel_choices.h"
#include "runtime/cuda/owned.h"
#include "runtime/cuda/schedule.h"
#include "runtime/cuda/step_timer.h"
#include "runtime/session.h"

namespace shardc::cuda {

using KernelMaker = std::function<std::unique_ptr<CudaKernel>(const KernelRequest&)>;

// Where everything of a rank lies in its one allocation, in bytes from its start.
struct MemoryLayout {
  int64_t arena = 0;
  std::map<std::pair<Space, std::string>, int64_t> named;  // states and inputs
  int64_t constants = 0;
  int64_t bytes = 0;
};
inline constexpr int64_t kDeviceAlignment = 256;
MemoryLayout LayOut(const Program& program);

class RankState {
 public:
  // Takes memory and makes the kernels. `epilogues` may be null where the schedule has no groups,
  // and `make_joined` where it joins nothing; the former must outlive the rank, and so must
  // `carrier`. Throws Diagnostic E4322 for an op without a CUDA kernel.
  RankState(Device& device, Carrier& carrier, const Program& program, const Schedule& schedule,
            const KernelMaker& make_kernel, const JoinedKernelMaker& make_joined,
            EpilogueLibrary* epilogues);
  // Before the states are loaded: what it times may overwrite everything.
  void TuneKernels(KernelChoices& choices);
  // Launches every kernel once, on zeros, and waits; before the states are loaded.
  void LaunchKernelsOnce();
  // Reads the states and copies them, with the constants, to the device.
  void LoadStates(const StateReader& read_state);

  const Program& program() const { return program_; }
  Stream stream(int i) const { return streams_[i].get(); }
  std::byte* memory(int buffer) const { return addresses_[buffer]; }

  std::byte* Input(int buffer);
  // Enqueues copies of the inputs that changed.
  void UploadInputs(Stream s);
  // Makes the stream of an item of the schedule wait for what it must follow; and lets later ones
  // wait for it.
  void Before(int item);
  void After(int item);
  // What of the step the instruction does: nothing where the product of its group, or the first
  // that it is joined to, does its work.
  void EnqueueKernel(int instruction);
  StepTimer& timer() { return timer_; }
  Member MemberOf(int instruction, int stream) const;
  // Before a step, while none runs.
  void ClearFaults();
  // After the step. Throws Diagnostic E4003 for the first instruction that met a wrong index.
  void CheckFaults();

  int64_t held_bytes() const;
  int64_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  void Place(Carrier& carrier);
  void MakeKernels(const KernelMaker& make_kernel, const JoinedKernelMaker& make_joined);
  void MakeGroups(EpilogueLibrary& library);
  // Of all that have no scratch that is large enough.
  int64_t WorkspaceOfKernels() const;
  // With the instruction's scratch as work memory where the kernel needs no more.
  Launch LaunchOf(int instruction, const CudaKernel& kernel) const;
  void TakeWorkspace(int64_t bytes);
  TensorView View(int buffer) const;
  void MakeRoomForFaults();

  struct Prepared {
    std::vector<TensorView> in, out;     // what the kernel's call refers to
    std::unique_ptr<CudaKernel> kernel;  // null: a collective; or joined to one that stands before
    int group = -1;                      // of the schedule
    Fault* fault = nullptr;              // null: it has no indices that could be wrong
  };
  struct Staged {
    std::byte* to = nullptr;
    Memory host;
    bool changed = false;
  };

  Device& device_;
  const Program& program_;
  const Schedule& schedule_;
  MemoryLayout layout_;
  Memory all_;
  std::vector<std::byte*> addresses_;  // by buffer
  std::map<std::string, Staged> inputs_;
  std::vector<OwnedStream> streams_;
  std::vector<std::unique_ptr<OwnedEvent>> events_;   // by item; null where nothing waits
  std::vector<Prepared> prepared_;                    // by instruction
  std::vector<std::unique_ptr<RivalKernel>> groups_;  // beside the kernels of their instructions
  Memory workspace_;
  // On the host, where kernels write what they rarely have to, so that no step is longer by a copy.
  Memory faults_;
  std::vector<size_t> indexed_;  // the instructions that may have one, in their order
  bool faults_clear_ = false;
  Launch launch_;
  StepTimer timer_;
};

}  // namespace shardc::cuda
