// Kernels of the CUDA backend: made once per instruction at load, launched every step.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/kernel.h"

struct cublasLtContext;
struct CUstream_st;

namespace shardc::cuda {

// An index out of range that a kernel has met.
struct Fault {
  enum Kind : int64_t { kNone, kBadId, kBadIndex, kBadLabel };
  Kind kind = kNone;
  int64_t position = 0;  // of the index in the whole tensor of indices
  int64_t value = 0;
  int64_t limit = 0;  // valid: [0, limit), of kBadIndex [-limit, limit)
  bool operator==(const Fault&) const = default;
};

// What a launch may use. One per rank; `workspace` is shared by the launches of a stream, which run
// in order.
struct Launch {
  CUstream_st* stream = nullptr;
  cublasLtContext* blas = nullptr;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int device = 0;
  int sm_count = 1;
  // Memory within reach of kernels, of this instruction alone, in which one leaves the first fault
  // that it finds; the executor reads it after the step and raises E4003. Null: nobody asks.
  Fault* fault = nullptr;
};

class KernelChoices;

// Prepare, workspace_bytes, Tune and Enqueue are called in this order, the last every step.
class CudaKernel {
 public:
  virtual ~CudaKernel() = default;
  // Builds what needs the libraries of `launch`, which has no workspace yet. Without this call the
  // kernel does with less.
  virtual void Prepare(const Launch& /*launch*/) {}
  // Settles which of several ways to the result is taken: as `choices` says, or by timing them,
  // which is then noted there. Waits, and may overwrite operands and results with anything. Without
  // this call a library's first proposal is taken.
  virtual void Tune(const Launch& /*launch*/, KernelChoices& /*choices*/) {}
  // Enqueues; never waits, allocates or reads back, so that a step can be captured as a graph.
  // Throws Diagnostic E4301 when CUDA or a library refuses.
  virtual void Enqueue(const Launch& launch) = 0;
  // Bytes of workspace that Tune needs, and, asked again after it, Enqueue.
  virtual int64_t workspace_bytes() const { return 0; }
};

// The kernel of an instruction, all pointers in `request.call` being device memory; null when there
// is none for its op, types or shapes.
std::unique_ptr<CudaKernel> MakeCudaKernel(const KernelRequest& request);

}  // namespace shardc::cuda
