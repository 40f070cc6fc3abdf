// The small part of CUDA that the executor uses: one GPU of this process. The real one calls the
// CUDA runtime; tests have one that records.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "runtime/communicator.h"
#include "runtime/cuda/cuda_kernel.h"

struct CUevent_st;
struct CUgraphExec_st;

namespace shardc::cuda {

using Stream = CUstream_st*;
using Event = CUevent_st*;
using StepGraph = CUgraphExec_st*;

// targets[t][i] = sources[0][i] op sources[1][i] op ... for every target t, in this order; floats
// narrower than f32 are summed in f32 and rounded once. A target may be a source, but must not
// overlap one in another way.
struct Reduction {
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  int64_t count = 0;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;  // or kMax
};
// The most sources, and the most targets, of a Reduction: they travel as arguments of a kernel.
inline constexpr int kMaxReductionRanks = 64;

// Calls enqueue and return unless they say otherwise; what CUDA refuses throws Diagnostic E4301.
// One thread at a time.
class Device {
 public:
  virtual ~Device() = default;

  // Makes this the GPU of the calling thread; before any other call from that thread.
  virtual void Activate() = 0;
  // Aligned to 256 bytes, contents undefined. Throws Diagnostic E4007 (exit 6) naming `what` when
  // there is not enough.
  virtual std::byte* Allocate(int64_t bytes, const std::string& what) = 0;
  virtual void Free(std::byte* p) noexcept = 0;
  // Of the GPU's memory, what anybody has taken.
  virtual int64_t UsedBytes() = 0;
  // Host memory that copies reach without another copy, and kernels as they reach the GPU's; what
  // they wrote is there once a stream that waited for them is synchronized.
  virtual std::byte* AllocateHost(int64_t bytes, const std::string& what) = 0;
  virtual void FreeHost(std::byte* p) noexcept = 0;

  // `urgent`: its kernels go before those of other streams.
  virtual Stream MakeStream(bool urgent) = 0;
  virtual void DestroyStream(Stream s) noexcept = 0;
  virtual Event MakeEvent() = 0;
  // One whose time can be asked for; slower to record.
  virtual Event MakeTimedEvent() = 0;
  // Between what two of them stand for; both are done.
  virtual double Milliseconds(Event from, Event to) = 0;
  virtual void DestroyEvent(Event e) noexcept = 0;
  // The event now stands for all that `s` was given so far.
  virtual void Record(Event e, Stream s) = 0;
  // What `s` is given from now on begins after what the event stands for at this call.
  virtual void Wait(Stream s, Event e) = 0;
  // Whether all that `s` was given is done.
  virtual bool Done(Stream s) = 0;
  // Blocks until it is.
  virtual void Synchronize(Stream s) = 0;

  virtual void CopyIn(std::byte* to, const std::byte* from_host, int64_t bytes, Stream s) = 0;
  virtual void CopyOut(std::byte* to_host, const std::byte* from, int64_t bytes, Stream s) = 0;
  virtual void Copy(std::byte* to, const std::byte* from, int64_t bytes, Stream s) = 0;
  virtual void Fill(std::byte* to, int byte, int64_t bytes, Stream s) = 0;
  virtual void Reduce(const Reduction& r, Stream s) = 0;

  // What kernels on this stream may use; workspace and fault are the caller's to add.
  virtual Launch LaunchOn(Stream s) = 0;

  // Between the two, what `s` and the streams that wait for it are given is remembered instead of
  // run.
  virtual void BeginCapture(Stream s) = 0;
  // Waits until the GPU has the graph: its launches only enqueue.
  virtual StepGraph EndCapture(Stream s) = 0;
  // Ends a capture that went wrong.
  virtual void AbandonCapture(Stream s) noexcept = 0;
  virtual void LaunchGraph(StepGraph g, Stream s) = 0;
  virtual void DestroyGraph(StepGraph g) noexcept = 0;
};

}  // namespace shardc::cuda
