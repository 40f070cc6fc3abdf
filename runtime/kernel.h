// Kernels of a backend: made once per instruction at load, called every step.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/kernel_call.h"

namespace shardc {

struct Instruction;
struct Program;

// What a kernel may prepare for. The pointers in `call` stay valid and unchanged over all steps.
struct KernelRequest {
  const Program& program;
  const Instruction& instruction;
  KernelCall call;
  // Whether steps change states (weights): a copy of one that a kernel packs serves one step only.
  bool states_change = false;
  // Whether its sums may be taken in an order of each run's own, where that is faster.
  bool may_vary = false;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void Run() = 0;
  // Memory that the kernel holds besides its operands, in bytes (packed weights, scratch).
  virtual int64_t held_bytes() const { return 0; }
};

// A kernel from a callable.
template <typename F>
std::unique_ptr<Kernel> MakeKernel(F f, int64_t held_bytes = 0) {
  struct Holder : Kernel {
    Holder(F f, int64_t held) : f_(std::move(f)), held_(held) {}
    void Run() override { f_(); }
    int64_t held_bytes() const override { return held_; }
    F f_;
    int64_t held_;
  };
  return std::make_unique<Holder>(std::move(f), held_bytes);
}

// OpDef::reference, and the movements that every backend needs (copy, pack, unpack). Throws
// InternalError for an op without one.
std::unique_ptr<Kernel> MakeReferenceKernel(const KernelRequest& request);

// The fast CPU kernel of the instruction, or null when there is none for its op, types or shapes;
// then the reference kernel serves.
std::unique_ptr<Kernel> MakeCpuKernel(const KernelRequest& request);
// Throws Diagnostic E4305 where the environment variable SHARDC_ISA asks for kernels that there are
// not for this machine.
void CheckCpuKernels();
// Ops that have a fast CPU kernel (for at least some types).
std::vector<std::string_view> CpuKernelOps();

}  // namespace shardc
