// A kernel of ours beside a library's that claims to do the same: the library's is taken only where
// it gave the same results on this GPU, in less time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "runtime/cuda/cuda_kernel.h"

namespace shardc::cuda {

// What a trial needs of the GPU of a stream. All functions wait; they throw Diagnostic E4301.
class TrialGpu {
 public:
  using Stream = CUstream_st*;
  virtual ~TrialGpu() = default;
  // Equal where kernels are equally fast.
  virtual std::string Name() = 0;
  virtual void Upload(std::byte* to, const std::vector<std::byte>& from, Stream s) = 0;
  virtual void Download(std::vector<std::byte>& to, const std::byte* from, Stream s) = 0;
  // Milliseconds of what `enqueue` gives to the stream.
  virtual double Time(const std::function<void()>& enqueue, Stream s) = 0;
};

struct Rivalry {
  // Values that an operand is tried on, after which it has its own again: spread evenly over center
  // - spread ... center + spread, no stretch like another.
  struct Operand {
    std::byte* data = nullptr;
    int64_t count = 0;
    DType dtype = DType::kF32;
    double center = 0, spread = 1;
  };
  // With e = library's - ours: the root mean square of e may be 4 units of ours' root mean square,
  // and every |e| 32 units of that plus |ours|. A unit is what one rounding on the way is relative
  // to a value.
  struct Result {
    std::byte* data = nullptr;
    int64_t count = 0;
    DType dtype = DType::kF32;
    double unit = 0;
  };
  // Names all that the speed depends on, but for the GPU: the problem and the library's version.
  std::string key;
  std::vector<Operand> operands;  // none shares memory with a result
  std::vector<Result> results;
  // The library's, for the launch's stream; null, with the reason, when it does not do this.
  std::function<std::unique_ptr<CudaKernel>(const Launch& launch, std::string* why_not)> make;
};

// Ours until Tune. What Tune notes begins with '1' when the library's is taken, else with '0'; the
// rest says why, for people.
class RivalKernel : public CudaKernel {
 public:
  virtual bool taken() const = 0;
};
// `gpu` must outlive the kernel.
std::unique_ptr<RivalKernel> MakeRivalKernel(std::unique_ptr<CudaKernel> ours, Rivalry rivalry,
                                             TrialGpu& gpu);

// "" or how `got` differs from `want` by more than the measure of Rivalry::Result allows.
std::string DifferenceOf(const Rivalry::Result& result, const std::vector<std::byte>& got,
                         const std::vector<std::byte>& want);

}  // namespace shardc::cuda
