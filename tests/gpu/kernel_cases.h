// What CUDA kernels are tested on: the samples of every op and larger shapes of odd sizes, each
// against the reference. Used with the emulation on the CPU and with a GPU.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_kernel.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {

// Where kernels run.
class KernelMachine {
 public:
  virtual ~KernelMachine() = default;
  virtual std::unique_ptr<cuda::CudaKernel> Make(const KernelRequest& request) = 0;
  virtual std::byte* Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* p) = 0;
  virtual void Upload(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void Download(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Stream and libraries; workspace and fault are the test's.
  virtual cuda::Launch NewLaunch() = 0;
  virtual void Wait() = 0;
};

struct KernelCase {
  std::string name;
  std::string op;
  Attributes attrs;
  std::vector<HostTensor> operands;    // global values
  std::vector<TensorType> types = {};  // of operands, then results, with shardings; empty: whole
  std::optional<Mesh> mesh = {};
};

// Whether the op becomes a kernel; others become collectives, memory, or nothing.
bool HasKernel(const std::string& op);
// Samples of all ops in one float type (those that take it), f64 samples being converted.
std::vector<KernelCase> SampleCases(DType dtype);
// Shapes that reach several blocks, tiles and chunks, odd and even.
std::vector<KernelCase> LargeCases(DType dtype);
// Ops in all types that they take.
std::vector<KernelCase> TypeCases();
// Operands with padding, on every rank of a mesh.
std::vector<KernelCase> ShardedCases();

// Runs the case on the machine, twice, and on the reference; "" or what differs.
std::string RunCase(KernelMachine& machine, const KernelCase& c);
// The results on the machine.
std::vector<HostTensor> RunOn(KernelMachine& machine, const KernelCase& c);
// The fault that a kernel reports for the case.
cuda::Fault RunFault(KernelMachine& machine, const KernelCase& c);

}  // namespace shardc::testing
